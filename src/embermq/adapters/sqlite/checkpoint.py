"""The checkpoint of the embedded message log: broker.db, whose transactions hold whole frames and how far they go.

A transaction stays open while frames are applied to it and is committed now and then, without a sync: what a loss of
power takes is applied again from the log. So readers in the broker's own thread use the writing connection. The journal
is copied into the file on a thread of its own, since that waits for the disk.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from embermq.adapters.sqlite.connection import log_identity, open_writer, to_store_error
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.model.tick_writes import TickWrites
from embermq.ports.checkpoint import Checkpoint, CheckpointPosition, ReadRecords

JOURNAL_COMMITS = 8
"""After so many commits the journal is copied into the file."""
_NUMBER, _POSITION, _END = "log_file", "log_position", "log_end"
"""Of `meta`: where the log was when the transaction was committed."""
_SYNCS = "log_syncs"
"""Of `meta`: how many commits were synced."""


class SqliteCheckpoint(Checkpoint):
    """See the module. `path` is the file of the connection, which is opened again on a thread."""

    def __init__(self, tables: TickTables, path: Path) -> None:
        self._tables = tables
        self._connection = tables.connection
        self._path = path
        self._applied = CheckpointPosition(
            tables.number(_NUMBER, 0), tables.number(_POSITION, 0), tables.number(_END, 0)
        )
        self._commits = 0
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._copier: Thread | None = None
        with _translated("cannot prepare broker.db"):
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._connection.execute("PRAGMA cache_spill = OFF")  # nothing is written before a commit

    @property
    def identity(self) -> int:
        return log_identity(self._connection)

    @property
    def applied(self) -> CheckpointPosition:
        return self._applied

    @property
    def dispatcher_floor(self) -> int:
        return self._tables.floor

    def apply(self, writes: TickWrites, base: int) -> None:
        with self._all_or_nothing("cannot apply a tick to broker.db"):
            self._begin()
            self._tables.apply(writes, base)

    def commit(self, position: CheckpointPosition) -> None:
        with self._all_or_nothing("cannot commit to broker.db"):
            self._begin()
            for name, value in zip(
                (_NUMBER, _POSITION, _END), (position.number, position.position, position.offset), strict=True
            ):
                self._tables.put(name, value)
            self._tables.write()
            self._connection.execute("COMMIT")
        self._applied = position
        self._commits += 1
        if self._commits >= JOURNAL_COMMITS:
            self._commits = 0
            self._copy_journal()

    def undo(self) -> None:
        with _translated("cannot take a tick back in broker.db"):
            self._roll_back()

    def keep_bodies(self, start: int, end: int, read: ReadRecords) -> int:
        with self._all_or_nothing("cannot keep messages of queues in broker.db"):
            self._begin()
            self._tables.write()
            return self._tables.queues.keep_bodies(start, end, read)

    def sync(self) -> None:
        # A commit that is synced takes those before it along: they stand in one journal.
        with _translated("cannot sync broker.db"):
            self._connection.execute("PRAGMA synchronous = FULL")
            try:
                self._tables.put(_SYNCS, self._tables.number(_SYNCS, 0) + 1)
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            finally:
                self._connection.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        if self._copier is not None:
            self._asked.put(False)
            self._copier.join()
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._connection.execute("PRAGMA wal_autocheckpoint = 1000")
        self._connection.close()

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._tables.read_again()

    @contextmanager
    def _all_or_nothing(self, doing: str) -> Iterator[None]:
        """Take the whole open transaction back when something in it fails."""
        try:
            yield
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._roll_back()
            if isinstance(error, sqlite3.Error):
                raise to_store_error(error, doing) from error
            raise

    def _copy_journal(self) -> None:
        if self._copier is None:
            copier = Thread(target=self._copy_forever, name="broker.db journal", daemon=True)
            try:
                copier.start()
            except RuntimeError:
                return  # no thread is to be had: the journal grows until there is one
            self._copier = copier
        if self._asked.empty():
            self._asked.put(True)

    def _copy_forever(self) -> None:
        connection = open_writer(self._path, synchronous="NORMAL")
        try:
            while self._asked.get():
                with suppress(sqlite3.Error):  # a full disk: the journal grows until there is room
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        finally:
            connection.close()


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise to_store_error(error, doing) from error
