"""The message log in Kafka, read and trimmed by positions."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial

from confluent_kafka import Message, TopicPartition

from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.positions import LogPositions
from embermq.adapters.kafka.reading import PartitionReader, is_end, read_frame
from embermq.model.position import offset_of, partition_of, position_of, records_between
from embermq.ports.message_log import LogBatch, LogStatistics, MessageLog

CONSUMED_AT_ONCE = 1_000
DEFAULT_RECORD_BYTES = 256
"""Of records that nobody has looked at yet."""

Offsets = dict[int, int]


class KafkaMessageLog(MessageLog):
    """Of one topic. Each thread takes an object of its own; they share `positions` with the appender. Every call may
    wait for Kafka, a few times `request_timeout_s` at most, and raises StoreUnavailable."""

    def __init__(self, admin: WatchedAdmin, topic: str, positions: LogPositions) -> None:
        self._admin = admin
        self._topic = topic
        self._positions = positions
        self._reader: PartitionReader | None = None
        self._reader_at = -1
        """The position that the reader comes to next, -1 when that is not known."""
        self._held: deque[Message] = deque()
        """Read, and not asked for yet."""
        self._asker: PartitionReader | None = None
        self._lows: Offsets = {}
        self._seen_records = 0
        self._seen_bytes = 0

    def read(self, from_offset: int, *, records_max: int, bytes_max: int) -> list[LogBatch]:
        end = self._positions.end
        at = from_offset
        while at < end:
            partition = partition_of(at)
            stop = min(end, position_of(partition, self._positions.ends().get(partition, 0)))
            batches = self._read_partition(at, stop, records_max, bytes_max) if at < stop else []
            if batches:
                return batches
            if partition == partition_of(end):
                break
            at = position_of(partition + 1, 0)
        return []

    def _read_partition(self, at: int, stop: int, records_max: int, bytes_max: int) -> list[LogBatch]:
        """What lies from `at` to `stop` in their partition; empty only when nothing there can be read."""
        partition = partition_of(at)
        if self._reader is None:
            self._reader = self._new_reader(reads_ahead=True)
        if self._reader_at != at:
            self._held.clear()
            self._reader.at({partition: offset_of(at)})
        self._reader_at = -1  # known again when nothing went wrong half way
        batches: list[LogBatch] = []
        frames: list[bytes] = []
        base = at
        count = size = 0
        while at < stop and count < records_max and size < bytes_max:
            if not self._held:
                self._held.extend(self._reader.consume(CONSUMED_AT_ONCE))
            message = self._held[0]
            here = position_of(partition, message.offset() or 0)
            if message.partition() == partition and here >= stop:
                at = stop
                break
            self._held.popleft()
            if message.partition() != partition or here < at:
                continue
            frame = None if is_end(message) else read_frame(message, self._topic)
            if frame is None or here != at:
                _close(batches, base, frames)
                frames = []
            at = here if is_end(message) else here + 1
            if frame is not None:
                base = base if frames else here
                frames.append(frame)
                count += 1
                size += len(frame)
        _close(batches, base, frames)
        self._seen_records += count
        self._seen_bytes += size
        self._reader_at = at
        return batches

    def statistics(self) -> LogStatistics:
        self._look()
        start = self._start()
        size = self._positions.bytes_from(start) + sum(self._older().values()) * self._record_bytes()
        return LogStatistics(start, self._positions.end, size)

    def offset_keeping(self, body_bytes: int) -> int:
        self._look()
        start = self._start()
        left_bytes = body_bytes - self._positions.bytes_from(start)
        if left_bytes <= 0:
            return max(start, self._positions.position_keeping(body_bytes))
        older = self._older()
        skipped = max(0, sum(older.values()) - left_bytes // self._record_bytes())
        for partition, count in older.items():
            if skipped < count:
                return position_of(partition, self._lows[partition] + skipped)
            skipped -= count
        return max(start, self._positions.begun)

    def _start(self) -> int:
        """The position of the first record that is there."""
        for partition, end in sorted(self._positions.ends().items()):
            if self._lows[partition] < end:
                return position_of(partition, self._lows[partition])
        return self._positions.end

    def _older(self) -> Offsets:
        """How many records of earlier runs each partition has left, in order."""
        begun = self._positions.begun
        ends = self._positions.closed | {partition_of(begun): offset_of(begun)}
        return {one: max(0, ends[one] - self._lows[one]) for one in sorted(ends)}

    def _record_bytes(self) -> int:
        """Of earlier runs' records one takes about so many."""
        if self._seen_records:
            return max(1, self._seen_bytes // self._seen_records)
        written = self._positions.end - self._positions.begun
        return self._positions.appended_bytes // written if written else DEFAULT_RECORD_BYTES

    def offset_at(self, time_ms: int) -> int:
        ends = self._positions.ends()
        found = self._ask().offsets_at(max(0, time_ms), len(ends))
        for partition in sorted(found):
            if found[partition] < ends[partition]:
                return position_of(partition, found[partition])
        return self._positions.end

    def trim(self, below_offset: int) -> None:
        """Delete what lies below this position, with this call and not with a later tick."""
        self._look()
        below = min(below_offset, self._positions.end)
        last = partition_of(below)
        wanted = []
        for partition, end in self._positions.ends().items():
            offset = min(offset_of(below), end) if partition == last else end
            if partition <= last and offset > self._lows[partition]:
                wanted.append(TopicPartition(self._topic, partition, offset))
        if not wanted:
            return
        timeout_s = self._admin.settings.request_timeout_s
        self._admin.ask(
            "cannot delete records",
            partial(
                self._admin.client.delete_records,
                wanted,
                request_timeout=timeout_s,
                operation_timeout=timeout_s,
            ),
        )

    def count(self, start: int, end: int) -> int:
        return records_between(start, end, self._positions.ends())

    def passed(self, done: Mapping[int, int]) -> int:
        """The position below which a reader has passed everything that has read partitions up to these offsets."""
        for partition, end in sorted(self._positions.ends().items()):
            offset = done.get(partition, 0)
            if offset < end:
                return position_of(partition, offset)
        return self._positions.end

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Of each partition the first offset, as it was seen last, and the end. Does not wait."""
        return {one: (self._lows.get(one, 0), end) for one, end in self._positions.ends().items()}

    def _look(self) -> None:
        """At the first offset of each partition."""
        self._lows = self._ask().offsets(len(self._positions.ends()))[0]

    def _ask(self) -> PartitionReader:
        if self._asker is None:
            self._asker = self._new_reader(reads_ahead=False)
        return self._asker

    def _new_reader(self, *, reads_ahead: bool) -> PartitionReader:
        return PartitionReader(
            self._admin.address, self._admin.settings, self._topic, reads_ahead=reads_ahead
        )

    def close(self) -> None:
        """Let go of the connections."""
        readers, self._reader, self._asker = (self._reader, self._asker), None, None
        self._held.clear()
        for reader in readers:
            if reader is not None:
                reader.close()


def _close(batches: list[LogBatch], base: int, frames: list[bytes]) -> None:
    if frames:
        batches.append(LogBatch(base, len(frames), b"".join(frames)))
