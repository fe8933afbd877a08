"""dispatch: message log -> application logs."""

from contextlib import closing

from pyspark.sql import DataFrame, SparkSession

from embermq.pipeline.jobs.stream_job import StreamJob
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.application_logs import ApplicationLogSink
from embermq.pipeline.sources.log_file import LogFile
from embermq.pipeline.transforms.dispatch import application_entries


class Dispatch(StreamJob):
    """The query that APPLICATION clients wait for; its latency is the pipeline's latency."""

    name = "dispatch"

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        super().__init__(settings, places)
        self._sink = ApplicationLogSink(places.applications)
        self.file = self._sink.file
        self._is_owed = not settings.has_waited

    @property
    def trigger_ms(self) -> int:
        return self.settings.dispatch_trigger_ms

    def confirmed(self) -> int | None:
        position = super().confirmed()
        is_owed, self._is_owed = (
            self._is_owed,
            True,
        )  # somebody is there from now on, also when this query begins anew
        if position is not None and not is_owed:
            with closing(LogFile(self.places.log)) as log:
                bounds = log.bounds()
            if bounds is not None and bounds.first > position:
                with self.file.transaction():
                    self.file.move_to(bounds.first)
                return bounds.first
        return position

    def source_options(self, start: int) -> dict[str, str]:
        rest_ms = self.settings.dispatch_rest_ms - self.trigger_ms
        return super().source_options(start) | {"rest_ms": str(max(0, rest_ms))}

    def read(self, spark: SparkSession, start: int) -> DataFrame:
        return application_entries(self.read_log(spark, start, "route"))

    def write(self, rows: DataFrame) -> int:
        return self._sink.write(rows)

    def keep_up(self, now_ms: int) -> None:
        self._sink.trim(self.places, self.settings.prune_rows_max)
