"""From records to the table that rules read, and from their rows to messages."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from embermq.formats.log_record import FIELD_ADDRESSED
from embermq.pipeline.errors import RuleRefused
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.transforms.replay import chain_of_rules

PARTITION, OFFSET, CHAIN = "_partition", "_offset", "_rules"
"""Columns that a rule does not name and that are carried along."""
HIDDEN = (PARTITION, OFFSET, CHAIN)
SEPARATOR = ","
READ = (
    "partition",
    "offset",
    "accepted_at",
    "topic",
    "qos",
    "retain",
    "publisher",
    "content_type",
    "response_topic",
    "user_properties",
    "payload",
    "unknown_fields",
    "error",
)
"""What of a record becomes something that rules see."""


def rule_messages(records: DataFrame, name: str, rule: RuleSettings) -> DataFrame:
    """The table `messages` as this rule sees it: records that can be read, and that are not for one client alone; in
    UTF-8 as they came."""
    shown = records.where(F.col("error").isNull() & ~is_addressed()).select(
        "topic",
        F.col("payload").cast("string").alias("payload"),
        "publisher",
        "qos",
        "retain",
        "accepted_at",
        "content_type",
        "response_topic",
        _properties().alias("properties"),
        "partition",
        "offset",
        F.col("partition").alias(PARTITION),
        F.col("offset").alias(OFFSET),
        F.coalesce(chain_of_rules(), F.lit("")).alias(CHAIN),
    )
    before = F.split(F.col(CHAIN), SEPARATOR)
    wanted = ~F.array_contains(before, name) if rule.sees_rules else F.col(CHAIN) == ""
    return shown.where(wanted)


def is_addressed() -> Column:
    """Whether a record was replayed to one client alone."""
    found = F.exists("unknown_fields", lambda one: one["tag"] == FIELD_ADDRESSED)
    return F.coalesce(found, F.lit(False))


def published(rows: DataFrame, rule: RuleSettings) -> DataFrame:
    """What the rows of a rule say is to be published: partition and offset of the message, chain, topic, payload.
    Raises RuleRefused."""
    # SELECT * names hidden columns as well: the last ones are those that were added.
    found = [name.lower() for name in rows.columns[: -len(HIDDEN)]]
    named = rows.toDF(*(str(number) for number in range(len(rows.columns))))
    has_topics = rule.to == "mqtt"
    wanted = ("topic", "payload") if has_topics else ("payload",)
    for name in wanted:
        if name not in found:
            raise RuleRefused(f"it selects no column {name}, it has {', '.join(found)}")
        kind = named.schema[found.index(name)].dataType
        if not isinstance(kind, StringType | (BinaryType if name == "payload" else StringType)):
            raise RuleRefused(
                f"the column {name} is {kind.simpleString()}, not a text; to_json(struct(…)) and string(…) make one"
            )

    def column(name: str) -> Column:
        return F.col(str(found.index(name)))

    return named.select(
        F.col(str(len(found))).alias("partition"),
        F.col(str(len(found) + 1)).alias("offset"),
        F.col(str(len(found) + 2)).alias("chain"),
        (column("topic") if has_topics else F.lit(rule.topic)).alias("topic"),
        column("payload").cast("binary").alias("payload"),
    ).where("offset IS NOT NULL AND topic IS NOT NULL AND payload IS NOT NULL")


def _properties() -> Column:
    """User properties by name; of a name that comes twice, the last."""
    pairs = F.transform("user_properties", lambda one: F.struct(one["name"], one["value"]))
    return F.map_from_entries(pairs)
