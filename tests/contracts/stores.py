"""Every implementation of the stores that a tick writes and the broker reads back, for the contract suites."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, TypeVar, cast

from tests.support.stand_in_store import (
    StandInApplicationLog,
    StandInHistory,
    StandInLog,
    StandInParkedMessages,
    StandInQueue,
    StandInQueueStore,
    StandInReaderPositions,
    StandInSessions,
    StandInStore,
)

from embermq.adapters.segments.message_log import SegmentMessageLog
from embermq.adapters.segments.tick_store import Durability, SegmentTickStore
from embermq.adapters.sqlite.application_log import SqliteApplicationLog, SqliteReaderPositions
from embermq.adapters.sqlite.checkpoint import SqliteCheckpoint
from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer, wall_ms
from embermq.adapters.sqlite.device_queue import SqliteDeviceQueue, SqliteQueueHistory
from embermq.adapters.sqlite.parked_messages import SqliteParkedMessages
from embermq.adapters.sqlite.queue_store import SqliteQueueStore
from embermq.adapters.sqlite.sessions import SqliteSessionStore
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.model.client_type import ClientType
from embermq.model.session import SessionRow
from embermq.model.session_writes import QueueRow, SessionWrites
from embermq.model.tick_writes import TickWrites
from embermq.ports.application_log import ApplicationLog
from embermq.ports.device_queue import DeviceQueue, DeviceQueueHistory
from embermq.ports.errors import StoreError
from embermq.ports.message_log import MessageLog
from embermq.ports.parked_messages import ParkedMessages
from embermq.ports.queue_store import QueueStore
from embermq.ports.reader_positions import ReaderPositions
from embermq.ports.sessions import SessionStore
from embermq.ports.shared_groups import SharedGroups
from embermq.ports.tick_store import Receipt, TickStore

ANSWER_S = 60.0
Found = TypeVar("Found")
FULL_BYTES = 128 * 1024
Kind = Literal["fsync", "os", "memory", "stand-in", "kafka", "servers"]
KINDS: tuple[Kind, ...] = ("fsync", "os", "memory", "stand-in")


class Reading:
    """A device queue whose answers are waited for."""

    def __init__(self, queue: DeviceQueue) -> None:
        self._queue = queue

    def in_flight(self, generation: int) -> list[QueueRow]:
        answers: list[list[QueueRow]] = []
        self._queue.in_flight(generation, answers.append)
        self._settle()
        (rows,) = answers
        return rows

    def page(
        self, generation: int, after_seq: int, limit: int, *, bytes_max: int | None = None
    ) -> list[QueueRow]:
        answers: list[list[QueueRow]] = []
        self._queue.page(generation, after_seq, limit, answers.append, bytes_max=bytes_max)
        self._settle()
        (rows,) = answers
        return rows

    def oldest(self, generation: int, after_seq: int, limit: int) -> list[tuple[int, int]]:
        answers: list[list[tuple[int, int]]] = []
        self._queue.oldest(generation, after_seq, limit, answers.append)
        self._settle()
        (sizes,) = answers
        return sizes

    def _settle(self) -> None:
        """The answer has come before the call returned."""


class Stores:
    """One set of stores. `write` is a tick from submit to answer; `reopen` is an orderly restart."""

    store: TickStore
    log: MessageLog
    queue: Reading
    history: DeviceQueueHistory
    sessions: SessionStore
    shared: SharedGroups
    """Of the servers and their stand-in."""
    applications: ApplicationLog
    readers: ReaderPositions
    parked: ParkedMessages
    queues: QueueStore

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closing: list[Callable[[], None]] = []
        self._stand_in = StandInStore()
        self._open()

    def _open(self) -> None:
        if self.kind == "stand-in":
            stand_in = self.store = self._stand_in
            self.log = StandInLog(stand_in)
            self.queue = Reading(StandInQueue(stand_in))
            self.history = StandInHistory(stand_in)
            self.sessions = StandInSessions(stand_in)
            self.shared = stand_in.shared
            self.applications = StandInApplicationLog(stand_in)
            self.readers = StandInReaderPositions(stand_in)
            self.parked = StandInParkedMessages(stand_in)
            self.queues = StandInQueueStore(stand_in)
            return
        path = self.folder / "broker.db"
        self.writer = reader = open_writer(path, synchronous="NORMAL")
        apply_broker_schema(self.writer)
        self.tables = TickTables(self.writer)
        closing = self._open_log_store(self.tables, path)
        self.queue = Reading(SqliteDeviceQueue(self.tables))
        self.history = SqliteQueueHistory(self.tables)
        self.sessions = SqliteSessionStore(self.tables)
        applications = SqliteApplicationLog(reader, self.folder / "applications.db")
        self.applications = applications
        self.readers = SqliteReaderPositions(reader)
        self.parked = SqliteParkedMessages(reader)
        own = None if self.kind == "memory" else path
        self.queues = SqliteQueueStore(self.tables, own, self.open_log, self.posted.put)
        self._closing = [applications.close, self.queues.close, *closing]

    def _open_log_store(self, tables: TickTables, path: Path) -> list[Callable[[], None]]:
        """Returns how to close what it opens."""
        self.store = self.segments = store = SegmentTickStore(
            self.folder / "log",
            SqliteCheckpoint(tables, path),
            durability=cast(Durability, self.kind),
            post=self.posted.put,
            now_ms=wall_ms,
            segment_bytes=1,  # each tick with records has a file of its own
            reserve_bytes=4096,
        )
        self.log = log = SegmentMessageLog(store)
        return [log.close, store.close]

    def open_log(self) -> tuple[MessageLog, Callable[[], None]]:
        """For the thread that reads bodies of queues."""
        if self.kind == "memory":
            return self.log, lambda: None
        log = SegmentMessageLog(self.segments, own_thread=True)
        return log, log.close

    def close(self) -> None:
        for close in self._closing:
            close()
        self._closing = []

    def reopen(self) -> None:
        self.close()
        self._open()

    def submit(self, writes: TickWrites) -> list[Receipt | StoreError]:
        """Start a tick; the list gets its answer."""
        answers: list[Receipt | StoreError] = []
        self.store.submit(writes, answers.append)
        return answers

    def answer(self) -> None:
        """Let the answer of the tick under way arrive."""
        if isinstance(self.store, StandInStore):
            self.store.commit()
        else:
            self.posted.get(timeout=ANSWER_S)()

    def write(self, **writes: object) -> Receipt:
        """A tick that must succeed."""
        answers = self.submit(tick_writes(**writes))
        self.answer()
        (answer,) = answers
        assert isinstance(answer, Receipt), answer
        if self.kind == "memory":
            self.segments.flush()
        return answer

    def begin_sessions(self, *generations: int) -> None:
        """What is stored of applications is stored of sessions that there are."""
        rows = [
            SessionRow(f"app-{number}", number, 1, ClientType.APPLICATION, "", 5, 60, True, 0, 0)
            for number in generations
        ]
        self.write(sessions=rows)

    def body(self, queue: int, messages: Mapping[int, int]) -> dict[int, bytes | None]:
        """Bodies of messages of a queue, by offset and number, waited for."""
        found: dict[int, bytes | None] = {}

        def then(answer: Mapping[int, bytes | None] | StoreError) -> None:
            assert not isinstance(answer, StoreError), answer
            assert not found.keys() & answer.keys(), "told twice"
            found.update(answer)

        self.queues.bodies(queue, tuple(messages.items()), then)
        assert not found, "answered before the call has returned"
        while len(found) < len(messages):
            if isinstance(self.queues, StandInQueueStore):
                assert self.queues.answer()
            else:
                self.posted.get(timeout=ANSWER_S)()
        return found

    def fill(self) -> None:
        """No file of this process can be larger than a small tick from now on."""
        self._sizes = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, self._sizes[1]))

    def make_room(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._sizes)


def told(stores: Stores, ask: Callable[[Callable[[Found | StoreError], None]], None]) -> Found:
    """What the store answers to a question."""
    answers: list[Found | StoreError] = []
    ask(answers.append)
    while not answers:
        stores.posted.get(timeout=ANSWER_S)()
    (answer,) = answers
    assert not isinstance(answer, StoreError), answer
    return answer


def tick_writes(**writes: object) -> TickWrites:
    """A tick, its session data named side by side with the rest."""
    names = SessionWrites.__struct_fields__
    session = {name: value for name, value in writes.items() if name in names}
    rest = {name: value for name, value in writes.items() if name not in names}
    return TickWrites(session=SessionWrites(**session), **rest)  # type: ignore[arg-type]


def open_descriptors() -> int:
    """File descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
