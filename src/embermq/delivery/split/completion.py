"""After a start: what the session store has not heard of before the crash, from the tail of the log.

Deliveries are repaired by `Recovery`. Here: packet ids of incoming QoS 2 messages, without which a repeated PUBLISH
would be taken for a new one; retained messages; and logs of applications whose sessions were never stored.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from embermq.broker.broker import Broker
from embermq.broker.session import Session
from embermq.broker.state import BrokerState
from embermq.model.log_record import LogRecord, decode_record, iter_frames
from embermq.model.session import RetainedRow
from embermq.model.session_writes import RetainedWrite
from embermq.ports.application_log import ApplicationFloor, ApplicationLog
from embermq.ports.message_log import MessageLog
from embermq.ports.sessions import StoredState

READ_RECORDS = 1_000
READ_BYTES = 4 * 1024 * 1024


def behind_log(stored: StoredState, log: StoredState) -> StoredState:
    """What a session store of its own holds, with what the log's own store says of the log. No generation is given
    again that one of the two knows."""
    newest = max((entry.row.generation for entry in stored.sessions), default=0)
    return replace(
        stored,
        dispatcher_floor=log.dispatcher_floor,
        log_end=log.log_end,
        generation_reserved=max(log.generation_reserved, stored.generation_reserved, newest + 1),
    )


def complete(
    broker: Broker,
    stored: StoredState,
    retained: list[RetainedRow],
    log: MessageLog,
    applications: ApplicationLog,
) -> None:
    """Restore the broker from `stored`, see `behind_log`, and from the log's tail. Raises RecordError, StoreError."""
    broker.restore(stored, retained)
    completion = Completion(broker.state, log)
    completion.run(stored)
    completion.forget_orphans(applications.floors())


class Completion:
    """Called once, with what was restored, before anybody is served. What it finds is stored with the first tick."""

    def __init__(self, state: BrokerState, log: MessageLog) -> None:
        self._state = state
        self._log = log
        self._sessions: dict[int, Session] = {}
        self._complete_to: dict[int, int] = {}

    def run(self, stored: StoredState) -> None:
        """Read the log from the dispatcher's floor: below it everything has been stored."""
        self._sessions = {session.generation: session for session in self._state.sessions.values()}
        self._complete_to = {entry.row.generation: entry.receiving_upto for entry in stored.sessions}
        offset, end = stored.dispatcher_floor, self._state.log_end
        while offset < end:
            batches = self._log.read(offset, records_max=READ_RECORDS, bytes_max=READ_BYTES)
            if not batches:
                return
            for batch in batches:
                for index, frame in enumerate(iter_frames(batch.body)):
                    if batch.base_offset + index >= stored.dispatcher_floor:
                        self._look_at(batch.base_offset + index, frame)
            offset = batches[-1].base_offset + batches[-1].record_count

    def _look_at(self, offset: int, frame: bytes) -> None:
        record = decode_record(frame)
        self._receive(offset, record)
        if record.message.retain:
            self._retain(offset, record, frame)

    def _receive(self, offset: int, record: LogRecord) -> None:
        origin = record.origin
        session = self._sessions.get(origin.generation) if origin is not None else None
        if origin is None or session is None or offset < self._complete_to.get(origin.generation, 0):
            return
        if session.receiving is None:
            session.receiving = set()
        session.receiving.add(origin.packet_id)
        entry = (origin.generation, origin.packet_id, offset - self._state.log_end)
        self._state.tick.session_writes.receiving.append(entry)

    def _retain(self, offset: int, record: LogRecord, frame: bytes) -> None:
        """Only one of a later position replaces [repositories 5a]."""
        state, message = self._state, record.message
        held = state.retained.get(message.topic)
        if held is not None and held.offset >= offset:
            return
        state.retained.discard(message.topic)
        kept = frame if message.payload else b""
        write = RetainedWrite(message.topic, offset - state.log_end, kept)
        state.tick.session_writes.retained.append(write)
        if kept:
            state.retained.restore(RetainedRow(message.topic, offset, frame))

    def forget_orphans(self, floors: Iterable[ApplicationFloor]) -> None:
        """Logs of applications whose sessions the session store does not have."""
        generations = {session.generation for session in self._state.sessions.values()}
        for floor in floors:
            if floor.generation not in generations:
                self._state.tick.writes.ended_applications.append(floor.generation)
