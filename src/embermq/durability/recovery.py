"""After a start: dispatch again what the log holds from the dispatcher's floor on, and what session data has lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from embermq.durability.lost_data import LostData
from embermq.formats.log_record import encode_record, split_batch
from embermq.model.message import Message
from embermq.model.session_writes import QUEUE_SEQ_STEP
from embermq.ports.device_queue import DeviceQueueHistory
from embermq.ports.message_log import MessageLog
from embermq.ports.message_store import StoredMessage
from embermq.routing.router import MatchedGroup, Receiver
from embermq.sessions.session import Session
from embermq.sessions.shared_queue import SharedQueue
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted

if TYPE_CHECKING:
    from embermq.delivery.device.path import DevicePath


READ_RECORDS = 1_000
READ_BYTES = 4 * 1024 * 1024
ReadArchive = Callable[[int, int], list[StoredMessage]]
"""Messages of the message store from an offset on, at most so many."""


class Recovery:
    """Repairs a crash between commit and delivery, and session data that has lost its newest part. Saving is idempotent
    by offset: what a session has had stored, settled ones included, is not stored again."""

    def __init__(
        self,
        state: BrokerState,
        device: DevicePath,
        log: MessageLog,
        queue: DeviceQueueHistory,
        archive: ReadArchive | None = None,
    ) -> None:
        self._state = state
        self._device = device
        self._log = log
        self._queue = queue
        self._archive = archive
        self._known: dict[tuple[int, int], set[int]] = {}
        self._placed: dict[tuple[int, int], int] = {}
        self._lost: LostData
        self._start = 0

    def run(self, lost: LostData) -> int:
        """Read to the end; returns how many deliveries were stored. Nobody is connected yet."""
        self._lost = lost
        floor = lost.floor
        self._start = start = min(lost.start, floor)
        counters = self._state.counters
        for offset, message, frame in self._records(start):
            if message.qos and not message.is_expired(self._state.tick.now_ms):
                count = self._dispatch(offset, message, frame)
                if offset < floor:
                    counters.deliveries_repaired += count
                else:
                    counters.redelivered_after_start += count
        self._begin_groups()
        if self._state.log_end > floor:
            writes = self._state.tick.writes
            writes.dispatcher_floor = self._state.log_end
            self._device.cursors.write(writes, self._state.tick.now_ms)
        return counters.redelivered_after_start + counters.deliveries_repaired

    def _records(self, start: int) -> Iterator[tuple[int, Message, bytes]]:
        """Offset, message and record of what is stored from `start` on; from the archive where the log is trimmed."""
        end = self._state.log_end
        if start < end:
            log_start = self._log.statistics().start_offset
            if start < log_start:
                yield from self._archived(start, min(log_start, self._lost.floor))
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
                    if record is not None:
                        yield index, record.message, frame
            offset = batches[-1].base_offset + batches[-1].record_count

    def _archived(self, start: int, end: int) -> Iterator[tuple[int, Message, bytes]]:
        """Of [start, end), which is below the log."""
        offset, found = start, 0
        while offset < end and self._archive is not None:
            rows = self._archive(offset, READ_RECORDS)
            for row in rows:
                if row.offset < end:
                    found += 1
                    yield row.offset, row.message, encode_record(row.message, b"")
            if not rows:
                break
            offset = rows[-1].offset + 1
        self._state.counters.repair_records_missing += self._log.count(start, end) - found

    def _dispatch(self, offset: int, message: Message, frame: bytes) -> int:
        match = self._state.router.match_for(message.topic, message.publisher, offset)
        receivers = [receiver for receiver in match.durable if self._is_owed(receiver, offset)]
        stored = len(receivers)
        for group in match.groups:
            queue = group.turn.queue
            if queue is not None and not group.stamped and self._is_owed_to_group(group, queue, offset):
                queue.store_late(message, frame, offset, self._place(queue.session, offset))
                stored += 1
        accepted = Accepted(message, frame, match, None, 0, offset)
        for receiver in receivers:
            self._device.store_late(
                receiver.session, receiver, accepted, self._place(receiver.session, offset)
            )
        return stored

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
        if not receiver.qos or (offset < self._lost.floor and not self._may_lack(receiver, offset)):
            return False
        return offset not in self._known_offsets(receiver.session, 0)

    def _is_owed_to_group(self, group: MatchedGroup, queue: SharedQueue, offset: int) -> bool:
        """When neither the group nor a member has had it. Below the floor it is owed when one of them may have lost
        it."""
        sessions = [queue.session]
        sessions += [receiver.session for receiver in group.receivers if receiver.session.persistent]
        if offset < self._lost.floor and not any(
            self._lost.may_lack(session.generation, offset, shared=True) for session in sessions
        ):
            return False
        return all(offset not in self._known_offsets(session, queue.number) for session in sessions)

    def _begin_groups(self) -> None:
        """What a crash has left with a member and the group belongs to the member."""
        state = self._state
        members: dict[SharedQueue, list[Session]] = {}
        for session in state.sessions.loaded:
            if session.queued:
                for queue in state.router.queues_of(session):
                    members.setdefault(queue, []).append(session)
        for queue in state.shared_queues.open:
            given: set[int] = set()
            if queue.session.queued:
                for session in members.get(queue, ()):
                    given |= self._queue.shared_in_flight(session.generation, queue.number)
            queue.begin(given)

    def _may_lack(self, receiver: Receiver, offset: int) -> bool:
        return self._lost.may_lack(receiver.session.generation, offset, shared=False)

    def _known_offsets(self, session: Session, shared: int) -> set[int]:
        key = (session.generation, shared)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._queue.known_offsets(
                session.generation, self._start, shared=shared
            )
        return known
