"""After a start: what the store of state has not heard of before the crash, from the tail of the log.

Deliveries are repaired by `Recovery`, queues by `enqueue_tail`. Here: packet ids of incoming QoS 2 messages, without
which a repeated PUBLISH would be taken for a new one; wills that went out; retained messages; how far replays are; and
generations that records carry, which no other session may get.
"""

from embermq.formats.log_record import WILL_ID, Origin, RecordError, decode_record, replayed_in, split_batch
from embermq.intake.broker import Broker
from embermq.model.session import RetainedRow, WillRow
from embermq.model.session_writes import RetainedWrite
from embermq.mqtt.value import replace
from embermq.ports.message_log import MessageLog
from embermq.ports.sessions import StoredState
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState

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
