"""The streaming queries by name, and what Spark must know before any of them starts."""

from pyspark.sql import SparkSession

from embermq.pipeline.jobs.archive import Archive
from embermq.pipeline.jobs.dispatch import Dispatch
from embermq.pipeline.jobs.lake import LakeFeed
from embermq.pipeline.jobs.stream_job import StreamJob
from embermq.pipeline.jobs.traffic import Traffic
from embermq.pipeline.settings import QUERIES, PipelineSettings, QueryName
from embermq.pipeline.sources.message_log import MessageLogSource
from embermq.pipeline.sources.traffic_events import TrafficSource

_JOBS: dict[QueryName, type[StreamJob]] = {
    "dispatch": Dispatch,
    "archive": Archive,
    "lake": LakeFeed,
    "traffic": Traffic,
}


def chosen_jobs(settings: PipelineSettings) -> list[type[StreamJob]]:
    """The queries that the settings name, dispatch first because clients wait for it."""
    return [_JOBS[name] for name in QUERIES if name in settings.queries]


def register_sources(spark: SparkSession) -> None:
    """Make the formats of `sources` known to a session."""
    spark.dataSource.register(MessageLogSource)
    spark.dataSource.register(TrafficSource)
