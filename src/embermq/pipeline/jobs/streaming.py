"""The queries by name, and what Spark must know before any of them starts."""

from pyspark.sql import SparkSession

from embermq.pipeline.jobs.bulk_parts import PARTS, BulkPart
from embermq.pipeline.jobs.dispatch import Dispatch
from embermq.pipeline.jobs.query_job import QueryJob
from embermq.pipeline.settings import QUERIES, DriverSettings, QueryName
from embermq.pipeline.sources.message_log import MessageLogSource


def chosen_jobs(settings: DriverSettings) -> list[type[QueryJob]]:
    """The streaming queries that the settings name, dispatch first because clients wait for it."""
    jobs: dict[QueryName, type[QueryJob]] = (
        {"dispatch": Dispatch} if settings.kafka is None else _kafka_jobs()
    )
    return [jobs[name] for name in QUERIES if name in settings.queries and name in jobs]


def chosen_parts(settings: DriverSettings) -> list[type[BulkPart]]:
    """Who shares the reading of an embedded log."""
    return [part for part in PARTS if settings.kafka is None and part.name in settings.queries]


def _kafka_jobs() -> dict[QueryName, type[QueryJob]]:
    """Loaded for a log in Kafka alone: the client is not there in every installation."""
    from embermq.pipeline.jobs.kafka_dispatch import KafkaDispatch
    from embermq.pipeline.jobs.kafka_sinks import KafkaArchive, KafkaLake, KafkaTraffic

    return {"dispatch": KafkaDispatch, "archive": KafkaArchive, "lake": KafkaLake, "traffic": KafkaTraffic}


def register_sources(spark: SparkSession) -> None:
    """Make the formats of `sources` known to a session."""
    spark.dataSource.register(MessageLogSource)
