"""Records in Kafka as the rows of `pipeline.schema`: what archive, lake and traffic are made of, whichever log it is.

Native expressions only. A row's position is its partition and offset in Kafka; its `body`, when it cannot be
understood, is the value.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from embermq.formats.log_record import FIELD_SLOT
from embermq.pipeline.schema import COPY, record_schema
from embermq.pipeline.transforms.kafka_headers import (
    SINGLE_HEADERS,
    has_header,
    header,
    header_number,
    header_text,
    origin_parts,
    record_problem,
    with_headers,
)
from embermq.pipeline.transforms.kafka_properties import property_block, property_walk
from embermq.queues.names import QUEUE_PREFIX

_TAGGED = r"^u(0|[1-9][0-9]{0,2})\z"
_COPY_HEADER = f"u{FIELD_SLOT}"
_POSITION = ("partition", "offset", "span", "error", "body")


def records_from_kafka(rows: DataFrame, log_prefix: str, *, has_copies: bool = False) -> DataFrame:
    """Rows of `record_schema` of the columns of Spark's Kafka source with headers.

    `log_prefix` is what the names of application logs begin with. A record that cannot be understood has `error` set
    and nothing else but its position and body. With `has_copies` copies of other slots' records have their position and
    `error` COPY alone.
    """
    schema = record_schema()
    known = with_headers(rows, "partition", "offset", "key", "value", "headers")
    checked = known.withColumn("block", property_block(header("p"))).withColumn("walk", property_walk())
    problem = F.coalesce(record_problem(log_prefix), _property_problem())
    if has_copies:
        problem = F.when(_is_copy(), COPY).otherwise(problem)
    checked = checked.withColumn("problem", problem)
    values = _values()
    return checked.select(*(_column(name, values[name], schema) for name in schema.names))


def _is_copy() -> Column:
    return F.coalesce(F.array_contains(F.col("headers.key"), _COPY_HEADER), F.lit(False))


def _property_problem() -> Column:
    unreadable = F.lit("header p cannot be understood: its length is not that of its properties")
    return F.when(has_header("p") & F.col("block").isNull(), unreadable).otherwise(
        F.concat(F.lit("header p cannot be understood: "), F.col("walk.error"))
    )


def _column(name: str, value: Column, schema: StructType) -> Column:
    value = value.cast(schema[name].dataType)
    if name not in _POSITION:
        value = F.when(F.col("problem").isNull(), value)
    return value.alias(name)


def _stamp(text: Column) -> Column:
    parts = F.split(text, ";")
    flags = F.get(parts, F.lit(2)).try_cast("int")
    identifiers = F.filter(F.split(F.get(parts, F.lit(3)), ","), lambda number: number != "")
    return F.struct(
        F.get(parts, F.lit(0)).alias("log"),
        F.get(parts, F.lit(1)).try_cast("bigint").alias("generation"),
        flags.bitwiseAND(F.lit(3)).alias("qos"),
        (flags >= 4).alias("retain_as_published"),
        F.transform(identifiers, lambda number: number.try_cast("bigint")).alias("subscription_identifiers"),
    )


def _unknown(one: Column) -> Column:
    """A header `u<tag>` is a field of the embedded log; any other one has a name."""
    name = one["key"]
    tag = F.when(name.rlike(_TAGGED), F.substring(name, 2, 3).try_cast("int"))
    return F.struct(tag.alias("tag"), one["value"].alias("value"), F.when(tag.isNull(), name).alias("name"))


def _time(name: str) -> Column:
    return F.timestamp_millis(header_number(name))


def _values() -> dict[str, Column]:
    flags = header_number("f").cast("int")
    topic = F.col("key").cast("string")
    payload = F.col("value")
    return {
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "span": F.lit(1),
        "accepted_at": _time("t"),
        "topic": topic,
        "root": F.substring_index(topic, "/", 1),
        "queue": F.when(topic.startswith(QUEUE_PREFIX), F.substr(topic, F.lit(len(QUEUE_PREFIX) + 1))),
        "qos": flags.bitwiseAND(F.lit(3)),
        "retain": flags.bitwiseAND(F.lit(4)) != 0,
        "publisher": header_text("c"),
        "version": F.shiftright(flags, 3).bitwiseAND(F.lit(7)),
        "expires_at": F.when(header_number("x") > 0, _time("x")),
        "payload_bytes": F.octet_length(payload),
        "payload_format_indicator": F.col("walk.indicator"),
        "message_expiry_interval": F.col("walk.expiry"),
        "content_type": F.col("walk.content_type"),
        "response_topic": F.col("walk.response_topic"),
        "correlation_data": F.col("walk.correlation"),
        "user_properties": F.coalesce(F.col("walk.pairs"), F.array()),
        "stamps": F.transform("stamp_texts", _stamp),
        "origin": origin_parts(),
        "payload": payload,
        "unknown_fields": F.transform(
            F.filter(F.col("headers"), lambda one: ~one["key"].isin(*SINGLE_HEADERS, "a")), _unknown
        ),
        "error": F.col("problem"),
        "body": F.when(F.col("problem") != COPY, F.coalesce(payload, F.lit(b""))),
    }
