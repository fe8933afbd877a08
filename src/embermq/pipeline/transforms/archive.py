"""From records to rows of the message store and of the lake."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from embermq.pipeline.schema import record_schema

PROPERTIES = (
    "payload_format_indicator",
    "message_expiry_interval",
    "content_type",
    "response_topic",
    "correlation_data",
)


def stored_messages(records: DataFrame) -> DataFrame:
    """One row a record, in the columns of messages.db, with span and error beside them.

    Times are Unix milliseconds. A row with `error` set has no message.
    """
    return records.select(
        "offset",
        "span",
        "error",
        "partition",
        "topic",
        F.unix_millis("accepted_at").alias("accepted_ms"),
        "qos",
        F.col("retain").cast("int").alias("retain"),
        "publisher",
        "version",
        F.unix_millis("expires_at").alias("expires_ms"),
        properties_json().alias("properties"),
        "payload",
    )


def properties_json() -> Column:
    """The MQTT 5 properties of a record as a JSON object, null when there are none."""
    pairs = F.when(F.size("user_properties") > 0, F.col("user_properties")).alias("user_properties")
    return F.nullif(F.to_json(F.struct(*PROPERTIES, pairs)), F.lit("{}"))


_FIRST = ("partition", "offset", "date", "root", "accepted_at")
_NOT_STORED = ("queue", "span", "error", "body")


def lake_schema() -> StructType:
    """The columns of the lake: `log_id` says which life of a log positions are of, `date` is of `accepted_at` (UTC),
    `root` the first topic level, `payload_json` the payload when it is JSON; then every field of the record."""
    kinds = {field.name: field.dataType for field in record_schema("all") if field.name not in _NOT_STORED}
    kinds |= {"date": DateType(), "payload_json": StringType()}
    ordered = {name: kinds[name] for name in _FIRST} | kinds
    fields = [StructField("log_id", LongType())]
    return StructType(fields + [StructField(name, kind) for name, kind in ordered.items()])


def lake_rows(records: DataFrame) -> DataFrame:
    """What the sink of the lake takes: all of its columns but `log_id`; `span` and `error` besides."""
    return records.select(
        *(name for name in records.columns if name not in ("queue", "body")),
        F.to_date("accepted_at").alias("date"),
        payload_json().alias("payload_json"),
    )


def payload_json() -> Column:
    """The payload as text when it is valid UTF-8 and valid JSON, else null.

    Spark's parser stops at the end of the first value: `3 boxes` would be 3. So the text also has to be one element of
    an array, of two and of three: what closes the array itself has the same length in both.
    """
    text = F.try_validate_utf8(F.col("payload").cast("string"))

    def elements(more: str) -> Column:
        return F.json_array_length(F.concat(F.lit("["), text, F.lit(more + "]")))

    is_alone = (elements(",0") == 2) & (elements(",0,0") == 3)
    return F.when(F.try_parse_json(text).isNotNull() & is_alone, text)
