"""Dispatch again what the log holds, to those who are owed it.

After a start that is everything from the dispatcher's floor on, for each session from where its data ends: a store of
several servers may have lost the newest part of one [repositories 4]. While it runs, see `delivery.device.behind`.

After a start: what the store of state has not heard of before the crash, from the tail of the log. Deliveries are
repaired by `Recovery`, queues by `enqueue_tail`. Here: packet ids of incoming QoS 2 messages, without which a
repeated PUBLISH would be taken for a new one; wills that went out; retained messages; how far replays are; and
generations that records carry, which no other session may get.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import TYPE_CHECKING

from embermq.formats.log_record import (
    WILL_ID,
    Origin,
    RecordError,
    decode_record,
    is_addressed,
    replayed_in,
    split_batch,
)
from embermq.intake.broker import Broker
from embermq.model.message import Message
from embermq.model.session import RetainedRow, WillRow
from embermq.model.session_writes import QUEUE_SEQ_STEP, RetainedWrite
from embermq.mqtt.value import replace
from embermq.ports.device_queue import DeviceQueueHistory
from embermq.ports.message_log import MessageLog
from embermq.ports.sessions import StoredState
from embermq.routing.router import GroupTurn, MatchedGroup, Receiver, share_mark
from embermq.routing.shared_choice import keeps
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted

if TYPE_CHECKING:
    from embermq.delivery.device.path import DevicePath


READ_RECORDS = 1_000
READ_BYTES = 4 * 1024 * 1024


def complete(
    broker: Broker, stored: StoredState, retained: list[RetainedRow], log: MessageLog
) -> list[Session]:
    """Restore the broker from `stored` and from the log's tail, and return the sessions that are loaded; what the tail
    adds is stored with the first tick. Raises RecordError, StoreError."""
    tail = _Tail(stored)
    tail.read(log)
    newest = max((entry.row.generation for entry in stored.sessions), default=0)
    reserved = max(stored.generation_reserved, newest + 1, tail.newest_generation + 1)
    published = {generation for generation, row in stored.wills if tail.has_published(generation, row)}
    wills = [entry for entry in stored.wills if entry[0] not in published]
    sessions = broker.restore(replace(stored, wills=wills, generation_reserved=reserved), retained)
    broker.state.tick.session_writes.wills += [(generation, None) for generation in published]
    tail.receive(broker.state)
    tail.replay(broker.state)
    tail.retain(broker.state)
    return sessions


def lagging(stored: StoredState) -> dict[int, int]:
    """Generation of each session whose data ends below the floor -> where: another server than the one that knows the
    floor has it, and that one has lost something."""
    return {
        entry.row.generation: entry.complete_to
        for entry in stored.sessions
        if entry.complete_to is not None and entry.complete_to < stored.dispatcher_floor
    }


class _Tail:
    """What the records from the dispatcher's floor on say: below it everything has been stored. Session data that has
    lost something may lack wills and retained messages from before it; packet ids it may not: which of them were
    released since nobody knows."""

    def __init__(self, stored: StoredState) -> None:
        self._floor = stored.dispatcher_floor
        complete_to = (entry.complete_to for entry in stored.sessions)
        places = [*complete_to, stored.replays_complete_to]
        self._start = min([self._floor, *(offset for offset in places if offset is not None)])
        self._end = stored.log_end
        self._complete_to = {entry.row.generation: entry.receiving_upto for entry in stored.sessions}
        self.newest_generation = 0
        self._wills: dict[int, tuple[int, int]] = {}
        """Generation -> where its newest will stands that went out, and its date."""
        self._received: dict[tuple[int, int], int] = {}
        """(generation, packet id) -> offset."""
        self._retained: dict[str, tuple[RetainedRow, bool]] = {}
        """Topic -> offset and record, b"" where the message was deleted."""
        self._replays: dict[str, int] = {}
        """Id -> the number of the next message. Those of a tick stand in their order: what is there is a beginning."""

    def read(self, log: MessageLog) -> None:
        offset = self._start
        while offset < self._end:
            batches = log.read(offset, records_max=READ_RECORDS, bytes_max=READ_BYTES)
            if not batches:
                return
            for batch in batches:
                for index, frame in enumerate(split_batch(batch.body, batch.record_count)):
                    if batch.base_offset + index >= self._start:
                        self._look_at(batch.base_offset + index, frame)
            offset = batches[-1].base_offset + batches[-1].record_count

    def _look_at(self, offset: int, frame: bytes) -> None:
        try:
            record = decode_record(frame)
        except RecordError:
            return  # recovery counts it
        message = record.message
        stamped = (stamp.generation for stamp in record.stamps)
        self.newest_generation = max(self.newest_generation, *stamped, 0)
        replayed = replayed_in(record)
        if replayed is not None:
            replay, number = replayed
            self._replays[replay] = max(number + 1, self._replays.get(replay, 0))
        if record.origin is not None:
            self._note(record.origin, offset, message.accepted_ms)
        if message.retain:
            row = RetainedRow(message.topic, offset, frame)
            self._retained[message.topic] = row, bool(message.payload)

    def _note(self, origin: Origin, offset: int, accepted_ms: int) -> None:
        generation = origin.generation
        self.newest_generation = max(self.newest_generation, generation)
        if origin.packet_id == WILL_ID:
            self._wills[generation] = offset, accepted_ms
        elif offset >= self._floor and offset >= self._complete_to.get(generation, self._end):
            self._received[generation, origin.packet_id] = offset

    def has_published(self, generation: int, row: WillRow) -> bool:
        """Whether this will went out, and not the one before it: a takeover publishes that and leaves this at once."""
        published = self._wills.get(generation)
        if published is None:
            return False
        offset, published_ms = published
        if row.since_offset >= 0:
            return offset >= row.since_offset
        # Of a version that kept dates alone.
        return decode_record(row.record).message.accepted_ms < published_ms

    def receive(self, state: BrokerState) -> None:
        """Complete the sets of packet ids whose PUBREL has not come."""
        generations = {generation for generation, _ in self._received}
        sessions = {session.generation: session for session in state.sessions.of(generations)}
        for (generation, packet_id), offset in self._received.items():
            session = sessions.get(generation)
            if session is None:
                continue
            if session.receiving is None:
                session.receiving = set()
            session.receiving.add(packet_id)
            state.restored_ids.add((generation, packet_id))
            entry = (generation, packet_id, offset - self._end)
            state.tick.session_writes.receiving.append(entry)

    def replay(self, state: BrokerState) -> None:
        """Messages of replays that are in the log do not come in again."""
        for replay, number in self._replays.items():
            if number > state.replays.get(replay, 0):
                state.replays[replay] = state.tick.writes.replays[replay] = number

    def retain(self, state: BrokerState) -> None:
        """Only one of a later position replaces [repositories 5a]."""
        retained = state.retained
        for topic, (row, is_message) in self._retained.items():
            held = retained.newest(topic)
            if held is not None and held.offset >= row.offset:
                continue
            retained.discard(topic)
            record = row.record if is_message or retained.remembers_ends else b""
            write = RetainedWrite(topic, row.offset - self._end, record)
            state.tick.session_writes.retained.append(write)
            if is_message:
                retained.restore(row)
            else:
                retained.end(row)


class Redispatch(ABC):
    """Hands records of the log on once more, to kept sessions that are owed them."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def dispatch(self, offset: int, message: Message, frame: bytes) -> int:
        """Returns how many deliveries are stored for it."""
        if not message.qos or message.is_expired(self._state.tick.now_ms):
            return 0
        match = self._state.router.match_for(message.topic, message.publisher, offset)
        receivers = [one for one in match.durable if one.qos and self._is_owed(one, offset)]
        for group in match.groups:
            if group.stamped:
                continue
            keepers = list(filter(keeps, group.receivers))
            if keepers and self._is_owed_to_group(group, keepers, offset, message.qos):
                receivers.append(self._state.groups.queue_of(group.turn))
        accepted = Accepted(message, frame, match, None, 0, offset)
        for receiver in receivers:
            self._store(receiver, accepted)
        return len(receivers)

    @abstractmethod
    def _is_owed(self, receiver: Receiver, offset: int) -> bool:
        """Whether the session behind a plain subscription has not got it."""

    @abstractmethod
    def _is_owed_to_group(self, group: MatchedGroup, keepers: list[Receiver], offset: int, qos: int) -> bool:
        """Whether neither the queue of a shared subscription nor one of the members that would keep it has."""

    @abstractmethod
    def _store(self, receiver: Receiver, accepted: Accepted) -> None:
        """Make a stored delivery of it."""


class Recovery(Redispatch):
    """Repairs a crash between commit and delivery, and session data that has lost its newest part. Saving is idempotent
    by offset: what a session has had stored, settled ones included, is not stored again, as far as its data goes."""

    def __init__(
        self,
        state: BrokerState,
        device: DevicePath,
        log: MessageLog,
        queue: DeviceQueueHistory,
    ) -> None:
        super().__init__(state)
        self._device = device
        self._log = log
        self._queue = queue
        self._known: dict[int, dict[int, set[int]]] = {}
        self._placed: dict[tuple[int, int], int] = {}
        self._all_sent: dict[int, set[int]] | None = None
        self._had_by_shares: Mapping[int, AbstractSet[int]] | None = None
        self._floor = self._start = 0
        self._floors: Mapping[int, int] = {}

    def run(self, floor: int, floors: Mapping[int, int] = MappingProxyType({})) -> int:
        """Read to the end; returns how many deliveries were stored. `floors` has the generations of sessions whose data
        ends below the floor, and where. Nobody is connected yet."""
        self._floor, self._floors = floor, floors
        self._start = start = min([floor, *floors.values()])
        counters = self._state.counters
        self._drop_given()
        for offset, message, frame in self._records(start):
            count = self.dispatch(offset, message, frame)
            if offset < floor:
                counters.deliveries_repaired += count
            else:
                counters.redelivered_after_start += count
        if self._state.log_end > floor:
            writes = self._state.tick.writes
            writes.dispatcher_floor = self._state.log_end
        return counters.redelivered_after_start + counters.deliveries_repaired

    def _records(self, start: int) -> Iterator[tuple[int, Message, bytes]]:
        """Offset, message and record of what is stored from `start` on."""
        end = self._state.log_end
        if start < end:
            log_start = self._log.statistics().start_offset
            if start < log_start:
                self._state.counters.repair_records_missing += self._log.count(start, log_start)
        offset = start
        while offset < end:
            batches = self._log.read(offset, records_max=READ_RECORDS, bytes_max=READ_BYTES)
            if not batches:
                return
            for batch in batches:
                for index, frame in enumerate(split_batch(batch.body, batch.record_count), batch.base_offset):
                    if index < start:
                        continue
                    record = self._state.damaged.decode(frame, f"offset {index} of the message log")
                    if record is not None and not is_addressed(record):
                        yield index, record.message, frame
            offset = batches[-1].base_offset + batches[-1].record_count

    def _store(self, receiver: Receiver, accepted: Accepted) -> None:
        session = receiver.session
        self._device.store_late(session, receiver, accepted, self._place(session, accepted.offset))

    def _place(self, session: Session, offset: int) -> int:
        """A sequence number before every queued delivery of a later record; 0 when there is none."""
        later = self._queue.queued_seq_after(session.generation, offset)
        if later is None:
            return 0
        placed = self._placed.get((session.generation, later), 0) + 1
        self._placed[session.generation, later] = placed
        return later - QUEUE_SEQ_STEP + placed if placed < QUEUE_SEQ_STEP else 0

    def _floor_of(self, receiver: Receiver) -> int:
        return self._floors.get(receiver.session.generation, self._floor)

    def _is_owed(self, receiver: Receiver, offset: int) -> bool:
        """The copy of a shared subscription and the one of the plain filters are two."""
        if offset < self._floor_of(receiver):
            return False
        return offset not in self._known_offsets(receiver.session, 0)

    def _is_owed_to_group(self, group: MatchedGroup, keepers: list[Receiver], offset: int, qos: int) -> bool:
        """When nobody has it, who has left the group since included, and of QoS 2 has had it. Below the floor one of
        them was chosen, and nobody knows any more which one: it is owed when one may have lost it."""
        turn = group.turn
        having = keepers if turn.queue is None else [*keepers, self._state.groups.queue_of(turn)]
        if all(offset < self._floor_of(receiver) for receiver in having):
            return False
        mark = share_mark(turn.name)
        if any(offset in self._known_offsets(receiver.session, mark) for receiver in having):
            return False
        if offset in self._shared_sent(turn):
            return False
        return qos < 2 or offset not in self._known_by_shares().get(mark, ())

    def _known_by_shares(self) -> Mapping[int, AbstractSet[int]]:
        """All sessions are asked, once, so only when it matters: who has acknowledged a message and left the group is
        none of those that it matches."""
        if self._had_by_shares is None:
            self._had_by_shares = self._queue.known_by_shares(self._start)
        return self._had_by_shares

    def _shared_sent(self, turn: GroupTurn) -> AbstractSet[int]:
        """Offsets of what kept sessions were sent by a shared subscription and have not settled. One may have left it
        since."""
        if self._all_sent is None:
            self._all_sent = {}
            for session in self._state.sessions.loaded:
                if session.queued and session.group is None:
                    for mark, offset in self._queue.shared_sent(session.generation):
                        self._all_sent.setdefault(mark, set()).add(offset)
        return self._all_sent.get(share_mark(turn.name), frozenset())

    def _drop_given(self) -> None:
        """What a session was being given from the queue of a group is with both after a crash, and is the session's
        [MQTT-4.8.2-4]. It goes from the group before anybody is served: the client may be done with it before the next
        crash."""
        for turn in self._state.router.groups:
            queue = turn.queue
            if queue is None or not queue.queued:
                continue
            given = self._shared_sent(turn)
            for seq, offset, record_bytes in self._queue.queued(queue.generation) if given else ():
                if offset in given:
                    self._state.tick.session_writes.queue_dropped.append((queue.generation, seq))
                    queue.forget_stored(record_bytes)

    def _known_offsets(self, session: Session, mark: int) -> AbstractSet[int]:
        """What it has had by the shared subscription with this mark, or with 0 by none."""
        known = self._known.get(session.generation)
        if known is None:
            known = self._known[session.generation] = self._queue.known_offsets(
                session.generation, self._start
            )
        return known.get(mark, frozenset())
