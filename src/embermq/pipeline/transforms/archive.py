"""From records to rows of the message store."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

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
