"""traffic: message log and delivery receipts -> windows of event time."""

from pyspark.sql import DataFrame, SparkSession

from embermq.pipeline.jobs.stream_job import StreamJob
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.traffic_windows import WATERMARK_S, TrafficWindows
from embermq.pipeline.sources import traffic_events

_MS_PER_HOUR = 3_600_000


class Traffic(StreamJob):
    """Rates, sizes and latencies by first topic level."""

    name = "traffic"

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        super().__init__(settings, places)
        self._sink = TrafficWindows(places.traffic, settings.traffic_window_s, WATERMARK_S)
        self.file = self._sink.file

    @property
    def trigger_ms(self) -> int:
        return self.settings.traffic_trigger_ms

    def read(self, spark: SparkSession, start: int) -> DataFrame:
        options = {**self.source_options(start), "receipts_start": str(self._sink.position().receipts_next)}
        return spark.readStream.format(traffic_events.FORMAT).options(**options).load()

    def write(self, rows: DataFrame) -> int:
        return self._sink.write(rows)

    def keep_up(self, now_ms: int) -> None:
        self._sink.prune(now_ms - self.settings.retention_hours * _MS_PER_HOUR, self.settings.prune_rows_max)
