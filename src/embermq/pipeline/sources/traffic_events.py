"""What the traffic windows are made of, as one Spark data source: `format("embermq_traffic")`.

Heads of records and delivery receipts come through one source, so that one query, one process and one transaction
serve both. Options as in `message_log`, and `receipts_start`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from embermq.pipeline.schema import traffic_schema
from embermq.pipeline.sources.log_file import LogFile
from embermq.pipeline.sources.message_log import LogRange, LogRanges, end_within, offer
from embermq.pipeline.sources.pace import Offer, Pace
from embermq.pipeline.sources.probe import behind_probe, carried, first_offsets, is_due
from embermq.pipeline.sources.receipts import ReceiptFile

if TYPE_CHECKING:
    from pyarrow import RecordBatch

FORMAT = "embermq_traffic"
_LOG = "0"
_RECEIPTS = "receipts"
_RECEIPT_BATCHES_MAX = 1_000


class ReceiptRange(InputPartition):
    """Receipt batches [start, end), for one task."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end


class TrafficSource(DataSource):
    """Reads broker.db; streaming only."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return traffic_schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _TrafficReader(dict(self.options), schema)


class _TrafficReader(DataSourceStreamReader):
    """Offsets are {"0": next offset, "receipts": next batch of receipts}."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._ranges = LogRanges(options, schema)
        self._schema = schema
        self._path = Path(options["path"])
        self._start = {_LOG: int(options["start"]), _RECEIPTS: int(options["receipts_start"])}
        self._records_max = int(options["records_max"])
        self._bytes_max = int(options["bytes_max"])
        self._pace = Pace(options)
        self._log = LogFile(self._path)
        self._broker = Path(options["broker"])
        self._receipts = ReceiptFile(self._broker)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return first_offsets(self._start, probes=self._ranges.probes)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._records_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of the next batch; waits a while for one that is worth it."""
        if is_due(start):
            return behind_probe(start)

        def look() -> Offer:
            records = offer(self._log, start[_LOG], limit, self._bytes_max)
            receipts = self._receipts.end() - start[_RECEIPTS]
            return Offer(
                has_data=records.has_data or receipts > 0,
                is_full=(records.has_data and records.is_full) or receipts >= _RECEIPT_BATCHES_MAX,
            )

        if not self._pace.wait(look):
            return start
        receipts = self._receipts.end()
        if not isinstance(limit, ReadAllAvailable):
            receipts = min(receipts, start[_RECEIPTS] + _RECEIPT_BATCHES_MAX)
        return {
            _LOG: end_within(self._log, start[_LOG], limit, self._bytes_max),
            _RECEIPTS: max(start[_RECEIPTS], receipts),
            **carried(start),
        }

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        if is_due(start):
            return self._ranges.probe()
        ranges = self._ranges.cut(self._log, start[_LOG], end[_LOG])
        if end[_RECEIPTS] > start[_RECEIPTS]:
            ranges.append(ReceiptRange(start[_RECEIPTS], end[_RECEIPTS]))
        return ranges

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        if isinstance(partition, LogRange):
            return self._ranges.rows(partition)
        assert isinstance(partition, ReceiptRange)
        return self._samples(partition)

    def _samples(self, piece: ReceiptRange) -> "Iterator[RecordBatch]":
        receipts = ReceiptFile(self._broker)
        try:
            yield from receipts.rows(piece.start, piece.end, to_arrow_schema(self._schema, timezone="UTC"))
        finally:
            receipts.close()

    def stop(self) -> None:
        self._log.close()
        self._receipts.close()

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the reader without its open files."""
        return {**self.__dict__, "_log": None, "_receipts": None}
