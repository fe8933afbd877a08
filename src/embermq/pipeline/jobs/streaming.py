"""The queries by name, and what Spark must know before any of them starts."""

from pyspark.sql import SparkSession

from embermq.pipeline.jobs.bulk_parts import PARTS, BulkPart
from embermq.pipeline.jobs.dispatch import Dispatch
from embermq.pipeline.jobs.query_job import QueryJob
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sources.message_log import MessageLogSource


def chosen_jobs(settings: DriverSettings) -> list[type[QueryJob]]:
    """The streaming queries that the settings name."""
    if "dispatch" not in settings.queries:
        return []
    if settings.kafka is None:
        return [Dispatch]
    from embermq.pipeline.jobs.kafka_dispatch import KafkaDispatch  # its client is not in every installation

    return [KafkaDispatch]


def chosen_parts(settings: DriverSettings) -> list[type[BulkPart]]:
    """Who shares the reading of the log."""
    return [part for part in PARTS if part.name in settings.queries]


def register_sources(spark: SparkSession) -> None:
    """Make the formats of `sources` known to a session."""
    spark.dataSource.register(MessageLogSource)
