"""Ranges of a topic in Kafka as DataFrames, by Spark's batch source."""

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from embermq.pipeline.kafka_log import KafkaLog

CONSUMERS = "bulk"
"""What the name of their group ends with."""


def read_ranges(
    spark: SparkSession, kafka: KafkaLog, topic: str, begin: Mapping[int, int], end: Mapping[int, int]
) -> DataFrame | None:
    """Offsets [begin, end) of each partition, with headers. None for nothing: Spark takes no empty list."""
    numbers = [number for number, at in end.items() if at > begin[number]]
    if not numbers:
        return None
    options = kafka.spark_options() | {
        "assign": json.dumps({topic: numbers}),
        "startingOffsets": _offsets(topic, begin, numbers),
        "endingOffsets": _offsets(topic, end, numbers),
        "includeHeaders": "true",
        # The log is trimmed behind what every query has published: what is gone all the same is counted, not
        # a reason to stop for ever.
        "failOnDataLoss": "false",
        # Executors keep consumers by this name. With one of each batch's own, those of the batches before would
        # lie about for minutes, with what they have read ahead. No group has members, and none commits.
        "kafka.group.id": f"{kafka.prefix}-{CONSUMERS}",
    }
    return spark.read.format("kafka").options(**options).load()


def _offsets(topic: str, positions: Mapping[int, int], numbers: list[int]) -> str:
    return json.dumps({topic: {str(number): positions[number] for number in numbers}})
