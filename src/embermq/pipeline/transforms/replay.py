"""From records to those that a replay wants."""

import re
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from embermq.formats.log_record import FIELD_RULES
from embermq.pipeline.schema import MISSING

_STAGED = (
    "slot",
    "partition",
    "offset",
    "topic",
    "qos",
    "publisher",
    "payload_format_indicator",
    "message_expiry_interval",
    "content_type",
    "response_topic",
    "correlation_data",
    "user_properties",
    "payload",
)


def staged(chosen: DataFrame) -> DataFrame:
    """What is kept of a message until it is replayed; times as Unix milliseconds, `rules` those that it comes of."""
    rules = chain_of_rules().alias("rules")
    times = (F.unix_millis(f"{name}_at").alias(f"{name}_ms") for name in ("accepted", "expires"))
    return chosen.select(*_STAGED, rules, *times)


def chain_of_rules() -> Column:
    """The names of the rules that a record comes of, null for none."""
    return F.get(F.filter("unknown_fields", lambda one: one["tag"] == FIELD_RULES), 0)["value"].cast("string")


def matches_filter(topic_filter: str) -> Column:
    """Whether the topic matches a valid, unshared filter of MQTT, as `mqtt.topics.names.matches` has it."""
    if "#" not in topic_filter and "+" not in topic_filter:
        return F.col("topic") == topic_filter
    levels = topic_filter.split("/")
    pattern = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels if level != "#")
    if levels[-1] == "#":
        pattern = f"{pattern}(?:/.*)?" if len(levels) > 1 else ".*"
    not_dollar = r"(?!\$)" if levels[0] in ("+", "#") else ""  # [MQTT-4.7.2-1]
    return F.col("topic").rlike(rf"(?s)\A{not_dollar}{pattern}\z")


def accepted_within(start: datetime | None, end: datetime | None) -> Column:
    """Whether it was accepted in [start, end); what cannot be read stays in, to be counted."""
    inside = F.lit(True)
    if start is not None:
        inside &= F.col("accepted_at") >= F.lit(start)
    if end is not None:
        inside &= F.col("accepted_at") < F.lit(end)
    return F.col("error").isNotNull() | inside


def judged_records(records: DataFrame, topic_filter: str, now: datetime) -> DataFrame:
    """The records with `matched`, whether the filter wants them, and `chosen`: those whose time is not over."""
    matched = F.col("error").isNull() & matches_filter(topic_filter)
    is_over = F.coalesce(F.col("expires_at") <= F.lit(now), F.lit(False))
    return records.withColumns({"matched": F.coalesce(matched, F.lit(False)), "is_over": is_over}).withColumn(
        "chosen", F.col("matched") & ~F.col("is_over")
    )


def measures() -> list[Column]:
    """What is told of judged records."""
    is_missing = F.coalesce(F.col("error").startswith(MISSING), F.lit(False))
    is_broken = F.col("error").isNotNull() & ~is_missing

    def total(what: Column, among: Column) -> Column:
        return F.coalesce(F.sum(F.when(among, what)), F.lit(0))

    chosen_at = F.when(F.col("chosen"), F.unix_millis("accepted_at"))
    return [
        F.count_if(F.col("error").isNull()).alias("records"),
        F.count_if("chosen").alias("chosen"),
        F.count_if(F.col("matched") & F.col("is_over")).alias("expired"),
        total(F.col("payload_bytes"), F.col("chosen")).alias("payload_bytes"),
        total(F.col("span"), is_missing).alias("missing"),
        total(F.col("span"), is_broken).alias("unreadable"),
        F.min(chosen_at).alias("oldest_ms"),
        F.max(chosen_at).alias("newest_ms"),
    ]
