"""Traffic of a cluster with several slots: one Delta Lake table beside the lake, of partial sums.

A batch of a slot's log, or of its receipts, adds one row to a window, and whoever reads adds the rows up: so drivers of
all slots write side by side, and a window is one number. Latencies are in buckets, which add up too.
"""

from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, StructField, StructType

from embermq.pipeline.log_look import Bounds
from embermq.pipeline.places import Places
from embermq.pipeline.schema import RECEIPTS
from embermq.pipeline.settings import DriverSettings, PipelineSettings
from embermq.pipeline.sinks.delta_table import TableShape
from embermq.pipeline.sinks.lake import LEDGER, lake_place
from embermq.pipeline.sinks.positioned_table import Covered, PositionedTable
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.sinks.traffic_windows import READER, WATERMARK_S, receipts_begin
from embermq.pipeline.transforms.traffic import traffic_windows

_SHAPE = TableShape(writer="embermq-traffic", day="date", clustered_by=("date", "window_ms"))
_KINDS = {
    "log_id": LongType(),
    "slot": IntegerType(),
    "date": DateType(),
    "window_ms": LongType(),
    "length_ms": LongType(),
    "root": StringType(),
    "queue": StringType(),
    "client_type": IntegerType(),
    "bucket": IntegerType(),
    "messages": LongType(),
    "payload_bytes": LongType(),
    "qos1": LongType(),
    "qos2": LongType(),
    "late": LongType(),
    "deliveries": LongType(),
    "max_us": LongType(),
    "newest_ms": LongType(),
}
_COLUMNS = StructType([StructField(name, kind) for name, kind in _KINDS.items()])


def traffic_place(settings: PipelineSettings, places: Places) -> str:
    """Where the table is: beside the lake, since a folder within it would be the lake's own."""
    return f"{lake_place(settings, places).rstrip('/')}-traffic"


class TrafficTable(PositionedTable):
    """Takes rows of `traffic_schema`. Partitions of receipts are RECEIPTS and below, as they are in these."""

    def __init__(self, settings: DriverSettings, places: Places, slot: int) -> None:
        file = SinkFile(places.traffic, READER, LEDGER)
        super().__init__(
            traffic_place(settings, places),
            _SHAPE,
            _COLUMNS,
            file=file,
            lock=places.traffic_lock,
            shared=True,
        )
        self._slot = slot
        self._window_s = settings.traffic_window_s
        self._watermark_ms = 0

    def open(self, spark: SparkSession, log_id: int, partitions: Iterable[int] | None = None) -> None:
        super().open(spark, log_id, partitions)
        newest = self.table.read().where(F.col("log_id") == log_id).agg(F.max("newest_ms")).first()
        assert newest is not None, "an aggregate has a row"
        self._watermark_ms = 0
        self._saw(newest[0])

    def receipts_done(self) -> dict[int, int]:
        """Below these all receipts are in the table; of partitions that have been asked for since `open`."""
        return {RECEIPTS - number: at for number, at in self._done.items() if number <= RECEIPTS}

    def begin_receipts(self, bounds: Mapping[int, Bounds]) -> dict[int, int]:
        """Where the receipts, of which these are there, are read from. Those that end before what is in the table were
        made anew."""
        unknown = [RECEIPTS - number for number in bounds if RECEIPTS - number not in self._done]
        self._done |= dict.fromkeys(unknown, 0) | self.table.positions(self._log_id, unknown)
        for number, found in bounds.items():
            if self._done[RECEIPTS - number] > found.end:
                self._done[RECEIPTS - number] = 0
        return receipts_begin(bounds, self.receipts_done())

    def _made(self, rows: DataFrame) -> DataFrame:
        windows = traffic_windows(rows, self._window_s, self._watermark_ms)
        return windows.where("window_ms IS NOT NULL").withColumns(
            {
                "slot": F.lit(self._slot),
                "date": F.to_date(F.timestamp_millis("window_ms")),
                "length_ms": F.lit(self._window_s * 1_000).cast("bigint"),
            }
        )

    def _is_late(self) -> Column:
        return F.unix_millis("accepted_at") < F.lit(self._watermark_ms)

    def _append(self, rows: DataFrame, one: Covered) -> None:
        super()._append(rows, one)
        if one.partition >= 0:
            self._saw(one.newest_ms)

    def _saw(self, newest_ms: int | None) -> None:
        if newest_ms is not None:
            self._watermark_ms = max(self._watermark_ms, newest_ms - WATERMARK_S * 1_000)
