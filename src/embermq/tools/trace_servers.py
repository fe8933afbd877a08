"""`embermq trace` where the log is in Kafka and everything else in Redis. All sessions are read, as at a start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import cached_property

from msgspec.structs import replace

from embermq.adapters.redis.applications import noted_unacknowledged, stored_reader
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.device_queue import RedisDeviceQueueHistory
from embermq.adapters.redis.owners import Owner, Owners
from embermq.adapters.redis.queue_messages import RedisQueueMessages
from embermq.adapters.redis.sessions import RedisSessionStore
from embermq.app.config import Settings
from embermq.app.errors import OptionError, UserError
from embermq.app.message_archive import message_store_of
from embermq.app.pipeline_side import kafka_positions
from embermq.app.store_addresses import redis_address
from embermq.formats.application_logs import SHARED
from embermq.formats.kafka_record import decode_kafka_record, read_source
from embermq.formats.log_record import LogRecord, RecordError, Stamp, decode_record, slot_in
from embermq.formats.redis_layout import decode_retained, retained_key
from embermq.model.client_type import ClientType
from embermq.model.position import offset_of, partition_of, position_of
from embermq.model.session_writes import QueueState
from embermq.model.unacknowledged import OUTCOMES
from embermq.pipeline.log_look import Bounds
from embermq.pipeline.sources.log_file import CLOCK_MS
from embermq.ports.reader_positions import StoredReader
from embermq.ports.sessions import StoredState
from embermq.queues.names import DEAD_LETTER_PREFIX, QUEUE_PREFIX, queue_name
from embermq.queues.settling import sequence_of
from embermq.tools.report_folder import told_position
from embermq.tools.trace_values import (
    IN_QUEUE,
    NOT_IN_QUEUE,
    STORED,
    FoundMessage,
    Trace,
    TracedDelivery,
    TracedMessage,
    Wanted,
    leads,
    no_such_message,
    settled_by,
)

SETTLED = "acknowledged, or passed over: which of both is not known any more"
ACKNOWLEDGED = "acknowledged"
NOTHING = Bounds(0, 0)


def trace_on_servers(wanted: Wanted, slots: Sequence[Settings], opened: ExitStack) -> TracedMessage:
    """In several slots: the message where it was accepted, with what became of its copies in the others. Raises
    UserError, OptionError, KafkaLogError, StoreError."""
    traces = [ServersTrace(one, opened, leaves_out_copies=len(slots) > 1) for one in slots]
    if len(traces) == 1:
        return traces[0].run(wanted)
    if wanted.position:
        raise OptionError(
            "--position: it is one in the log of one slot: name that with --slot, or give --time"
        )
    found: list[tuple[int, int, FoundMessage]] = []
    nowhere: UserError | None = None
    for slot, trace in enumerate(traces):
        try:
            one = trace.find(wanted)
            found.append((one.message.accepted_ms, slot, one))
        except UserError as error:
            nowhere = error
    if not found:
        assert nowhere is not None, "each slot has it or says why not"
        raise nowhere
    _, home, first = min(found, key=_moment)
    copies = (
        (slot, trace, trace.copy_of(home, first))
        for slot, trace in enumerate(traces)
        if slot != home and not wanted.message
    )
    lives = (
        replace(trace.life_of(copy, wanted.topic), slot=slot)
        for slot, trace, copy in copies
        if copy is not None
    )
    return replace(traces[home].life_of(first, wanted.topic), slot=home, copies=tuple(lives))


def _moment(found: tuple[int, int, FoundMessage]) -> tuple[int, int]:
    return found[:2]


class ServersTrace(Trace):
    """Raises KafkaLogError and StoreError when they do not answer."""

    def __init__(self, settings: Settings, opened: ExitStack, *, leaves_out_copies: bool = False) -> None:
        super().__init__(settings)
        self._leaves_out_copies = leaves_out_copies
        self._redis = opened.enter_context(
            BlockingRedis(redis_address(settings.stores.session), settings.redis)
        )
        self._kafka = opened.enter_context(closing(kafka_positions(settings)))
        self._owners = Owners(self._redis.prefix)
        self._bounds = self._kafka.bounds()
        # Before anything else: what dispatch has done by now is in the logs that are read later.
        self._done = self._kafka.progress()

    @cached_property
    def _stored(self) -> StoredState:
        return RedisSessionStore(self._redis, self._owners).load()

    # Which message

    def _has_archive(self) -> bool:
        with suppress(UserError), message_store_of(self._settings):
            return True
        return False

    def _at(self, offset: int, topic: str) -> FoundMessage:
        partition, at = partition_of(offset), offset_of(offset)
        bounds = self._bounds.get(partition, NOTHING)
        if at >= bounds.end:
            raise UserError(
                f"the log ends before {told_position(offset)}, at {told_position(position_of(partition, bounds.end))}"
            )
        if at >= bounds.first:
            for found, record in self._records(partition, at, at + 1):
                if isinstance(record, RecordError):
                    raise UserError(f"{told_position(offset)} is damaged: {record}")
                return FoundMessage(found, record.message, record, "the log")
        if topic.startswith(QUEUE_PREFIX):
            queue = RedisQueueMessages(self._redis, queue_name(topic))
            for sequence in self._sequences(queue, offset):
                for _, body in queue.bodies([sequence]):
                    record = decode_record(body)
                    return FoundMessage(offset, record.message, record, "bodies kept for queues")
        return self._archived(offset, topic, position_of(partition, bounds.first))

    def _since(self, topic: str, time_ms: int) -> FoundMessage | None:
        ends = {number: found.end for number, found in self._bounds.items()}
        for number, begin in sorted(self._kafka.offsets_since(time_ms, ends).items()):
            for offset, record in self._records(number, begin, ends[number]):
                if isinstance(record, RecordError) or (self._leaves_out_copies and slot_in(record)):
                    continue
                if record.message.topic == topic and record.message.accepted_ms >= time_ms:
                    return FoundMessage(offset, record.message, record, "the log")
        return None

    def copy_of(self, slot: int, original: FoundMessage) -> FoundMessage | None:
        """The record here of a message in the log of that slot; None when there is none."""
        ends = {number: found.end for number, found in self._bounds.items()}
        since_ms = original.message.accepted_ms - CLOCK_MS
        for number, begin in sorted(self._kafka.offsets_since(since_ms, ends).items()):
            for offset, record in self._records(number, begin, ends[number]):
                if not isinstance(record, RecordError) and slot_in(record) == (slot, original.offset):
                    return FoundMessage(offset, record.message, record, "the log")
        return None

    def _records(self, partition: int, begin: int, end: int) -> Iterator[tuple[int, LogRecord | RecordError]]:
        for one in self._kafka.records(self._kafka.kafka.log_topic, partition, begin, end):
            record: LogRecord | RecordError
            try:
                record = decode_kafka_record(one.key(), one.value(), one.headers()).record  # type: ignore[arg-type]
            except RecordError as error:
                record = error
            yield position_of(partition, one.offset() or 0), record

    def _offset_of(self, wanted: Wanted) -> int:
        if not wanted.topic.startswith(QUEUE_PREFIX):
            raise OptionError(
                f"--message: {wanted.topic!r} is no durable queue; only their messages have ids"
            )
        name = queue_name(wanted.topic)
        queue = RedisQueueMessages(self._redis, name)
        row = queue.queue()
        if row is None:
            raise UserError(f"there is no queue {name!r}")
        sequence = sequence_of(row.generation, wanted.message)
        for one in queue.entries(row.generation):
            for entry in one:
                if entry.sequence == sequence or entry.origin_id == wanted.message:
                    return entry.offset
        for delayed in queue.delayed(row.generation):
            if delayed.ticket == sequence:
                return delayed.offset
        letters = RedisQueueMessages(self._redis, f"{DEAD_LETTER_PREFIX}{name}")
        for page in letters.entries(row.generation):
            for entry in page:
                letter = entry.dead_letter
                if letter is not None and wanted.message in (letter.message_id, entry.origin_id):
                    return entry.offset
        raise no_such_message(name, wanted.message)

    def _retained_at(self, topic: str) -> int | None:
        key = retained_key(topic, self._redis.prefix)
        found = self._redis.command(key, "LRANGE", key, 0, 0)
        if not isinstance(found, list) or not isinstance(value := next(iter(found), None), bytes):
            return None
        return decode_retained(key, value).offset

    # What became of it

    def _applications(self, found: FoundMessage) -> Iterator[TracedDelivery]:
        for stamp in found.record.stamps if found.record is not None else ():
            name = stamp.log.removeprefix(self._kafka.kafka.application_prefix)
            if name.startswith(SHARED):
                has_it = "has it" if self._entry(stamp, found.offset, 0) is not None else "does not have it"
                outcome = f"its log {has_it}; one member of each group gets it"
                yield TracedDelivery(to=name, outcome=outcome)
                continue
            owner = self._owner(stamp.generation)
            if owner is None:
                yield TracedDelivery(
                    to=name, outcome="the session has ended, or a newer one has taken its place"
                )
            else:
                yield TracedDelivery(to=owner.client_id, outcome=self._outcome(owner, stamp, found.offset))

    def _owner(self, generation: int) -> Owner | None:
        assert self._stored is not None, "owners are known from there"
        return self._owners.get(generation)

    def _outcome(self, owner: Owner, stamp: Stamp, position: int) -> str:
        """What is read first may be behind what is read later, never the other way round."""
        at = self._reader(owner).position
        entry = self._entry(stamp, position, at.positions.base_offset if at is not None else 0)
        reader = self._reader(owner)
        for mark in reader.marks:
            if mark.source == position:
                return STORED[mark.state]
        at = reader.position
        if at is not None:
            early = at.early.get(position)
            if early is not None:
                return STORED[QueueState.RELEASED if early.is_released else QueueState.SENT]
            is_served = any(first <= position < end for first, end in at.served)
            is_below = offset_of(position) < dict(at.positions.floors).get(partition_of(position), 0)
            if is_served or is_below or (entry is not None and entry < at.positions.committed_offset):
                return self._settled(owner, position, is_counted=at.settled >= 0)
        if entry is not None:
            return "waits in its log"
        if self._is_done("dispatch", position):
            return "lost: its log does not have it"
        return "waits for dispatch"

    def _settled(self, owner: Owner, position: int, *, is_counted: bool) -> str:
        noted = noted_unacknowledged(self._redis, owner)
        why = noted.why.get(position)
        if why is not None:
            return OUTCOMES[why]
        return ACKNOWLEDGED if is_counted and position >= noted.below else SETTLED

    def _reader(self, owner: Owner) -> StoredReader:
        key = owner.keys.reader
        (found,) = self._redis.many(self._redis.at(key), [("HGETALL", key)])
        pairs = [word for pair in found.items() for word in pair] if isinstance(found, dict) else []
        return stored_reader(key, owner.generation, pairs)

    def _entry(self, stamp: Stamp, position: int, begin: int) -> int | None:
        """Where the log has a copy of it."""
        if stamp.log not in self._kafka.topics():
            return None
        for number, bounds in self._kafka.bounds(stamp.log).items():
            for one in self._kafka.records(stamp.log, number, max(begin, bounds.first), bounds.end):
                with suppress(RecordError):
                    if read_source(one.headers()) == position:  # type: ignore[arg-type]
                        return one.offset() or 0
        return None

    def _sessions(self, found: FoundMessage) -> Iterator[TracedDelivery]:
        state, topic, position = self._stored, found.message.topic, found.offset
        history = RedisDeviceQueueHistory(self._redis, self._owners)
        subscriptions: list[tuple[str, int, str]] = []
        stored: dict[str, str] = {}
        for entry in state.sessions:
            row = entry.row
            filters = [
                one.topic_filter
                for one in entry.subscriptions
                if not one.queue and one.since_offset <= position
            ]
            subscriptions += [(row.client_id, row.client_type, one) for one in filters]
            if row.client_type is not ClientType.APPLICATION and any(leads(one, topic) for one in filters):
                outcome = _stored_as(history, row.generation, position)
                stored |= {row.client_id: outcome} if outcome else {}
        settled = settled_by(position, state.dispatcher_floor)
        return self._matching(topic, sorted(subscriptions), stored, settled)

    def _queues(self, found: FoundMessage) -> Iterator[TracedDelivery]:
        if not found.message.topic.startswith(QUEUE_PREFIX):
            return
        name = queue_name(found.message.topic)
        is_there = False
        for one in (name, f"{DEAD_LETTER_PREFIX}{name}"):
            queue = RedisQueueMessages(self._redis, one)
            for sequence in self._sequences(queue, found.offset):
                is_there = True
                yield TracedDelivery(to=one, outcome="is in the queue")
                for group, state in queue.states(sequence):
                    yield TracedDelivery(to=one, by=group, outcome=IN_QUEUE[state])
            if any(row.offset == found.offset for row in queue.delayed(0)):
                is_there = True
                yield TracedDelivery(to=one, outcome="is delayed")
        if not is_there:
            yield TracedDelivery(to=name, outcome=NOT_IN_QUEUE)

    def _sequences(self, queue: RedisQueueMessages, offset: int) -> set[int]:
        return {row.sequence for page in queue.entries(0) for row in page if row.offset == offset}

    def _sinks(self, offset: int) -> dict[str, bool]:
        return {query: self._is_done(query, offset) for query in self._done}

    def _is_done(self, query: str, position: int) -> bool:
        return offset_of(position) < self._done.get(query, {}).get(partition_of(position), 0)


def _stored_as(history: RedisDeviceQueueHistory, generation: int, position: int) -> str:
    """What is stored of a delivery to a session; "" when nothing is."""
    for row in history.in_flight(generation):
        if row.offset == position:
            return STORED[row.state]
    if any(offset == position for _, offset, _ in history.queued(generation)):
        return STORED[QueueState.QUEUED]
    known = history.known_offsets(generation, position).values()
    return STORED[QueueState.DONE] if any(position in some for some in known) else ""
