"""The rows of the pipeline: every field of a log record as a column, in one place (version: see `formats.log_record`).

A row stands for `span` offsets from `offset` on: 1 for a record, more where the stamps alone of the embedded log are
asked for and records have none. A row with `error` set is something that could not be understood: then `body` holds the
raw bytes, and the columns of the record are null.
"""

from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

Columns = Literal["route", "traffic", "all"]
"""What a query needs: the stamps, the head without texts, or every field."""

PARTITION = 0
"""The embedded log has one partition."""

MISSING = "missing offsets"
"""How the error of a range begins that the log does not hold any more; such a row has no body."""

COPY = "a copy of another slot's record"
"""The error of a record that another slot of the cluster has in its log, and counts there; such a row has no body."""

RECEIPTS = -1
"""Stands in `partition` for the table of delivery receipts."""

STAMP = StructType(
    [
        StructField("log", StringType()),
        StructField("generation", LongType()),
        StructField("qos", IntegerType()),
        StructField("retain_as_published", BooleanType()),
        StructField("subscription_identifiers", ArrayType(LongType())),
    ]
)
USER_PROPERTY = StructType([StructField("name", StringType()), StructField("value", StringType())])
ORIGIN = StructType([StructField("generation", LongType()), StructField("packet_id", IntegerType())])
UNKNOWN_FIELD = StructType(
    [
        StructField("tag", IntegerType()),  # on the embedded log
        StructField("value", BinaryType()),
        StructField("name", StringType()),  # of a header, on Kafka
    ]
)

_RECORD: dict[str, DataType] = {
    "partition": IntegerType(),
    "offset": LongType(),
    "span": LongType(),
    "accepted_at": TimestampType(),
    "topic": StringType(),
    "root": StringType(),
    "queue": StringType(),  # the durable queue, null for all other topics
    "qos": IntegerType(),
    "retain": BooleanType(),
    "publisher": StringType(),
    "version": IntegerType(),
    "expires_at": TimestampType(),
    "payload_bytes": LongType(),
    "payload_format_indicator": IntegerType(),
    "message_expiry_interval": LongType(),
    "content_type": StringType(),
    "response_topic": StringType(),
    "correlation_data": BinaryType(),
    "user_properties": ArrayType(USER_PROPERTY),
    "stamps": ArrayType(STAMP),
    "origin": ORIGIN,
    "payload": BinaryType(),
    "unknown_fields": ArrayType(UNKNOWN_FIELD),
    "error": StringType(),
    "body": BinaryType(),
}
_POSITION = ("partition", "offset", "span")
_NAMES: dict[Columns, tuple[str, ...]] = {
    "route": (*_POSITION, "stamps", "error", "body"),
    "traffic": (*_POSITION, "accepted_at", "root", "queue", "qos", "payload_bytes", "error"),
    "all": tuple(_RECORD),
}

_LETTER: dict[str, DataType] = {
    "sequence": LongType(),
    "id": StringType(),
    "message_id": StringType(),
    "queue": StringType(),
    "group": StringType(),
    "reason": StringType(),
    "deliveries": IntegerType(),
    "failures": IntegerType(),
    "last_error": StringType(),
    "first_delivered_at": TimestampType(),
    "moved_at": TimestampType(),
    "key": StringType(),
}
_OF_MESSAGE = (
    "topic",
    "accepted_at",
    "qos",
    "publisher",
    "version",
    "payload_bytes",
    "content_type",
    "response_topic",
    "correlation_data",
    "user_properties",
    "payload",
    "error",
)


def record_schema(columns: Columns = "all") -> StructType:
    """The rows of the message log source with the columns that a query needs."""
    return StructType([StructField(name, _RECORD[name], name not in _POSITION) for name in _NAMES[columns]])


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Without a task: rows of Python's, also none, are made by a Python process for each task slot."""
    columns = (F.lit(None).cast(field.dataType).alias(field.name) for field in schema)
    return spark.range(0).select(*columns)


def letter_schema(*, with_messages: bool) -> StructType:
    """The rows of the source of dead letters: `sequence` and `id` are those in the dead-letter queue, `message_id` the
    id in `queue`, `group` "" when none had failed it. `with_messages`: the columns of their records beside them."""
    ours = [StructField(name, kind) for name, kind in _LETTER.items()]
    return StructType(ours + [StructField(name, _RECORD[name]) for name in _OF_MESSAGE if with_messages])


def traffic_schema() -> StructType:
    """The rows of the traffic source: heads of records, and samples of delivery latency beside them.

    A sample has `latency_us` and `client_type`, partition RECEIPTS, and the number of its batch as `offset`.
    """
    samples = [StructField("latency_us", LongType()), StructField("client_type", IntegerType())]
    return StructType([*record_schema("traffic").fields, *samples])
