"""Stores in memory for tests of the deciding rooms: a test commits or refuses each tick by hand.

They keep every promise of their ports (tests/contracts runs on them too), so that a broker "restarted" on them finds
what a crash would have left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from tests.support.queue_rows import QueueRows
from tests.support.stand_in_shared import StandInShared

from embermq.delivery.device.behind import STEP_RECORDS, Found, ReadLog
from embermq.model.application_positions import ReaderPosition
from embermq.model.parked_message import ParkedChange, ParkedMessage, ParkedStage, ParkedState
from embermq.model.queue_rows import StoredQueue
from embermq.model.session import RetainedRow, SessionRow, SubscriptionRow, WillRow
from embermq.model.session_writes import QUEUE_SEQ_STEP, QueueMark, QueueRow, QueueState, SessionWrites
from embermq.model.tick_writes import ApplicationMark, TickWrites
from embermq.model.unacknowledged import WhyUnacknowledged
from embermq.ports.application_log import ApplicationFloor, ApplicationLog
from embermq.ports.device_queue import DeviceQueue, DeviceQueueHistory, Rows, Sizes
from embermq.ports.errors import StoreError
from embermq.ports.log_appender import Appended, LogAppender
from embermq.ports.message_log import LogBatch, LogStatistics, MessageLog
from embermq.ports.parked_bodies import ParkedBodies, ParkedLog
from embermq.ports.parked_messages import ParkedFound, ParkedMessages
from embermq.ports.queue_store import BodiesFound, QueueStore
from embermq.ports.reader_positions import ReaderFound, ReaderPositions, StoredReader
from embermq.ports.sessions import SessionStore, StoredSession, StoredState
from embermq.ports.tick_store import Logged, Receipt, TickStore


class StandInStore(TickStore):
    """Holds a tick until `commit` or `refuse` is called."""

    def __init__(self) -> None:
        self.sessions: dict[int, SessionRow] = {}
        self.subscriptions: dict[tuple[int, str], SubscriptionRow] = {}
        self.wills: dict[int, WillRow] = {}
        self.receiving: set[tuple[int, int]] = set()
        self.retained: dict[str, RetainedRow] = {}
        self.queue: dict[tuple[int, int], QueueRow] = {}
        self.marks: dict[tuple[int, int], ApplicationMark] = {}
        self.unacknowledged: set[tuple[int, int, WhyUnacknowledged]] = set()
        self.positions: dict[int, ReaderPosition] = {}
        self.parked: dict[tuple[int, int], ParkedMessage] = {}
        self.batches: list[tuple[int, list[bytes], int]] = []
        self.shared = StandInShared()
        self.queues = QueueRows()
        self.log_end = 0
        self.dispatcher_floor = 0
        self.complete_to: int | None = None
        self.generation_reserved = 1
        self.replays: dict[str, int] = {}
        self.trim_below = 0
        self.now_ms = 0
        self.pending: TickWrites | None = None
        self._logged: Logged | None = None

    @property
    def busy(self) -> bool:
        return self.pending is not None

    def submit(self, writes: TickWrites, logged: Logged) -> None:
        if self.busy:
            raise RuntimeError("a tick is already being committed")
        self.pending, self._logged = writes, logged

    def commit(self) -> Receipt:
        """The tick becomes durable."""
        writes, logged = self._take()
        receipt = Receipt(self.log_end, len(writes.records))
        self._apply(writes)
        logged(receipt)
        return receipt

    def refuse(self, error: StoreError) -> None:
        """Nothing of the tick has happened."""
        self._take()[1](error)

    def lose(self) -> None:
        """The process dies before the tick is durable."""
        self._take()

    def settle(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        if self.busy:
            self.commit()

    def _take(self) -> tuple[TickWrites, Logged]:
        writes, logged = self.pending, self._logged
        assert writes is not None and logged is not None, "no tick is being committed"
        self.pending = self._logged = None
        return writes, logged

    def _apply(self, writes: TickWrites) -> None:
        base = self.log_end
        self._apply_records(writes)
        self._apply_to_sessions(writes.session)
        self._apply_to_queue(writes.session)
        self._apply_to_retained(writes.session, base)
        for generation in writes.session.deleted_sessions:
            self._delete(generation)
        self.apply_rest(writes, base)
        self._trim()

    def _apply_records(self, writes: TickWrites) -> None:
        base = self.log_end
        if writes.records:
            self.batches.append((base, list(writes.records), self.now_ms))
            self.log_end += len(writes.records)

    def apply_rest(self, writes: TickWrites, base: int) -> None:
        """All but records and session data."""
        self._apply_to_parked(writes)
        self._apply_to_applications(writes)
        self.shared.apply(writes)
        self.queues.apply(writes.queues, base)
        if writes.dispatcher_floor >= 0:
            self.dispatcher_floor = self.complete_to = writes.dispatcher_floor
            self._forget_done()
        self.replays |= writes.replays
        if writes.generation_reserved >= 0:
            self.generation_reserved = writes.generation_reserved

    def _trim(self) -> None:
        needed = self.queues.offsets()
        for base, records, _ in self.batches:
            if base + len(records) <= self.trim_below:
                kept = {base + i: record for i, record in enumerate(records) if base + i in needed}
                self.queues.bodies |= kept
        self.batches = [batch for batch in self.batches if batch[0] + len(batch[1]) > self.trim_below]

    def record_at(self, offset: int) -> bytes | None:
        """Of the log, or kept for queues."""
        for base, records, _ in self.batches:
            if base <= offset < base + len(records):
                return records[offset - base]
        return self.queues.bodies.get(offset)

    def _apply_to_retained(self, writes: SessionWrites, base: int) -> None:
        for retained in writes.retained:
            if retained.record:
                offset = base + retained.record_index
                self.retained[retained.topic] = RetainedRow(retained.topic, offset, retained.record)
            else:
                self.retained.pop(retained.topic, None)
        for topic, offset in writes.retained_expired:
            if topic in self.retained and self.retained[topic].offset == offset:
                del self.retained[topic]

    def _apply_to_sessions(self, writes: SessionWrites) -> None:
        self.receiving.update((generation, packet_id) for generation, packet_id, _ in writes.receiving)
        for row in writes.sessions:
            self.sessions[row.generation] = row
        for generation, topic_filter, subscription in writes.subscriptions:
            if subscription is None:
                self.subscriptions.pop((generation, topic_filter), None)
            else:
                self.subscriptions[generation, topic_filter] = subscription
        for generation, will in writes.wills:
            if will is None:
                self.wills.pop(generation, None)
            else:
                self.wills[generation] = will
        self.receiving.difference_update(writes.released)

    def _apply_to_queue(self, writes: SessionWrites) -> None:
        for row in writes.queue_rows:
            self.queue[row.generation, row.seq] = row
        for mark in writes.queue_marks:
            self._mark(mark)
        for generation, seq in writes.queue_dropped:
            self._mark(QueueMark(generation, seq, 0, QueueState.DONE, 0))

    def rows(self, generation: int, *states: int) -> list[QueueRow]:
        """Of a session, in their order."""
        rows = [row for row in self.queue.values() if row.generation == generation]
        return sorted((row for row in rows if row.state in states), key=lambda row: row.seq)

    def _mark(self, mark: QueueMark) -> None:
        row = self.queue.get((mark.generation, mark.seq))
        if row is None:
            return
        if mark.state != QueueState.DONE:
            row = msgspec.structs.replace(row, state=mark.state, packet_id=mark.packet_id)
        elif row.offset < self.dispatcher_floor:
            del self.queue[mark.generation, mark.seq]
            return
        else:
            row = msgspec.structs.replace(row, state=mark.state, record=b"")
        self.queue[mark.generation, mark.seq] = row

    def _forget_done(self) -> None:
        self.queue = {
            key: row
            for key, row in self.queue.items()
            if row.state != QueueState.DONE or row.offset >= self.dispatcher_floor
        }

    def _apply_to_parked(self, writes: TickWrites) -> None:
        for write in writes.parked:
            if isinstance(write, ParkedMessage):
                self.parked[write.at.generation, write.at.number] = write
            elif isinstance(write, ParkedChange):
                kept = self.parked.get((write.at.generation, write.at.number))
                if kept is not None:
                    self.parked[write.at.generation, write.at.number] = msgspec.structs.replace(
                        kept, at=write.at
                    )
            else:
                self.parked.pop((write.generation, write.number), None)

    def _apply_to_applications(self, writes: TickWrites) -> None:
        for generation in writes.restarted_applications:
            self._forget_reader(generation)
        for mark in writes.application_marks:
            before = self.marks.get((mark.generation, mark.offset), mark)
            self.marks[mark.generation, mark.offset] = msgspec.structs.replace(
                before, packet_id=mark.packet_id, state=mark.state
            )
        for generation, position in writes.application_positions.items():
            self.positions[generation] = position
            self._settle_below(generation, position.positions.committed_offset)
        self.unacknowledged |= {(one.generation, one.position, one.why) for one in writes.unacknowledged}
        for generation in writes.ended_applications:
            self.parked = {key: kept for key, kept in self.parked.items() if key[0] != generation}
            self._forget_reader(generation)

    def _settle_below(self, generation: int, floor: int) -> None:
        for key in [key for key in self.marks if key[0] == generation and key[1] < floor]:
            del self.marks[key]

    def _forget_reader(self, generation: int) -> None:
        self.marks = {key: mark for key, mark in self.marks.items() if key[0] != generation}
        self.positions.pop(generation, None)

    def _delete(self, generation: int) -> None:
        self.sessions.pop(generation, None)
        self.receiving = {entry for entry in self.receiving if entry[0] != generation}
        self.subscriptions = {key: row for key, row in self.subscriptions.items() if key[0] != generation}
        self.queue = {key: row for key, row in self.queue.items() if key[0] != generation}


class StandInQueue(DeviceQueue):
    """The device queue of a StandInStore."""

    def __init__(self, store: StandInStore) -> None:
        self._store = store

    def in_flight(self, generation: int, then: Rows) -> None:
        then(self._store.rows(generation, QueueState.SENT, QueueState.RELEASED))

    def page(
        self, generation: int, after_seq: int, limit: int, then: Rows, *, bytes_max: int | None = None
    ) -> None:
        rows = [row for row in self._store.rows(generation, QueueState.QUEUED) if row.seq > after_seq][:limit]
        found: list[QueueRow] = []
        for row in rows:
            if bytes_max is not None and sum(len(before.record) for before in found) >= bytes_max:
                break
            found.append(row)
        then(found)

    def oldest(self, generation: int, after_seq: int, limit: int, then: Sizes) -> None:
        rows = [row for row in self._store.rows(generation, QueueState.QUEUED) if row.seq > after_seq]
        then([(row.seq, len(row.record)) for row in rows[:limit]])


class StandInHistory(DeviceQueueHistory):
    """What the sessions of a StandInStore have had stored."""

    def __init__(self, store: StandInStore) -> None:
        self._store = store

    def queued_seq_after(self, generation: int, offset: int) -> int | None:
        return next(
            (row.seq for row in self._store.rows(generation, QueueState.QUEUED) if row.offset > offset), None
        )

    def queued(self, generation: int) -> list[tuple[int, int, int]]:
        rows = self._store.rows(generation, QueueState.QUEUED)
        return [(row.seq, row.offset, len(row.record)) for row in rows]

    def shared_sent(self, generation: int) -> set[tuple[int, int]]:
        rows = self._store.rows(generation, QueueState.SENT, QueueState.RELEASED)
        return {(row.flags >> 3, row.offset) for row in rows if row.flags & 8}

    def known_offsets(self, generation: int, from_offset: int) -> dict[int, set[int]]:
        known: dict[int, set[int]] = defaultdict(set)
        for row in self._store.queue.values():
            if row.generation == generation and row.offset >= from_offset:
                known[row.flags >> 3].add(row.offset)
        return known

    def known_by_shares(self, from_offset: int) -> dict[int, set[int]]:
        known: dict[int, set[int]] = defaultdict(set)
        for row in self._store.queue.values():
            if row.flags >> 3 and row.offset >= from_offset:
                known[row.flags >> 3].add(row.offset)
        return known


class StandInSessions(SessionStore):
    """The sessions of a StandInStore."""

    def __init__(self, store: StandInStore) -> None:
        self._store = store

    def load(self) -> StoredState:
        store = self._store
        queues: dict[int, list[QueueRow]] = defaultdict(list)
        for row in store.queue.values():
            queues[row.generation].append(row)
        sessions = [
            StoredSession(
                row,
                tuple(sub for key, sub in store.subscriptions.items() if key[0] == generation),
                tuple(packet_id for owner, packet_id in sorted(store.receiving) if owner == generation),
                max((queued.seq for queued in queues[generation]), default=0) + QUEUE_SEQ_STEP,
                sum(queued.state != QueueState.DONE for queued in queues[generation]),
                sum(len(queued.record) for queued in queues[generation]),
                complete_to=store.complete_to,
            )
            for generation, row in sorted(store.sessions.items(), reverse=True)
        ]
        return StoredState(
            sessions,
            sorted(store.wills.items(), key=lambda entry: entry[0]),
            store.dispatcher_floor,
            store.log_end,
            store.generation_reserved,
            dict(store.replays),
        )

    def load_retained(self) -> list[RetainedRow]:
        return list(self._store.retained.values())


class StandInAppender(LogAppender):
    """Records alone, into the log of a StandInStore: committed and refused as its ticks are."""

    def __init__(self, store: StandInStore) -> None:
        self._store = store

    def append(self, records: list[bytes], done: Appended) -> None:
        self._store.submit(TickWrites(records=records), done)

    @property
    def failing(self) -> str:
        return ""

    def close(self) -> None:
        """Nothing is open."""


class StandInLog(MessageLog):
    """The message log of a StandInStore."""

    def __init__(self, store: StandInStore) -> None:
        self._store = store
        self.reads_later = 0
        """How often the log was read on by a broker that runs."""

    def read_later(self, posted: list[Callable[[], None]]) -> ReadLog:
        """What another thread does for the broker."""

        def read(position: int, then: Found) -> None:
            self.reads_later += 1
            found = self.read(position, records_max=STEP_RECORDS, bytes_max=2**20)
            posted.append(partial(then, found))

        return read

    def read(self, from_offset: int, *, records_max: int, bytes_max: int) -> list[LogBatch]:
        bases = [base for base, _, _ in self._store.batches]
        first = max(0, bisect_right(bases, from_offset) - 1)
        found: list[LogBatch] = []
        records = size = 0
        for base, frames, _ in self._store.batches[first:]:
            if base + len(frames) <= from_offset:
                continue
            found.append(LogBatch(base, len(frames), b"".join(frames)))
            records += len(frames)
            size += len(found[-1].body)
            if records >= records_max or size >= bytes_max:
                break
        return found

    def statistics(self) -> LogStatistics:
        batches = self._store.batches
        start = batches[0][0] if batches else self._store.log_end
        size = sum(len(frame) for _, frames, _ in batches for frame in frames)
        return LogStatistics(start, self._store.log_end, size)

    def offset_at(self, time_ms: int) -> int:
        return next(
            (base for base, _, when_ms in self._store.batches if when_ms >= time_ms), self._store.log_end
        )

    def trim(self, below_offset: int) -> None:
        self._store.trim_below = max(self._store.trim_below, below_offset)


class StandInApplicationLog(ApplicationLog):
    """Application logs that a test fills as the pipeline would."""

    def __init__(self, store: StandInStore) -> None:
        self._store = store
        self.entries: dict[int, list[int]] = defaultdict(list)
        self.complete = 0

    def complete_offset(self) -> int:
        return self.complete

    def read(self, generation: int, from_offset: int, limit: int) -> list[int]:
        return sorted(at for at in self.entries[generation] if from_offset <= at < self.complete)[:limit]

    def floors(self) -> list[ApplicationFloor]:
        sessions = self._store.sessions
        return [
            ApplicationFloor(
                sessions[generation].client_id if generation in sessions else str(generation),
                generation,
                position.positions.committed_offset,
            )
            for generation, position in sorted(self._store.positions.items())
        ]


class StandInReaderPositions(ReaderPositions):
    """Of a StandInStore."""

    def __init__(self, store: StandInStore) -> None:
        self._store = store

    def load(self, generation: int, then: ReaderFound) -> None:
        marks = [mark for key, mark in self._store.marks.items() if key[0] == generation]
        marks.sort(key=lambda mark: mark.offset)
        then(StoredReader(self._store.positions.get(generation), tuple(marks)))


class StandInQueueStore(QueueStore):
    """`answer` lets the answers arrive."""

    def __init__(self, store: StandInStore) -> None:
        self._store = store
        self._asked: deque[tuple[Sequence[int], BodiesFound]] = deque()

    def load(self) -> list[StoredQueue]:
        return self._store.queues.load()

    def next_generation(self) -> int:
        return self._store.queues.next_generation

    def bodies(self, queue: int, messages: Sequence[tuple[int, int]], then: BodiesFound) -> None:
        self._asked.append(([offset for offset, _ in messages], then))

    def answer(self) -> bool:
        """False when nothing was asked."""
        if not self._asked:
            return False
        offsets, then = self._asked.popleft()
        then({offset: self._store.record_at(offset) for offset in offsets})
        return True

    def confirm(self, queue: int, then: Callable[[], None]) -> None:
        then()

    def close(self) -> None:
        self._asked.clear()


class StandInParkedMessages(ParkedMessages):
    """The parked messages of a StandInStore."""

    def __init__(self, store: StandInStore) -> None:
        self._store = store

    def load(self) -> list[ParkedState]:
        return [kept.at for _, kept in sorted(self._store.parked.items(), key=lambda entry: entry[0])]

    def read(self, generation: int, numbers: Sequence[int], bytes_max: int, then: ParkedFound) -> None:
        found: dict[int, ParkedMessage | None] = {}
        size = 0
        for number in numbers:
            kept = self._store.parked.get((generation, number))
            if kept is None or kept.at.stage == ParkedStage.DELETED:
                kept = None
            elif not bytes_max:
                kept = msgspec.structs.replace(kept, record=b"")
            found[number] = kept
            size += len(kept.record) if kept is not None else 0
            if 0 < bytes_max <= size:
                break
        then(found)


class StandInParked(ParkedBodies):
    """Bodies that the log has let go of."""

    def __init__(self) -> None:
        self.records: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.next_offsets: dict[int, int] = {}

    def put(self, generation: int, records: list[tuple[int, bytes]], next_offset: int) -> None:
        self.records[generation].update(records)
        self.next_offsets[generation] = max(next_offset, self.next_offsets.get(generation, 0))

    def get(self, generation: int, offset: int) -> bytes | None:
        return self.records[generation].get(offset)

    def logs(self) -> list[ParkedLog]:
        return [
            ParkedLog(generation, next_offset, sum(map(len, self.records[generation].values())))
            for generation, next_offset in self.next_offsets.items()
        ]

    def drop(self, generation: int, below_offset: int) -> int:
        gone = [offset for offset in self.records[generation] if offset < below_offset]
        for offset in gone:
            del self.records[generation][offset]
        if not self.records[generation]:
            self.next_offsets.pop(generation, None)
        return len(gone)

    def drop_oldest(self, generation: int, body_bytes: int) -> int:
        freed, below = 0, 0
        for offset, record in sorted(self.records[generation].items()):
            if freed >= body_bytes:
                break
            freed, below = freed + len(record), offset + 1
        return self.drop(generation, below)
