"""archive: message log -> message store."""

from pyspark.sql import DataFrame, SparkSession

from embermq.pipeline.jobs.stream_job import StreamJob
from embermq.pipeline.places import Places
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.sinks.message_store import MessageStoreSink
from embermq.pipeline.transforms.archive import stored_messages

_MS_PER_HOUR = 3_600_000


class Archive(StreamJob):
    """Keeps every message for `archive_retention_hours`."""

    name = "archive"

    def __init__(self, settings: PipelineSettings, places: Places) -> None:
        super().__init__(settings, places)
        self._sink = MessageStoreSink(places.messages)
        self.file = self._sink.file

    @property
    def trigger_ms(self) -> int:
        return self.settings.archive_trigger_ms

    def read(self, spark: SparkSession, start: int) -> DataFrame:
        return stored_messages(self.read_log(spark, start, "all"))

    def write(self, rows: DataFrame) -> int:
        return self._sink.write(rows)

    def keep_up(self, now_ms: int) -> None:
        self._sink.prune(
            now_ms - self.settings.archive_retention_hours * _MS_PER_HOUR, self.settings.prune_rows_max
        )
