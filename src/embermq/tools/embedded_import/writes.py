"""What an embedded broker has, as ticks of a broker on servers: small ones, each of which may be asked for again.

What applications have not settled, as records for the new log: addressed to them alone, in the order of before. The
order is that of the embedded log, and decided by what it has: record i is the same whenever they are made. So a
second run goes on behind those that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from embermq.durability.retention import Bodies
from embermq.formats.log_record import (
    FIELD_ADDRESSED,
    LogRecord,
    Stamp,
    decode_record,
    encode_record,
    encode_stamps,
)
from embermq.model.application_positions import UNCOUNTED, EarlyMark, ReaderPosition, StoredPositions
from embermq.model.client_type import ClientType
from embermq.model.parked_message import ParkedChange, ParkedMessage, ParkedStage, ParkedState
from embermq.model.queue_rows import DelayedRow, EntryRow, StoredQueue
from embermq.model.session import RetainedRow
from embermq.model.session_writes import QueueMark, QueueRow, QueueState, RetainedWrite
from embermq.model.shared_logs import SharedGroupRow
from embermq.model.tick_writes import TickWrites
from embermq.mqtt.topics.names import parse_shared
from embermq.ports.sessions import StoredSession
from embermq.queues.names import QUEUE_PREFIX
from embermq.tools.embedded_import.source import Application, EmbeddedSource

GRANTED_QOS = 2
"""Of a message whose record does not say what the application was granted."""


class OwedRecord(Struct, frozen=True):
    """A record of the new log, and the sessions that it is for, by generation with the QoS that each is sent."""

    record: bytes
    receivers: Mapping[int, int]
    offset: int
    """Where it stood in the embedded log."""


class Owed(Struct):
    """What was found on the way."""

    applications: Sequence[Application]
    lost: int = 0
    """Messages that nobody has any more, as their application would have been told."""

    def records(self, source: EmbeddedSource) -> Iterator[OwedRecord]:
        """All, once through."""
        self.lost = 0
        names = {one.row.generation: one.row.client_id for one in self.applications}
        bodies = {generation: source.bodies(generation) for generation in names}
        lines = [_line(one) for one in self.applications]
        given = {one.row.generation: one.given for one in self.applications}
        received = {
            (one.row.generation, mark.offset)
            for one in self.applications
            for mark in one.reader.marks
            if mark.state == QueueState.RELEASED
        }
        for offset, found in groupby(merge(*lines), itemgetter(0)):
            generations = [generation for _, generation in found]
            of_log = _Found()
            for generation in generations:
                of_log.take(generation, bodies[generation], offset, given[generation].get(offset))
            gone = set(generations).difference(of_log.generations)
            self.lost += sum((one, offset) not in received for one in gone)
            if of_log.record is not None:
                yield of_log.addressed(names, offset)


class _Found(Struct):
    """One message: who has kept it aside has the same one."""

    record: LogRecord | None = None
    generations: list[int] = field(default_factory=list)
    given: dict[int, QueueRow] = field(default_factory=dict)

    def take(self, generation: int, bodies: Bodies, offset: int, given: QueueRow | None) -> None:
        if given is not None:
            self.given[generation] = given
            self.record = self.record or decode_record(given.record)
        if self.record is None:
            found = bodies.get(offset)
            self.record = None if found is None else found[0]
        if self.record is not None:
            self.generations.append(generation)

    def addressed(self, names: Mapping[int, str], offset: int) -> OwedRecord:
        record = self.record
        assert record is not None
        stamped = {stamp.generation: stamp for stamp in record.stamps}
        stamps = tuple(
            replace(self._given_stamp(one) or stamped.get(one) or Stamp("", one, GRANTED_QOS), log=names[one])
            for one in self.generations
        )
        fields = (
            *(one for one in record.unknown_fields if one[0] != FIELD_ADDRESSED),
            (FIELD_ADDRESSED, b""),
        )
        frame = encode_record(record.message, encode_stamps(stamps), None, fields)
        qos = record.message.qos
        return OwedRecord(frame, {stamp.generation: min(stamp.qos, qos) for stamp in stamps}, offset)

    def _given_stamp(self, generation: int) -> Stamp | None:
        row = self.given.get(generation)
        return (
            None
            if row is None
            else Stamp("", generation, row.flags & 3, bool(row.flags & 4), row.identifiers)
        )


def _line(application: Application) -> Iterator[tuple[int, int]]:
    """What is done out of its turn is settled."""
    generation = application.row.generation
    done = {mark.offset for mark in application.reader.marks if mark.state == QueueState.DONE}
    return ((offset, generation) for offset in application.owed if offset not in done)


class ReaderPlaces:
    """Where readers stand in logs that begin with what they are owed. What is under way goes on with its packet id
    when it comes by the new log, and is told by its position there. After PUBREC nothing but PUBREL is owed: that goes
    on without a record as well, told by its position in the old log."""

    def __init__(self, applications: Sequence[Application]) -> None:
        self._applications = applications
        self._early: dict[int, dict[int, EarlyMark]] = {one.row.generation: {} for one in applications}
        self._marks = {
            (one.row.generation, mark.offset): mark
            for one in applications
            for mark in one.reader.marks
            if mark.state != QueueState.DONE
        }

    def note(self, owed: OwedRecord, position: int) -> None:
        """A record has this position in the new log."""
        for generation, qos in owed.receivers.items():
            mark = self._marks.pop((generation, owed.offset), None)
            if mark is not None:
                early = EarlyMark(mark.packet_id, max(1, qos), mark.state == QueueState.RELEASED)
                self._early[generation][position] = early

    def positions(self, identities: Mapping[int, str]) -> dict[int, ReaderPosition]:
        """By generation; `identities` are those of their logs, which have nothing in them yet. A copy of what is under
        way that comes when it is done is a repeat."""
        found: dict[int, ReaderPosition] = {}
        for one in self._applications:
            generation, place = one.row.generation, one.reader.position
            if place is not None:
                early = self._early[generation]
                bodiless = self._bodiless(generation)
                found[generation] = ReaderPosition(
                    identities[generation],
                    place.packet_id,
                    StoredPositions(),
                    served=_ranges(sorted(early)),
                    early=early | bodiless,
                    settled=UNCOUNTED if bodiless else 0,
                )
        return found

    def _bodiless(self, generation: int) -> dict[int, EarlyMark]:
        """What was received and was not noted: nobody has its body any more, and no copy will come."""
        return {
            offset: EarlyMark(mark.packet_id, 2, is_released=True)
            for (of, offset), mark in self._marks.items()
            if of == generation and mark.state == QueueState.RELEASED
        }


def _ranges(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for position in positions:
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return tuple(ranges)


ROWS_MAX = 500
BYTES_MAX = 2 * 1024 * 1024
"""Rows in a tick, and bytes of their records, unless one has more."""

Item = TypeVar("Item")


def ticks_of(source: EmbeddedSource, end: int) -> Iterator[TickWrites]:
    """All but what application logs hold. Positions in them count from `end`, where the new log goes on."""
    for some in _pieces(source.sessions(), ROWS_MAX):
        yield _sessions(some, source.log_end - end - 1)
        for session in some:
            yield from _stored(source, session)
    for wills in _pieces(source.state.wills, ROWS_MAX):
        tick = TickWrites()
        # When it is published now, it is not in what was the log before.
        tick.session.wills += [(one, replace(will, since_offset=end)) for one, will in wills]
        yield tick
    yield from _retained(source.retained(), end)
    for parked in _pieces(source.parked(), ROWS_MAX):
        yield _parked(source, parked)
    for queue in source.queues():
        yield from _queue(source, queue)
    tick = TickWrites(replays=dict(source.state.replays))
    tick.shared.groups += shared_groups(source, end)
    yield tick


def shared_groups(source: EmbeddedSource, end: int) -> list[SharedGroupRow]:
    """Shared subscriptions of applications: groups on servers, with logs of their own, that begin at `end`. What their
    members are owed from before is in the logs of these."""
    found: dict[tuple[str, str], SharedGroupRow] = {}
    logs: dict[str, int] = {}
    for stored in source.state.sessions:
        if stored.row.client_type is not ClientType.APPLICATION:
            continue
        for row in stored.subscriptions:
            shared = parse_shared(row.topic_filter)
            if shared is None or shared.topic_filter.startswith(QUEUE_PREFIX):
                continue
            key = (shared.group, shared.topic_filter)
            if key not in found:
                generation = source.state.generation_reserved + len(found)
                log = logs.setdefault(shared.topic_filter, generation)
                found[key] = SharedGroupRow(*key, generation, log, end, "", ())
    return list(found.values())


def positions_tick(positions: Mapping[int, ReaderPosition]) -> TickWrites:
    """Where readers of application logs stand."""
    return TickWrites(application_positions=dict(positions))


def _pieces(items: Iterable[Item], count: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while piece := list(islice(iterator, count)):
        yield piece


def _sessions(sessions: list[StoredSession], known: int) -> TickWrites:
    """`known` stands for a record of the log that is done: of packet ids it is not known any more which was theirs."""
    tick = TickWrites()
    for stored in sessions:
        generation = stored.row.generation
        tick.session.sessions.append(stored.row)
        tick.session.subscriptions += [(generation, row.topic_filter, row) for row in stored.subscriptions]
        tick.session.receiving += [(generation, packet_id, known) for packet_id in stored.receiving]
    return tick


def _stored(source: EmbeddedSource, session: StoredSession) -> Iterator[TickWrites]:
    if not session.queued:
        return
    tick, size = TickWrites(), 0
    for row in source.stored(session.row.generation):
        if size + len(row.record) > BYTES_MAX or len(tick.session.queue_rows) == ROWS_MAX:
            yield tick
            tick, size = TickWrites(), 0
        size += len(row.record)
        _put_row(tick, row)
    yield tick


def _put_row(tick: TickWrites, row: QueueRow) -> None:
    """What is released was sent before."""
    sent = replace(row, state=QueueState.SENT) if row.state == QueueState.RELEASED else row
    tick.session.queue_rows.append(sent)
    if row.state == QueueState.RELEASED:
        at = (row.generation, row.seq, row.offset)
        tick.session.queue_marks.append(QueueMark(*at, QueueState.RELEASED, row.packet_id))


def _retained(rows: list[RetainedRow], end: int) -> Iterator[TickWrites]:
    tick, size = TickWrites(), 0
    for row in rows:
        tick.session.retained.append(RetainedWrite(row.topic, row.offset - end, row.record))
        size += len(row.record)
        if size > BYTES_MAX or len(tick.session.retained) == ROWS_MAX:
            yield tick
            tick, size = TickWrites(), 0
    yield tick


def _parked(source: EmbeddedSource, states: list[ParkedState]) -> TickWrites:
    tick = TickWrites()
    for at in states:
        message = source.parked_message(at)
        tick.parked.append(message or ParkedMessage(at, 0, 0, False, (), "", 0, b""))
        if at.stage == ParkedStage.DELETED:
            tick.parked.append(ParkedChange(at))
    return tick


def _queue(source: EmbeddedSource, queue: StoredQueue) -> Iterator[TickWrites]:
    """The queue comes first: then all below the end of the log counts as known to it."""
    generation = queue.row.generation
    tick = TickWrites()
    tick.queues.queues[generation] = queue.row
    tick.queues.groups = {(generation, row.group): row for row in queue.groups}
    yield tick
    for entries in _pieces(queue.entries, ROWS_MAX):
        yield from _messages(source, generation, entries)
    for delayed in _pieces(queue.delayed, ROWS_MAX):
        yield from _messages(source, generation, delayed)
    for marks in _pieces(queue.marks.items(), ROWS_MAX):
        tick = TickWrites()
        tick.queues.marks = dict(marks)
        yield tick
    for ids in _pieces(queue.dedup_ids.items(), ROWS_MAX):
        tick = TickWrites()
        tick.queues.dedup_ids = {(generation, one): until_ms for one, until_ms in ids}
        yield tick


def _messages(
    source: EmbeddedSource, generation: int, rows: Iterable[EntryRow] | Iterable[DelayedRow]
) -> Iterator[TickWrites]:
    tick, size = TickWrites(), 0
    for row in rows:
        if size + row.record_bytes > BYTES_MAX:
            yield _with_bodies(source, generation, tick)
            tick, size = TickWrites(), 0
        size += row.record_bytes
        if isinstance(row, EntryRow):
            tick.queues.entries[generation, row.sequence] = row
        else:
            tick.queues.delayed[generation, row.ticket] = row
    yield _with_bodies(source, generation, tick)


def _with_bodies(source: EmbeddedSource, generation: int, tick: TickWrites) -> TickWrites:
    queues = tick.queues
    messages = [(row.offset, row.sequence) for row in queues.entries.values()]
    messages += [(row.offset, row.ticket) for row in queues.delayed.values()]
    queues.bodies_at = source.records(generation, messages)
    return tick
