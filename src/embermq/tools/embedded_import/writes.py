"""What an embedded broker has, as ticks of a broker on servers: small ones, each of which may be asked for again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from msgspec.structs import replace

from embermq.model.application_positions import ReaderPosition
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
from embermq.tools.embedded_import.source import EmbeddedSource

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
