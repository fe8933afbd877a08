"""lake: message log -> Delta Lake table."""

from contextlib import closing

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from embermq.pipeline.connector import lake_jars
from embermq.pipeline.jobs.lake_upkeep import LakeUpkeep
from embermq.pipeline.jobs.stream_job import StreamJob
from embermq.pipeline.places import Places
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.lake import Lake, lake_place
from embermq.pipeline.sources.log_file import BrokerFile
from embermq.pipeline.transforms.lake import lake_rows


class LakeFeed(StreamJob):
    """Long batches, so that files are few."""

    name = "lake"

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        super().__init__(settings, places)
        self._sink = Lake(lake_place(settings, places), places)
        self._upkeep = LakeUpkeep(settings.lake_retention_days)
        self.file = self._sink.file

    @property
    def trigger_ms(self) -> int:
        return self.settings.lake_trigger_ms

    def start(self, spark: SparkSession) -> StreamingQuery:
        lake_jars(self.settings)  # says what is missing, and how to get it
        with self._lock, closing(BrokerFile(self.places.broker)) as broker:
            self._sink.open(spark, broker.log_identity())
        return super().start(spark)

    def begin_at(self, offset: int) -> None:
        self._sink.begin_at({PARTITION: offset})

    def read(self, spark: SparkSession, start: int) -> DataFrame:
        return lake_rows(self.read_log(spark, start, "all"))

    def write(self, rows: DataFrame) -> int:
        return self._sink.write(rows)

    def keep_up(self, now_ms: int) -> None:
        self._upkeep.look(self._sink, now_ms)
