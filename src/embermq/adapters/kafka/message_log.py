"""The message log in Kafka, read and trimmed by sequence numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from confluent_kafka import TopicPartition
from msgspec import Struct

from embermq.adapters.kafka.client import LOG, WatchedAdmin
from embermq.adapters.kafka.lost_tail import LATE_RECORDS, TailLook, fill, known_offsets
from embermq.adapters.kafka.positions import LogPositions, Mark
from embermq.adapters.kafka.reading import Merge, PartitionReader, first_from, first_numbers
from embermq.ports.log_state import KnownLog
from embermq.ports.message_log import LogBatch, LogStatistics, MessageLog
from embermq.ports.source_positions import SourcePositions

NEAR_RECORDS = 20_000
"""A mark so close to what is looked for is as good; else offsets are found by bisection."""
TAIL_RECORDS = 64
"""Of each partition; the largest number of them is the log's last."""
LEAP = 1_000_000
"""Numbers left out when something may still be on its way that an earlier run of the broker sent: more than a tick has
records."""
DEFAULT_RECORD_BYTES = 256
"""Of records that nobody has looked at yet."""

Offsets = dict[int, int]


class _Extent(Struct, frozen=True):
    """What was found out about the log's beginning: partitions' first offsets, and the first number."""

    lows: Offsets
    start: int


class KafkaMessageLog(MessageLog, SourcePositions):
    """Of one topic. Each thread takes an object of its own; they share `positions` with the appender. Every call may
    wait for Kafka, a few times `request_timeout_s` at most, and raises StoreUnavailable."""

    def __init__(self, admin: WatchedAdmin, topic: str, positions: LogPositions) -> None:
        self._admin = admin
        self._topic = topic
        self._positions = positions
        self._readers: list[PartitionReader] = []
        self._merge: Merge | None = None
        self._merge_reader: PartitionReader | None = None
        self._probe_reader: PartitionReader | None = None
        self._extent: _Extent | None = None
        self._seen_records = 0
        self._seen_bytes = 0

    def read(self, from_offset: int, *, records_max: int, bytes_max: int) -> list[LogBatch]:
        mark = self._positions.end()
        if from_offset >= mark.number:
            return []
        merge = self._merge
        if merge is None or merge.next_number != from_offset:
            merge = self._start_merge(from_offset)
        self._merge = None  # only put back when nothing went wrong half way
        batches: list[LogBatch] = []
        frames: list[bytes] = []
        base, count, size = from_offset, 0, 0
        for record in merge.take(dict(enumerate(mark.offsets)), mark.number):
            if record.number != base + len(frames) and frames:
                batches.append(LogBatch(base, len(frames), b"".join(frames)))
                frames = []
            if not frames:
                base = record.number
            frames.append(record.frame)
            count += 1
            size += len(record.frame)
            if count >= records_max or size >= bytes_max:
                break
        if frames:
            batches.append(LogBatch(base, len(frames), b"".join(frames)))
        self._merge = merge
        self._seen_records += count
        self._seen_bytes += size
        return batches

    def _start_merge(self, number: int) -> Merge:
        if self._merge_reader is None:
            self._merge_reader = self._new_reader(reads_ahead=True)
        return Merge(self._merge_reader, self.positions_of(number), number)

    def statistics(self) -> LogStatistics:
        mark = self._positions.end()
        extent = self._look(mark)
        older = sum(self._older(extent.lows).values())
        size = self._positions.bytes_from(extent.start) + older * self._record_bytes()
        return LogStatistics(extent.start, mark.number, size)

    def offset_keeping(self, body_bytes: int) -> int:
        extent = self._look(self._positions.end())
        left_bytes = body_bytes - self._positions.bytes_from(extent.start)
        if left_bytes <= 0:
            return max(extent.start, self._positions.number_keeping(body_bytes))
        older = self._older(extent.lows)
        share = 1 - left_bytes / max(1, sum(older.values()) * self._record_bytes())
        if share <= 0:
            return extent.start
        beyond = self._positions.beyond
        offsets = {one: beyond(one, extent.lows[one], int(share * count)) for one, count in older.items()}
        first = self._positions.first()
        numbers = first_numbers(self._probe(), offsets, dict(enumerate(first.offsets))).values()
        return min((number for _, number in numbers), default=first.number)

    def _older(self, lows: Offsets) -> Offsets:
        """How many records of earlier runs each partition has left. Offsets tell it; of the numbers between two runs a
        million may be left out. Fillers are none."""
        ends, fillers = self._positions.first().offsets, self._positions.fillers_from
        return {one: max(0, end - lows[one] - fillers(one, lows[one])) for one, end in enumerate(ends)}

    def _record_bytes(self) -> int:
        """Of earlier runs' records one takes about so many."""
        if self._seen_records:
            return self._seen_bytes // self._seen_records
        first, end = self._positions.first(), self._positions.end()
        written = sum(end.offsets) - sum(first.offsets)
        return end.appended_bytes // written if written else DEFAULT_RECORD_BYTES

    def _look(self, mark: Mark) -> _Extent:
        """`mark` is the log's end."""
        lows = self._lows()
        if self._extent is not None and self._extent.lows == lows:
            return self._extent
        found = first_numbers(self._probe(), lows, dict(enumerate(mark.offsets)))
        start = min((number for _, number in found.values()), default=mark.number)
        extent = _Extent(lows, min(start, mark.number))
        self._extent = extent if found else None
        return extent

    def offset_at(self, time_ms: int) -> int:
        mark = self._positions.end()
        ends = dict(enumerate(mark.offsets))
        offsets = self._probe().offsets_at(max(0, time_ms), self._positions.partitions)
        numbers = first_numbers(self._probe(), offsets, ends).values()
        return min((number for _, number in numbers), default=mark.number)

    def trim(self, below_offset: int) -> None:
        """At once. The last record stays: it says which number comes next."""
        below = min(below_offset, self._positions.last_number())
        if below <= 0:
            return
        lows = self._lows()
        wanted = [
            TopicPartition(self._topic, partition, offset)
            for partition, offset in self._surely_below(below, lows).items()
            if offset > lows[partition]
        ]
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

    def _surely_below(self, number: int, lows: Offsets) -> Offsets:
        """Of each partition an offset before which no record has this number or a greater one. Where an earlier run
        began, records that a dead broker sent may stand among its own, and bisection may end behind them: what is
        before that is looked through."""
        found = self._bisect(number, lows)
        if self._positions.before(number) is not None:
            return found
        while True:
            begin = {one: max(lows[one], offset - LATE_RECORDS) for one, offset in found.items()}
            found = first_from(self._probe(), begin, found, number)
            if all(offset > begin[one] or offset == lows[one] for one, offset in found.items()):
                return found

    def positions_of(self, number: int) -> Mapping[int, int]:
        mark = self._positions.before(number)
        if mark is not None and number - mark.number <= NEAR_RECORDS:
            return dict(enumerate(mark.offsets))
        return self._bisect(number, self._lows())

    def _bisect(self, number: int, lows: Offsets) -> Offsets:
        """Of each partition the first offset whose record has this number or a greater one. What a broker that was dead
        already sent in between has lesser numbers, and is passed over: else the search could end behind it."""
        mark = self._positions.before(number)
        if mark is None:
            low, least = dict(lows), 0
        else:
            low, least = {one: max(lows[one], mark.offsets[one]) for one in lows}, mark.number
            if least >= number:
                return low
        high = dict(enumerate(self._positions.end().offsets))
        while True:
            middle = {one: (low[one] + high[one]) // 2 for one in low if low[one] < high[one]}
            if not middle:
                return low
            found = first_numbers(self._probe(), middle, high, least=least)
            for partition, offset in middle.items():
                at, seen = found.get(partition, (high[partition], number))
                if seen >= number:
                    high[partition] = offset
                else:
                    low[partition] = at + 1

    def number_of(self, positions: Mapping[int, int]) -> int:
        mark = self._positions.end()
        offsets = {one: positions.get(one, 0) for one in range(self._positions.partitions)}
        numbers = first_numbers(self._probe(), offsets, dict(enumerate(mark.offsets))).values()
        return min((number for _, number in numbers), default=mark.number)

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Of each partition the first offset, as `statistics` saw it last, and the end. Does not wait."""
        lows = self._extent.lows if self._extent is not None else {}
        return {one: (lows.get(one, 0), end) for one, end in enumerate(self._positions.end().offsets)}

    def _lows(self) -> Offsets:
        """The first offset of each partition."""
        return self._probe().offsets(self._positions.partitions)[0]

    def _probe(self) -> PartitionReader:
        if self._probe_reader is None:
            self._probe_reader = self._new_reader(reads_ahead=False)
        return self._probe_reader

    def _new_reader(self, *, reads_ahead: bool) -> PartitionReader:
        admin = self._admin
        reader = PartitionReader(admin.address, admin.settings, self._topic, reads_ahead=reads_ahead)
        self._readers.append(reader)
        return reader

    def close(self) -> None:
        """Let go of the connections."""
        readers, self._readers = self._readers, []
        self._merge = self._merge_reader = self._probe_reader = None
        for reader in readers:
            reader.close()


class FoundLog(Struct, frozen=True):
    """What a start has found. `records_end`: one more than the number of the last record, 0 without any."""

    positions: LogPositions
    records_end: int


def find_end(admin: WatchedAdmin, topic: str, known: KnownLog, log_id: str = "") -> FoundLog:
    """Where the log ends, and the number that comes next. After a run that has ended without a word, what it sent may
    still arrive; so it may when the log has got on since it is known. Of the log with the id `log_id` that has lost its
    end the offsets behind that are used up first."""
    partitions = admin.settings.partitions
    reader = PartitionReader(admin.address, admin.settings, topic, reads_ahead=True)
    try:
        lows, ends = reader.offsets(partitions)
        offsets = {one: max(lows[one], ends[one] - TAIL_RECORDS) for one in ends}
        merge = Merge(reader, offsets, 0)
        end = max((record.number + 1 for record in merge.take(ends, 2**63)), default=0)
    finally:
        reader.close()
    look = TailLook(lows, ends, end, merge.filled)
    end = max(end, merge.filled)
    records_end = end
    if end < known.records_end:
        LOG.error(
            "%s: topic %s ends before what was acknowledged: it should go on at number %d and does at %d; the messages "
            "between are lost",
            admin.address,
            topic,
            known.records_end,
            end,
        )
    if end < known.end:
        end = known.end + LEAP  # no number is given twice
    elif end and end != known.closed_end:
        end += LEAP
    filled = known.filled if known.identity == log_id else ()
    wanted = known_offsets(admin, topic, log_id, known, look) if log_id and known.is_any else None
    if wanted is not None:
        before, ends = ends, fill(admin, topic, ends, wanted, end)
        filled = tuple((before[one], ends[one]) for one in range(partitions))
        records_end = end = end + 1
    positions = LogPositions(
        end, [ends[one] for one in range(partitions)], records_end=records_end, filled=filled
    )
    return FoundLog(positions, records_end)
