"""Durable queues in broker.db: read at start, and bodies of messages by a thread of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from msgspec import Struct

from embermq.adapters.sqlite.connection import open_reader, to_store_error
from embermq.adapters.sqlite.queue_tables import name_of_group, to_entry, to_mark
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.formats.log_record import split_batch
from embermq.model.queue_rows import DelayedRow, EntryRow, GroupRow, QueueSettingsRow, StoredQueue
from embermq.ports.errors import StoreError
from embermq.ports.message_log import MessageLog
from embermq.ports.queue_store import BodiesFound, QueueStore

ANSWER_BYTES = 1024 * 1024
"""An answer is given when it has so much, and then the next one begins."""
FETCHED_ROWS = 4_096

Post = Callable[[Callable[[], None]], object]
"""Runs a callable soon on the broker's thread; may be called from any thread."""
OpenLog = Callable[[], tuple[MessageLog, Callable[[], None]]]
"""The message log for the thread that asks, and how to close it."""

_READING = "cannot read queues in broker.db"
_MARKS = """
SELECT * FROM queue_mark WHERE queue = ?1
AND message_group NOT IN (SELECT name FROM queue_group_ended WHERE queue = ?1)
"""


class _Request(Struct, frozen=True):
    offsets: Sequence[int]
    then: BodiesFound


class SqliteQueueStore(QueueStore):
    """See the port. `path` is opened for bodies, on a thread; None: they are read at once with that of `tables`, since
    others do not see what it has not committed. `open_log` opens the log that most bodies are in."""

    def __init__(self, tables: TickTables, path: Path | None, open_log: OpenLog, post: Post) -> None:
        self._tables = tables
        self._connection = tables.connection
        self._path = path
        self._open_log = open_log
        self._post = post
        self._asked: SimpleQueue[_Request | None] = SimpleQueue()
        self._thread: Thread | None = None

    def load(self) -> list[StoredQueue]:
        try:
            self._tables.write()
            rows = self._connection.execute("SELECT * FROM queue ORDER BY generation").fetchall()
            return [
                self._stored(QueueSettingsRow(generation, name, settings, reserved, bool(is_paused)))
                for generation, name, settings, reserved, is_paused in rows
            ]
        except sqlite3.Error as error:
            raise to_store_error(error, _READING) from error

    def next_generation(self) -> int:
        try:
            row = self._connection.execute(
                "SELECT value FROM meta WHERE name = 'queue_generation'"
            ).fetchone()
        except sqlite3.Error as error:
            raise to_store_error(error, _READING) from error
        return int(row[0]) if row else 1

    def _stored(self, queue: QueueSettingsRow) -> StoredQueue:
        def rows(statement: str) -> Iterable[tuple[Any, ...]]:
            return self._connection.execute(statement, (queue.generation,))

        groups = tuple(
            GroupRow(generation, name_of_group(key), first_sequence, idle_since_ms, bool(is_paused))
            for generation, key, first_sequence, idle_since_ms, is_paused in rows(
                "SELECT * FROM queue_group WHERE queue = ?"
            )
        )
        delayed = tuple(
            DelayedRow(generation, ticket, offset, -1, key, visible_ms, expires_ms, size)
            for generation, ticket, offset, visible_ms, expires_ms, key, size in rows(
                "SELECT * FROM queue_delayed WHERE queue = ? ORDER BY ticket"
            )
        )
        marks = {
            (generation, name_of_group(key), sequence): to_mark(state, due_ms, attempts)
            for generation, sequence, key, state, due_ms, attempts in rows(_MARKS)
        }
        ids: dict[str, int] = dict(rows("SELECT dedup_id, until_ms FROM queue_dedup WHERE queue = ?"))
        return StoredQueue(queue, groups, self._entries(queue.generation), delayed, marks, ids)

    def _entries(self, generation: int) -> Iterator[EntryRow]:
        try:
            cursor = self._connection.execute(
                "SELECT * FROM queue_entry WHERE queue = ? ORDER BY sequence", (generation,)
            )
            while rows := cursor.fetchmany(FETCHED_ROWS):
                yield from map(to_entry, rows)
        except sqlite3.Error as error:
            raise to_store_error(error, _READING) from error

    def bodies(self, queue: int, messages: Sequence[tuple[int, int]], then: BodiesFound) -> None:
        request = _Request(tuple(dict.fromkeys(offset for offset, _ in messages)), then)
        if self._path is None:
            with closing(_RecordReader(self._open_log, connection=self._connection)) as reader:
                self._answer(reader, request)
            return
        if self._thread is None:
            self._thread = Thread(target=self._read_forever, name="queue bodies", daemon=True)
            self._thread.start()
        self._asked.put(request)

    def confirm(self, queue: int, then: Callable[[], None]) -> None:
        then()

    def close(self) -> None:
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
            self._thread = None

    def _read_forever(self) -> None:
        assert self._path is not None
        with closing(_RecordReader(self._open_log, path=self._path)) as reader:
            while (request := self._asked.get()) is not None:
                self._answer(reader, request)

    def _answer(self, reader: _RecordReader, request: _Request) -> None:
        found: dict[int, bytes | None] = {}
        size = 0
        try:
            for offset in request.offsets:
                body = found[offset] = reader.get(offset)
                size += len(body or b"")
                if size >= ANSWER_BYTES:
                    self._post(partial(_tell, request.then, found))
                    found, size = {}, 0
        except StoreError as error:
            self._post(partial(request.then, error))
            return
        if found:
            self._post(partial(_tell, request.then, found))


def _tell(then: BodiesFound, found: Mapping[int, bytes | None]) -> None:
    then(found)


class _RecordReader:
    """Records by offset. The batch of the log that was read last is kept: what is asked for next is often in it."""

    def __init__(
        self,
        open_log: OpenLog,
        *,
        connection: sqlite3.Connection | None = None,
        path: Path | None = None,
    ) -> None:
        self._connection = connection
        self._path = path
        self._log, self._close_log = open_log()
        self._base = 0
        self._frames: list[bytes] = []

    def get(self, offset: int) -> bytes | None:
        """None when nobody has it. Raises StoreError."""
        if self._base <= offset < self._base + len(self._frames) or self._load(offset):
            return self._frames[offset - self._base]
        try:
            return self._kept(offset)
        except sqlite3.Error as error:
            raise to_store_error(error, "cannot read the body of a message in broker.db") from error

    def _load(self, offset: int) -> bool:
        self._frames = []
        batches = self._log.read(offset, records_max=1, bytes_max=1)
        if not batches or batches[0].base_offset > offset:
            return False
        self._base = batches[0].base_offset
        self._frames = split_batch(batches[0].body, batches[0].record_count)
        return offset < self._base + len(self._frames)

    def _kept(self, offset: int) -> bytes | None:
        # After the log: in between it may have let go, and it copies first.
        row = self._open().execute('SELECT record FROM queue_body WHERE "offset" = ?', (offset,)).fetchone()
        return None if row is None else row[0]

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            assert self._path is not None
            self._connection = open_reader(self._path)
        return self._connection

    def close(self) -> None:
        if self._connection is not None and self._path is not None:
            self._connection.close()
        self._close_log()
