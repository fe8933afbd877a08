"""What may leave the message log: too old or too much, and read by everyone who needs it.

Past the pin limit the bodies that absent applications hold back are parked in a file of their own. When that is not
enough, a policy decides: refuse new publishes that match the reader, or drop its oldest. Queries of the pipeline other
than dispatch have policies of their own, because who publishes cannot help it when an archive is behind.

Who holds back a log that the pipeline reads by (partition, offset): its queries, by what they have published.
APPLICATION clients are not among them: once dispatch has passed a record, it is in the logs of those who want it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from embermq.formats.log_record import LogRecord, RecordError, decode_record, readable_topic, split_batch
from embermq.ports.application_log import ApplicationFloor, ApplicationLog
from embermq.ports.log_readers import LogReader, LogReaders
from embermq.ports.message_log import LogBatch, LogStatistics, MessageLog
from embermq.ports.parked_bodies import ParkedBodies
from embermq.ports.pipeline_progress import PipelineProgress

READ_RECORDS = 256
READ_BYTES = 1024 * 1024


class Bodies:
    """Reads records by growing offset, a few batches at a time; what the log has let go of may be parked."""

    def __init__(
        self,
        log: MessageLog,
        parked: ParkedBodies,
        generation: int,
    ) -> None:
        self._log = log
        self._parked = parked
        self._generation = generation
        self._frames: list[bytes] = []
        self._base = 0
        self._ahead: list[LogBatch] = []

    def get(
        self, offset: int, damaged: Callable[[str], None] | None = None
    ) -> tuple[LogRecord, bytes] | None:
        """The record at an offset and its encoded form; None when nobody has it any more, or it is damaged:
        `damaged` is told then."""
        if self._base <= offset < self._base + len(self._frames) or self._load(offset):
            frame: bytes | None = self._frames[offset - self._base]
        else:
            frame = self._parked.get(self._generation, offset)
        try:
            return None if frame is None else (decode_record(frame), frame)
        except RecordError as error:
            if damaged is not None:
                damaged(f"offset {offset} of the message log, topic {readable_topic(frame or b'')}: {error}")
            return None

    def _load(self, offset: int) -> bool:
        while self._ahead and self._ahead[0].base_offset + self._ahead[0].record_count <= offset:
            del self._ahead[0]
        if not self._ahead or self._ahead[0].base_offset > offset:
            self._ahead = self._log.read(offset, records_max=READ_RECORDS, bytes_max=READ_BYTES)
        if not self._ahead or not self._ahead[0].base_offset <= offset:
            self._frames, self._ahead = [], []
            return False
        batch = self._ahead.pop(0)
        self._frames = split_batch(batch.body, batch.record_count)
        self._base = batch.base_offset
        return offset < self._base + len(self._frames)


class PublishedReaders(LogReaders):
    """`queries` that have published something; `passed` makes a position of what they have."""

    def __init__(
        self, progress: PipelineProgress, passed: Callable[[Mapping[int, int]], int], queries: Iterable[str]
    ) -> None:
        self._progress = progress
        self._passed = passed
        self._queries = tuple(queries)

    def positions(self) -> list[LogReader]:
        return [
            LogReader(query, self._passed(found), 0)
            for query in self._queries
            if (found := self._progress.positions(query))
        ]


class NoEntries(ApplicationLog):
    """For who reads logs of applications out of the message log: there is nothing here that needs it."""

    def complete_offset(self) -> int:
        return 0

    def read(self, generation: int, from_offset: int, limit: int) -> list[int]:
        return []

    def floors(self) -> list[ApplicationFloor]:
        return []


PARK_ENTRIES = 500
PARK_ROUNDS_MAX = 40
"""Entries parked at a time, and times a round: a round takes about a second at most."""

DISPATCHER = "dispatcher"
DISPATCH = "dispatch"
"""The broker's own reader, and the query of the pipeline that fills application logs."""
NEAR_SHARE = 0.5
"""The share of the pin limit from which on a reader is told of."""

Policy = Literal["refuse", "drop-oldest"]
QueryPolicy = Literal["refuse", "drop-oldest", "pause"]


class RetentionLimits(Struct, frozen=True, kw_only=True):
    """`pin_bytes`: bodies up to which readers may hold back retention; `budget_bytes`: with what is parked."""

    age_ms: int
    kept_bytes: int
    pin_bytes: int
    budget_bytes: int
    policy: Policy
    """For dispatch and for applications."""
    query_policies: Mapping[str, QueryPolicy] = {}
    """For the other queries of the pipeline, by name; the common policy for those that are not here."""


class Pin(Struct, frozen=True):
    """A reader and the first offset that it still needs."""

    name: str
    next_offset: int
    generation: int = 0
    """Of an application session; 0 for the others."""
    behind: int = 0
    """Records that it has not confirmed."""


class RetentionState(Struct, frozen=True):
    """The outcome of one round. `pins` begin with the reader that holds back most."""

    start_offset: int
    end_offset: int
    body_bytes: int
    parked_bytes: int
    pins: tuple[Pin, ...]
    over_limit: bool
    refuse_all: bool
    """A query of the pipeline is past the pin limit and the policy is `refuse`."""
    refused_generations: frozenset[int]
    """Applications for which there is no room any more, under the same policy."""
    dropped: int
    """Entries that the policy `drop-oldest` took from applications since start."""
    pin_limit_bytes: int = 0
    near: tuple[str, ...] = ()
    """Queries that hold back more than half of the pin limit, or more than all of it."""
    passed: tuple[str, ...] = ()
    """Those of them that are past it, and that the log goes on without: their oldest is dropped."""
    to_pause: tuple[str, ...] = ()
    """Those of them that are to be paused."""


class Retention:
    """Trims the log in rounds, on a thread of its own: it has its own connections to the stores."""

    def __init__(
        self,
        log: MessageLog,
        readers: LogReaders,
        applications: ApplicationLog,
        parked: ParkedBodies,
        limits: RetentionLimits,
    ) -> None:
        self._log = log
        self._readers = readers
        self._applications = applications
        self._parked = parked
        self._limits = limits
        self._dropped = 0
        self._unparked: dict[int, int] = {}
        """Generation -> the floor up to which its parked bodies are gone already."""

    def run(self, dispatcher_floor: int, expected: Iterable[str], now_ms: int) -> RetentionState:
        """One round. `expected` names the pipeline's queries that hold back the log even before their first word."""
        statistics = self._log.statistics()
        found = {reader.name: reader.next_offset for reader in self._readers.positions()}
        queries = [Pin(name, found.get(name, 0)) for name in expected]
        floors = self._applications.floors()
        complete = self._applications.complete_offset()
        if floors and all(pin.name != DISPATCH for pin in queries):
            # Nobody fills the logs that they wait for: what is held back for them is held back by that.
            least = min(floor.floor_offset for floor in floors)
            queries.append(Pin(DISPATCH, max(complete, least)))
        over = statistics.body_bytes > self._limits.pin_bytes
        target = self._log.offset_keeping(self._limits.pin_bytes) if over else statistics.start_offset
        if over:
            self._park(floors, min(target, complete))
        self._unpark(floors)
        parked = {log.generation: log for log in self._parked.logs()}
        pins = [Pin(DISPATCHER, dispatcher_floor), *queries]
        for floor in floors:
            log = parked.get(floor.generation)
            needed = max(floor.floor_offset, log.next_offset) if log is not None else floor.floor_offset
            pins.append(Pin(f"application {floor.client_id}", needed, floor.generation))
        pins.sort(key=lambda pin: pin.next_offset)
        parked_bytes = sum(log.body_bytes for log in parked.values())
        refused = self._make_room(statistics.body_bytes + parked_bytes - self._limits.budget_bytes)
        behind = [pin.name for pin in queries if over and pin.next_offset < target]
        passed = frozenset(name for name in behind if self._policy(name) != "refuse")
        holding = [
            pin
            for pin in pins
            # What applications still need of the log, and is not dispatched, goes with what dispatch has not read.
            if not (
                DISPATCH in passed and pin.next_offset >= complete if pin.generation else pin.name in passed
            )
        ]
        self._trim(statistics, min(pin.next_offset for pin in holding), target if passed else 0, now_ms)
        return RetentionState(
            statistics.start_offset,
            statistics.end_offset,
            statistics.body_bytes,
            parked_bytes,
            tuple(self._with_distance(pin, statistics.end_offset) for pin in pins),
            over,
            any(self._policy(name) == "refuse" for name in behind),
            refused,
            self._dropped,
            self._limits.pin_bytes,
            self._near(statistics.body_bytes, queries),
            tuple(sorted(passed)),
            tuple(name for name in behind if self._policy(name) == "pause"),
        )

    def _with_distance(self, pin: Pin, end: int) -> Pin:
        return replace(pin, behind=self._log.count(pin.next_offset, end))

    def _policy(self, query: str) -> QueryPolicy:
        return self._limits.query_policies.get(query, self._limits.policy)

    def _near(self, body_bytes: int, queries: list[Pin]) -> tuple[str, ...]:
        """The queries that hold back so much that somebody should look after them."""
        near_bytes = int(self._limits.pin_bytes * NEAR_SHARE)
        if body_bytes <= near_bytes:
            return ()
        edge = self._log.offset_keeping(near_bytes)
        return tuple(pin.name for pin in queries if pin.next_offset < edge)

    def _trim(self, statistics: LogStatistics, floor: int, forced: int, now_ms: int) -> None:
        wanted = max(self._log.offset_at(now_ms - self._limits.age_ms), forced)
        if statistics.body_bytes > self._limits.kept_bytes:
            wanted = max(wanted, self._log.offset_keeping(self._limits.kept_bytes))
        below = min(wanted, floor)
        if below > statistics.start_offset:
            self._log.trim(below)

    def _park(self, floors: list[ApplicationFloor], target: int) -> None:
        """Copy the bodies that applications need from below `target`, which is not past what is dispatched."""
        parked = {log.generation: log.next_offset for log in self._parked.logs()}
        for floor in floors:
            bodies = Bodies(self._log, self._parked, floor.generation)
            start = max(floor.floor_offset, parked.get(floor.generation, 0))
            for _ in range(PARK_ROUNDS_MAX):
                if start >= target:
                    break
                entries = self._applications.read(floor.generation, start, PARK_ENTRIES)
                wanted = [offset for offset in entries if offset < target]
                found = [(offset, bodies.get(offset)) for offset in wanted]
                start = wanted[-1] + 1 if len(wanted) == PARK_ENTRIES else target
                self._parked.put(
                    floor.generation,
                    [(offset, record[1]) for offset, record in found if record is not None],
                    start,
                )

    def _unpark(self, floors: list[ApplicationFloor]) -> None:
        """Let go of what applications have settled, and of sessions that are gone."""
        kept = {floor.generation: floor.floor_offset for floor in floors}
        for log in self._parked.logs():
            below = min(kept.get(log.generation, log.next_offset), log.next_offset)
            if below != self._unparked.get(log.generation):
                self._parked.drop(log.generation, below)
                self._unparked[log.generation] = below
        self._unparked = {one: below for one, below in self._unparked.items() if one in kept}

    def _make_room(self, excess_bytes: int) -> frozenset[int]:
        """Past the whole budget: the policy for the application that has most parked."""
        if excess_bytes <= 0:
            return frozenset()
        logs = sorted(self._parked.logs(), key=lambda log: log.body_bytes, reverse=True)
        if not logs:
            return frozenset()
        if self._limits.policy == "refuse":
            return frozenset({logs[0].generation})
        self._dropped += self._parked.drop_oldest(logs[0].generation, excess_bytes)
        return frozenset()
