"""archive: message log -> message store."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from embermq.pipeline.jobs.stream_job import StreamJob
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.message_file import MessageFile
from embermq.pipeline.sinks.message_store import MessageStoreSink
from embermq.pipeline.transforms.archive import stored_messages

_MS_PER_HOUR = 3_600_000


class Archive(StreamJob):
    """Keeps every message for `retention_hours`."""

    name = "archive"

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        super().__init__(settings, places)
        self._sink = message_sink(settings, places)
        self.file = self._sink.file

    @property
    def trigger_ms(self) -> int:
        return self.settings.archive_trigger_ms

    def confirmed(self) -> int | None:
        self._sink.open()
        return self.file.position()

    def begin_at(self, offset: int) -> None:
        self._sink.begin_at(offset)

    def read(self, spark: SparkSession, start: int) -> DataFrame:
        return stored_messages(self.read_log(spark, start, "all"))

    def write(self, rows: DataFrame) -> int:
        return self._sink.write(rows)

    def keep_up(self, now_ms: int) -> None:
        self._sink.prune(now_ms - self.settings.retention_hours * _MS_PER_HOUR, self.settings.prune_rows_max)


def message_sink(settings: DriverSettings, places: Places) -> MessageStoreSink:
    """The message store that the settings name. The drivers of servers are loaded for a server alone."""
    return message_sinks(settings, places, places.broker)(None)


def message_sinks(
    settings: DriverSettings, places: Places, log: Path | Callable[[], int]
) -> Callable[[int | None], MessageStoreSink]:
    """Opens the store for a partition of a log in Kafka, or for the embedded one (None)."""
    if not settings.message_store:
        return partial(MessageFile, places.messages)
    from embermq.pipeline.sinks.message_server import MessageServer
    from embermq.pipeline.sinks.sql_server import sql_server

    server = sql_server(settings.message_store, settings.sql, settings.archive_timeout_s)
    return partial(MessageServer, server, places.archive, log)
