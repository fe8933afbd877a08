"""The message log as a Spark data source, streaming and batch: `format("embermq_log")`.

Options: `path` (broker.db), `columns` (route or all), `start` (first offset of a new query), `end` (batch
only), `probe` (begin with the probe; batch: nothing else), `records_max`, `bytes_max`, `split_records`, `interval_ms`,
`rest_ms` (longer for a batch in which no record has stamps), `idle_wait_ms`, `poll_ms`.

When a source lets the next batch begin. Not Spark's trigger: that would hold a backlog of many full batches to one
batch an interval.

A record that goes through a query before all others, so that a query is not said to run before it does. It is read,
decoded, transformed and given to the sink like any other, by the same processes. Its offset is below every position
that a sink can have, so that the sink skips it as it skips repeats. In the offsets of a source `probe` is 0 before it
and 1 behind it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from msgspec import Struct
from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from embermq.formats.log_record import Stamp, encode_record, encode_stamps, may_have_stamps
from embermq.model.message import Message
from embermq.mqtt.wire.properties import Properties
from embermq.pipeline.schema import Columns, record_schema
from embermq.pipeline.sources.log_file import Counted, LogFile
from embermq.pipeline.sources.record_rows import read_rows, rows_for

_COARSE_POLL_S = 0.25
_POLLS_AN_INTERVAL = 20


class Offer(Struct, frozen=True):
    """What a source could give now. `is_full`: no more would fit into one batch, so waiting gains nothing. `can_wait`:
    nobody waits for any of it."""

    has_data: bool
    is_full: bool
    can_wait: bool = False


class Pace:
    """A batch begins `interval_ms` after the one before, at once when a full one waits, never without data; one
    that can wait begins `rest_ms` later."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._interval_s = int(options.get("interval_ms", 0)) / 1000
        self._rest_s = int(options.get("rest_ms", 0)) / 1000
        self._idle_wait_s = int(options.get("idle_wait_ms", 1_000)) / 1000
        poll_s = int(options.get("poll_ms", 10)) / 1000
        self._poll_s = max(poll_s, min(_COARSE_POLL_S, self._interval_s / _POLLS_AN_INTERVAL))
        self._due_s = float("-inf")

    def wait(self, look: Callable[[], Offer]) -> bool:
        """Whether a batch may begin; False after `idle_wait_ms`, so that Spark can look round."""
        deadline_s = time.monotonic() + self._idle_wait_s
        while True:
            now_s = time.monotonic()
            offer = look()
            due_s = self._due_s + (self._rest_s if offer.can_wait else 0)
            if offer.has_data and (offer.is_full or now_s >= due_s):
                self._due_s = now_s + self._interval_s
                return True
            if now_s >= deadline_s:
                return False
            wake_s = deadline_s if not offer.has_data else max(now_s, min(deadline_s, due_s))
            time.sleep(min(self._poll_s, max(0.001, wake_s - now_s)))


PROBE_OFFSET = -1
_NAME = "probe"
_ACCEPTED_MS = 1_750_000_000_000
_QOS = 1
_MQTT_5 = 5
_FRAME = encode_record(
    Message(
        _NAME,
        b'{"probe": true}',
        _QOS,
        False,
        _NAME,
        _MQTT_5,
        _ACCEPTED_MS,
        0,
        Properties(user_properties=((_NAME, _NAME),)),
    ),
    encode_stamps((Stamp(_NAME, 0, _QOS),)),
)

Offsets = dict[str, int]


def first_offsets(start: Offsets, *, probes: bool) -> Offsets:
    """Where a query begins; `probes`: with the probe."""
    return {**start, _NAME: 0} if probes else start


def is_due(start: Offsets) -> bool:
    """Whether the next batch is the probe alone."""
    return start.get(_NAME) == 0


def behind_probe(start: Offsets) -> Offsets:
    """The end of the batch that is the probe alone."""
    return {**start, _NAME: 1}


def carried(start: Offsets) -> Offsets:
    """What the end of a later batch has of the probe."""
    return {_NAME: start[_NAME]} if _NAME in start else {}


def probe_rows(schema: pa.Schema) -> "Iterator[RecordBatch]":
    """The probe as the sources give records."""
    rows = rows_for(schema)
    rows.add((PROBE_OFFSET, _FRAME))
    yield rows.take()


FORMAT = "embermq_log"
_PARTITION = "0"
_PIECES = 2
UNBOUNDED = 1 << 62


class LogRange(InputPartition):
    """Offsets [start, end) of the one partition of the embedded log, for one task."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end


class MessageLogSource(DataSource):
    """Reads broker.db; see the module for the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return record_schema(cast(Columns, self.options.get("columns", "all")))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _LogReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _LogStreamReader(dict(self.options), schema)


def end_within(log: LogFile, position: int, limit: ReadLimit, bytes_max: int, counted: Counted) -> int:
    """Where a batch from `position` ends: without a limit at the end of the log, else also bounded in bytes."""
    if isinstance(limit, ReadMaxRows):
        return log.bounded_end(position, limit.max_rows, bytes_max, counted)
    return max(position, log.end() or 0)


class Stamped:
    """Whether the log has stamps from a position on: asked again, only what has come since is looked at."""

    def __init__(self) -> None:
        self._at = 0
        self._found = -1
        """An offset at or behind the last record that may have some."""

    def since(self, log: LogFile, position: int) -> bool:
        if self._found >= position:
            return True
        self._at = max(self._at, position)
        for frame in log.batches(self._at, UNBOUNDED):
            self._at = frame.base + frame.count
            if may_have_stamps(frame.body):
                self._found = self._at - 1
                return True
        return False


def offer(
    log: LogFile,
    position: int,
    limit: ReadLimit,
    bytes_max: int,
    counted: Counted,
    *,
    stamped: Stamped | None,
) -> Offer:
    """What the log holds for a batch from `position` on."""
    end = log.end() or 0
    if end <= position or not isinstance(limit, ReadMaxRows):
        return Offer(has_data=end > position, is_full=True)
    is_full = end - position >= limit.max_rows or end_within(log, position, limit, bytes_max, counted) < end
    can_wait = not is_full and stamped is not None and not stamped.since(log, position)
    return Offer(has_data=True, is_full=is_full, can_wait=can_wait)


class LogRanges:
    """What the readers share: the options, cutting a range for the tasks, reading one cut."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._path = Path(options["path"])
        self.probes = "probe" in options
        self._split_records = int(options.get("split_records", 10_000))
        self._schema = schema

    def probe(self) -> list[InputPartition]:
        return [LogRange(PROBE_OFFSET, 0)]

    def cut(self, log: LogFile, start: int, end: int) -> list[InputPartition]:
        if end <= start:
            return []
        pieces = _PIECES if end - start >= 2 * self._split_records else 1
        ranges = log.split(start, end, pieces) if pieces > 1 else [(start, end)]
        return [LogRange(*piece) for piece in ranges]

    def rows(self, piece: LogRange) -> "Iterator[RecordBatch]":
        schema = to_arrow_schema(self._schema, timezone="UTC")
        if piece.start == PROBE_OFFSET:
            yield from probe_rows(schema)
            return
        log = LogFile(self._path)
        try:
            yield from read_rows(log, piece.start, piece.end, schema)
        finally:
            log.close()


class _LogReader(DataSourceReader):
    """A fixed range, for jobs: `start` to `end`, by default what the log holds when the job is planned."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._ranges = LogRanges(options, schema)
        self._path = Path(options["path"])
        self._probes = "probe" in options
        self._start = int(options.get("start", -1))
        self._end = int(options.get("end", -1))

    def partitions(self) -> Sequence[InputPartition]:
        if self._probes:
            return self._ranges.probe()
        log = LogFile(self._path)
        try:
            bounds = log.bounds()
            if bounds is None:
                return [LogRange(0, 0)]
            start = bounds.first if self._start < 0 else self._start
            end = bounds.end if self._end < 0 else min(self._end, bounds.end)
            return self._ranges.cut(log, start, end) or [LogRange(0, 0)]
        finally:
            log.close()

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        return self._ranges.rows(cast(LogRange, partition))


class _LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are {"0": next offset}. Runs in a process of its own beside the JVM, one for each query.

    Looking for new records happens here and not in Spark's trigger loop: a look costs microseconds here and
    milliseconds of CPU there, so an idle query is cheap and a new record is seen at once.
    """

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._ranges = LogRanges(options, schema)
        self._log = LogFile(Path(options["path"]))
        self._start = int(options.get("start", -1))
        self._records_max = int(options.get("records_max", 50_000))
        self._bytes_max = int(options.get("bytes_max", 32 * 1024 * 1024))
        self._pace = Pace(options)
        self._counted = Counted()
        self._stamped = Stamped() if "rest_ms" in options else None
        self._ceiling = UNBOUNDED

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        start = self._start
        if start < 0:
            bounds = self._log.bounds()
            start = bounds.first if bounds else 0
        return first_offsets({_PARTITION: start}, probes=self._ranges.probes)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._records_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of the next batch; waits a while for one that is worth it."""
        if is_due(start):
            return behind_probe(start)
        position = start[_PARTITION]
        if self._ceiling == UNBOUNDED and not self._pace.wait(
            lambda: offer(self._log, position, limit, self._bytes_max, self._counted, stamped=self._stamped)
        ):
            return start
        end = end_within(self._log, position, limit, self._bytes_max, self._counted)
        return {_PARTITION: max(position, min(end, self._ceiling)), **carried(start)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on the log ends where it ends now."""
        bounds = self._log.bounds()
        self._ceiling = bounds.end if bounds else 0

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        if is_due(start):
            return self._ranges.probe()
        return self._ranges.cut(self._log, start[_PARTITION], end[_PARTITION])

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        return self._ranges.rows(cast(LogRange, partition))

    def stop(self) -> None:
        self._log.close()

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the reader without its open file."""
        return {**self.__dict__, "_log": None}
