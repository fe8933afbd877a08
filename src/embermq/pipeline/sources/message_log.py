"""The message log as a Spark data source, streaming and batch: `format("embermq_log")`.

Options: `path` (broker.db), `columns` (route or all), `start` (first offset of a new query), `end` (batch
only), `probe` (begin with the probe; batch: nothing else), `records_max`, `bytes_max`, `split_records`, `interval_ms`,
`idle_wait_ms`, `poll_ms`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from embermq.pipeline.schema import Columns, record_schema
from embermq.pipeline.sources.log_file import Counted, LogFile
from embermq.pipeline.sources.pace import Offer, Pace
from embermq.pipeline.sources.probe import (
    PROBE_OFFSET,
    behind_probe,
    carried,
    first_offsets,
    is_due,
    probe_rows,
)
from embermq.pipeline.sources.record_rows import read_rows

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


def offer(log: LogFile, position: int, limit: ReadLimit, bytes_max: int, counted: Counted) -> Offer:
    """What the log holds for a batch from `position` on."""
    end = log.end() or 0
    if end <= position or not isinstance(limit, ReadMaxRows):
        return Offer(has_data=end > position, is_full=True)
    is_full = end - position >= limit.max_rows or end_within(log, position, limit, bytes_max, counted) < end
    return Offer(has_data=True, is_full=is_full)


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
            lambda: offer(self._log, position, limit, self._bytes_max, self._counted)
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
