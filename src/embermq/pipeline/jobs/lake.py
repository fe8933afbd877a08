"""lake: message log -> Parquet by date and first topic level."""

from pyspark.sql import DataFrame, SparkSession

from embermq.pipeline.jobs.stream_job import StreamJob
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.lake import Lake
from embermq.pipeline.transforms.lake import lake_rows


class LakeFeed(StreamJob):
    """Long batches, so that files are few."""

    name = "lake"

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        super().__init__(settings, places)
        self._sink = Lake(places.lake, places.lake_ledger, settings.lake_roots_max)
        self.file = self._sink.file

    @property
    def trigger_ms(self) -> int:
        return self.settings.lake_trigger_ms

    def read(self, spark: SparkSession, start: int) -> DataFrame:
        with self._lock:
            self._sink.recover()
        return lake_rows(self.read_log(spark, start, "all"))

    def write(self, rows: DataFrame) -> int:
        return self._sink.write(rows)

    def keep_up(self, now_ms: int) -> None:
        """Nothing grows here but the lake itself, which is kept."""
