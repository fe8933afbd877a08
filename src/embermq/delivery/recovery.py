"""After a start: dispatch again what the log holds from the dispatcher's floor on."""

from embermq.broker.publishing import choose_member
from embermq.broker.router import Receiver
from embermq.broker.session import Session
from embermq.broker.state import BrokerState
from embermq.broker.tick import Accepted
from embermq.delivery.device.path import DevicePath
from embermq.model.log_record import decode_record, iter_frames
from embermq.model.session_writes import QUEUE_SEQ_STEP
from embermq.ports.device_queue import DeviceQueueHistory
from embermq.ports.message_log import MessageLog

READ_RECORDS = 1_000
READ_BYTES = 4 * 1024 * 1024


class Recovery:
    """Repairs a crash between commit and delivery. Saving is idempotent by offset: what a session has had stored,
    settled ones included, is not stored again."""

    def __init__(
        self, state: BrokerState, device: DevicePath, log: MessageLog, queue: DeviceQueueHistory
    ) -> None:
        self._state = state
        self._device = device
        self._log = log
        self._queue = queue
        self._known: dict[tuple[int, bool], set[int]] = {}
        self._placed: dict[tuple[int, int], int] = {}
        self._floor = 0

    def run(self, floor: int) -> int:
        """Read from `floor` to the end; returns how many deliveries were stored. Nobody is connected yet."""
        self._floor = floor
        stored = 0
        offset = floor
        end = self._state.log_end
        while offset < end:
            batches = self._log.read(offset, records_max=READ_RECORDS, bytes_max=READ_BYTES)
            if not batches:
                break
            for batch in batches:
                for index, frame in enumerate(iter_frames(batch.body)):
                    if batch.base_offset + index >= floor:
                        stored += self._dispatch(batch.base_offset + index, frame)
            offset = batches[-1].base_offset + batches[-1].record_count
        if end > floor:
            self._state.tick.writes.dispatcher_floor = end
        self._state.counters.redelivered_after_start = stored
        return stored

    def _dispatch(self, offset: int, frame: bytes) -> int:
        message = decode_record(frame).message
        if not message.qos or message.is_expired(self._state.tick.now_ms):
            return 0
        match = self._state.router.match_for(message.topic, message.publisher, offset)
        receivers = [receiver for receiver in match.durable if self._is_owed(receiver, offset)]
        for group in match.groups:
            members = [receiver for receiver in group.receivers if receiver.session.persistent]
            if members and all(self._is_owed(receiver, offset) for receiver in members):
                chosen = choose_member(members, group.turn.next)
                group.turn.next += 1
                if chosen is not None:
                    receivers.append(chosen)
        accepted = Accepted(message, frame, match, None, 0, offset)
        for receiver in receivers:
            self._device.store_late(
                receiver.session, receiver, accepted, self._place(receiver.session, offset)
            )
        return len(receivers)

    def _place(self, session: Session, offset: int) -> int:
        """A sequence number before every queued delivery of a later record; 0 when there is none."""
        later = self._queue.queued_seq_after(session.generation, offset)
        if later is None:
            return 0
        placed = self._placed.get((session.generation, later), 0) + 1
        self._placed[session.generation, later] = placed
        return later - QUEUE_SEQ_STEP + placed if placed < QUEUE_SEQ_STEP else 0

    def _is_owed(self, receiver: Receiver, offset: int) -> bool:
        """The copy of a shared subscription and the one of the plain filters are two."""
        return receiver.qos > 0 and offset not in self._known_offsets(receiver.session, receiver.shared)

    def _known_offsets(self, session: Session, shared: bool) -> set[int]:
        key = (session.generation, shared)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._queue.known_offsets(
                session.generation, self._floor, shared=shared
            )
        return known
