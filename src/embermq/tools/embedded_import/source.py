"""The data directory of an embedded broker that does not run, read through the adapters of its ports."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

import msgspec
from google_crc32c import extend as extend_crc32c
from msgspec import Struct
from msgspec.structs import replace

from embermq.access.authorization.rule_set import RuleSet
from embermq.adapters.sqlite.application_log import SqliteApplicationLog, SqliteReaderPositions
from embermq.adapters.sqlite.connection import log_identity, open_writer
from embermq.adapters.sqlite.device_queue import SqliteDeviceQueue
from embermq.adapters.sqlite.parked_messages import SqliteParkedBodies, SqliteParkedMessages
from embermq.adapters.sqlite.queue_store import SqliteQueueStore
from embermq.adapters.sqlite.sessions import SqliteSessionStore
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.app.authorization import RuleFiles
from embermq.app.config import Settings
from embermq.app.data_lock import DataLock
from embermq.app.embedded import DATABASE, open_embedded
from embermq.app.places_noted import noted_places
from embermq.app.segment_log import open_segment_log
from embermq.app.settings import SQLITE
from embermq.cluster.settings import ClusterSettings
from embermq.durability.retention import Bodies
from embermq.formats.log_record import RecordError, decode_record, split_batch
from embermq.model.client_type import ClientType
from embermq.model.parked_message import ParkedMessage, ParkedState
from embermq.model.queue_rows import StoredQueue
from embermq.model.session import RetainedRow, SessionRow, SubscriptionRow
from embermq.model.session_writes import QueueRow
from embermq.ports.errors import StoreError
from embermq.ports.reader_positions import StoredReader
from embermq.ports.sessions import StoredSession, StoredState
from embermq.ports.tick_store import Receipt
from embermq.sessions.group_queues import is_queue_name

KINDS = (
    "accounts",
    "sessions",
    "subscriptions",
    "wills",
    "packet ids of incoming QoS 2 messages",
    "messages stored for clients",
    "messages of application logs",
    "parked messages",
    "shared subscriptions of applications",
    "retained messages",
    "archived messages",
    "queues",
    "groups of queues",
    "messages in queues",
    "delayed messages",
    "messages that groups have tried",
    "replays",
)
"""In the order in which they are shown."""


class Counts(dict[str, int]):
    """By kind; what is not there is 0."""

    def __init__(self, found: Mapping[str, int] | None = None) -> None:
        super().__init__(dict.fromkeys(KINDS, 0))
        for kind, count in (found or {}).items():
            self.add(kind, count)

    def add(self, kind: str, count: int = 1) -> None:
        """So many more."""
        assert kind in KINDS, kind
        self[kind] += count


class Fingerprint:
    """Another one when a broker has run in between, whatever it has done."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, stored: object) -> None:
        """In the order in which it is read."""
        self.value = extend_crc32c(self.value, msgspec.json.encode(stored))


READ_RECORDS = 1_000
READ_BYTES = 4 * 1024 * 1024
PAGE = 500
ENTRIES_AT_ONCE = 10_000
QOS, RETAIN = 3, 4
"""Of the flags of a stored message; RETAIN of a subscription's options (Retain As Published) is one bit further up."""
_MORE = 1 << 30


def embedded_settings(settings: Settings, data_dir: Path) -> Settings:
    """Those with which a broker of the embedded profile would be opened there."""
    static = settings.stores.static if noted_places(data_dir).static not in ("", SQLITE) else SQLITE
    stores = replace(settings.stores, log=SQLITE, session=SQLITE, static=static)
    return replace(settings, stores=stores, cluster=ClusterSettings())


async def repair(data_dir: Path, settings: Settings, lock: DataLock) -> None:
    """What a start would do: what a crash left is stored, so that nothing is owed to anybody by the log alone. What one
    start publishes, as wills that are due, the next one has for the clients that are to get it. Raises StoreError,
    RulesFileError."""
    rules = RuleFiles(settings.authorization).read()
    while await _repaired(data_dir, settings, rules, lock):
        pass


async def _repaired(data_dir: Path, settings: Settings, rules: RuleSet | None, lock: DataLock) -> bool:
    """Whether it has published anything, for the next one to store with those who are to get it."""
    loop = asyncio.get_running_loop()
    found_log = partial(lock.note_log, accept_loss=False)
    opened = open_embedded(data_dir, settings, loop.call_soon_threadsafe, rules, found_log=found_log)
    try:
        batch = opened.broker.state.tick.take()
        if batch.writes.is_empty():
            return False
        logged: asyncio.Future[Receipt | StoreError] = loop.create_future()
        opened.ticks.submit(batch.writes, logged.set_result)
        result = await logged
        if isinstance(result, StoreError):
            raise result
        return bool(batch.writes.records)
    finally:
        opened.close()


class Application(Struct, frozen=True):
    """What is owed to one APPLICATION session: `owed` are positions, in order. `given` has those of them that waited
    for any member of a shared subscription: on servers nobody but its members can take them."""

    row: SessionRow
    reader: StoredReader
    owed: array[int]
    given: Mapping[int, QueueRow] = {}


class EmbeddedSource:
    """What it has. For one thread; nobody writes there meanwhile. Raises StoreError."""

    def __init__(
        self, data_dir: Path, settings: Settings, post: Callable[[Callable[[], None]], object]
    ) -> None:
        self._data_dir = data_dir
        self._database = database = open_writer(data_dir / DATABASE, synchronous="NORMAL")
        self._tables = tables = TickTables(database)
        self.identity = log_identity(database)
        self._log_side = open_segment_log(settings, data_dir, tables, post)
        self._application_log = SqliteApplicationLog(database, data_dir / "applications.db")
        self._bodies = SqliteParkedBodies(data_dir)
        self._device = SqliteDeviceQueue(tables)
        self._readers = SqliteReaderPositions(database)
        self._parked = SqliteParkedMessages(database)
        self._queues = SqliteQueueStore(tables, None, self._log_side.open_reader, lambda call: call())
        self.state: StoredState = self._log_side.begin(SqliteSessionStore(tables).load())

    @property
    def log_end(self) -> int:
        """The position of the next record that its broker would have written."""
        return self.state.log_end

    def retained(self) -> list[RetainedRow]:
        """All retained messages."""
        return SqliteSessionStore(self._tables).load_retained()

    def stored(self, generation: int) -> Iterator[QueueRow]:
        """What is stored for a session: what was sent first, then what waits."""
        pages: list[list[QueueRow]] = []
        self._device.in_flight(generation, pages.append)
        yield from pages.pop()
        after = -1
        while True:
            self._device.page(generation, after, PAGE, pages.append)
            rows = pages.pop()
            if not rows:
                return
            yield from rows
            after = rows[-1].seq

    def parked(self) -> list[ParkedState]:
        """Of all messages that are kept aside for applications."""
        return self._parked.load()

    def parked_message(self, at: ParkedState) -> ParkedMessage | None:
        """One of them; None for one that is deleted."""
        answers: list[object] = []
        self._parked.read(at.generation, [at.number], _MORE, answers.append)
        found = answers.pop()
        if isinstance(found, StoreError):
            raise found
        assert isinstance(found, dict)
        return found[at.number]  # type: ignore[no-any-return]

    # Queues

    def queues(self) -> list[StoredQueue]:
        """All, by generation; entries are read as they are gone through."""
        return self._queues.load()

    def next_queue_generation(self) -> int:
        """Above those of all queues that ever were."""
        return self._queues.next_generation()

    def records(self, queue: int, messages: Sequence[tuple[int, int]]) -> dict[int, bytes]:
        """Records of messages by their positions; what nobody has is left out."""
        answers: list[object] = []
        self._queues.bodies(queue, messages, answers.append)
        found: dict[int, bytes] = {}
        for answer in answers:
            if isinstance(answer, StoreError):
                raise answer
            assert isinstance(answer, dict)
            found.update((offset, body) for offset, body in answer.items() if body is not None)
        return found

    # Application logs

    def applications(self) -> list[Application]:
        """All APPLICATION sessions, with what they have not settled."""
        rows = [one.row for one in self.state.sessions if one.row.client_type is ClientType.APPLICATION]
        readers = {row.generation: self._reader(row.generation) for row in rows}
        floors = {
            generation: reader.position.positions.committed_offset
            if reader.position is not None
            else self.log_end
            for generation, reader in readers.items()
        }
        owed = {generation: self._carried(generation, floor) for generation, floor in floors.items()}
        self._add_stamped(owed, floors)
        sharing = {member for members in self._shared_out.values() for member in members}
        given = self._given({generation: set(owed[generation]) for generation in sharing})
        return [
            Application(
                row,
                readers[row.generation],
                array("q", sorted([*owed[row.generation], *given.get(row.generation, ())])),
                given.get(row.generation, {}),
            )
            for row in rows
        ]

    def sessions(self) -> Iterator[StoredSession]:
        """All but the queues of shared subscriptions of which all members are applications."""
        return (one for one in self.state.sessions if one.row.generation not in self._shared_out)

    @cached_property
    def _shared_out(self) -> dict[int, dict[int, SubscriptionRow]]:
        """These queues, by generation, and what their members are granted, by the generation of these."""
        members: dict[str, list[tuple[SessionRow, SubscriptionRow]]] = {}
        for one in self.state.sessions:
            for subscription in one.subscriptions:
                if is_queue_name(subscription.topic_filter):
                    members.setdefault(subscription.topic_filter, []).append((one.row, subscription))
        return {
            one.row.generation: {row.generation: granted for row, granted in sorted(rows, key=_by_generation)}
            for one in self.state.sessions
            if is_queue_name(one.row.client_id)
            and (rows := members.get(one.row.client_id))
            and all(row.client_type is ClientType.APPLICATION for row, _ in rows)
        }

    def _given(self, owed: dict[int, set[int]]) -> dict[int, dict[int, QueueRow]]:
        """What waits for a shared subscription goes to its members in turn: one has to get each message. Who is owed
        the same one otherwise gets that alone. Nothing is kept for a member that was granted QoS 0."""
        found: dict[int, dict[int, QueueRow]] = {generation: {} for generation in owed}
        for queue, granted in self._shared_out.items():
            members = [one for one, subscription in granted.items() if subscription.options & QOS]
            for number, row in enumerate(self.stored(queue)):
                turn = [members[(number + step) % len(members)] for step in range(len(members))]
                free = [one for one in turn if row.offset not in owed[one]]
                if free:
                    owed[free[0]].add(row.offset)
                    found[free[0]][row.offset] = _for_member(row, granted[free[0]])
        return found

    def bodies(self, generation: int) -> Bodies:
        """Records that one application is owed, by position."""
        return Bodies(self._log_side.log, self._bodies, generation)

    def _reader(self, generation: int) -> StoredReader:
        answers: list[StoredReader | StoreError] = []
        self._readers.load(generation, answers.append)
        found = answers.pop()
        if isinstance(found, StoreError):
            raise found
        return found

    def _carried(self, generation: int, floor: int) -> array[int]:
        """What the pipeline has carried into the session's log."""
        found = array("q")
        while some := self._application_log.read(generation, floor, ENTRIES_AT_ONCE):
            found.extend(some)
            floor = some[-1] + 1
        return found

    def _add_stamped(self, owed: dict[int, array[int]], floors: dict[int, int]) -> None:
        """What it has not carried yet: the stamps of the message log say whose it is."""
        offset = self._application_log.complete_offset()
        while owed and offset < self.log_end:
            batches = self._log_side.log.read(offset, records_max=READ_RECORDS, bytes_max=READ_BYTES)
            if not batches:
                return
            for batch in batches:
                for index, frame in enumerate(split_batch(batch.body, batch.record_count), batch.base_offset):
                    if index < offset:
                        continue
                    with suppress(RecordError):  # nobody can be told whose it is
                        for generation in {stamp.generation for stamp in decode_record(frame).stamps}:
                            if generation in owed and index >= floors[generation]:
                                owed[generation].append(index)
            offset = batches[-1].base_offset + batches[-1].record_count

    def close(self) -> None:
        """Let go of its files."""
        self._queues.close()
        self._bodies.close()
        self._application_log.close()
        self._log_side.close()


def _by_generation(member: tuple[SessionRow, SubscriptionRow]) -> int:
    return member[0].generation


def _for_member(row: QueueRow, subscription: SubscriptionRow) -> QueueRow:
    """A queue has messages as they were published; a member gets them as its subscription says."""
    qos = min(row.flags & QOS, subscription.options & QOS)
    identifiers = (subscription.identifier,) if subscription.identifier else ()
    return replace(row, flags=qos | row.flags & RETAIN & subscription.options >> 1, identifiers=identifiers)
