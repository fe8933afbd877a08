"""From records to the table that rules read, and from their rows to messages."""

import re
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, BooleanType, DateType, NumericType, StringType, TimestampType

from embermq.formats.log_record import FIELD_ADDRESSED
from embermq.pipeline.errors import RuleRefused
from embermq.pipeline.rules.settings import RuleSettings, Stretch
from embermq.pipeline.transforms.replay import chain_of_rules

PARTITION, OFFSET, CHAIN = "_partition", "_offset", "_rules"
"""Columns that a rule does not name and that are carried along."""
HIDDEN = (PARTITION, OFFSET, CHAIN)
PLAIN = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampType)
"""Columns that every database has."""
COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
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


def rule_messages(
    records: DataFrame, name: str, rule: RuleSettings, stretch: Stretch | None = None
) -> DataFrame:
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
    if stretch is None:
        return shown.where(wanted)
    times = {"window_start": stretch.start_s, "window_end": stretch.end_s}
    columns = {name: F.timestamp_seconds(F.lit(at)) for name, at in times.items()}
    return shown.where(wanted).drop(*HIDDEN).withColumns(columns)


def of_stretch(rows: DataFrame, stretch: Stretch) -> DataFrame:
    """Rows of many messages, with the columns `HIDDEN`: the end of the window stands for the message."""
    hidden = {PARTITION: F.lit(0), OFFSET: F.lit(stretch.end_s).cast("long"), CHAIN: F.lit("")}
    return rows.select("*", *(column.alias(name) for name, column in hidden.items()))


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
    if rule.has_columns:
        return _with_columns(named, rows.columns[: -len(HIDDEN)], rule.own_columns)
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
        *_carried(len(found)),
        (column("topic") if has_topics else F.lit(rule.topic)).alias("topic"),
        column("payload").cast("binary").alias("payload"),
    ).where("offset IS NOT NULL AND topic IS NOT NULL AND payload IS NOT NULL")


def _with_columns(rows: DataFrame, names: Sequence[str], own: Sequence[str]) -> DataFrame:
    """The columns as they are, as `columns`, those that are hidden left out; `payload` says the same as JSON, by which
    rows of a message have their order."""
    chosen = [at for at, name in enumerate(names) if name not in HIDDEN]
    for at in chosen:
        kind = rows.schema[at].dataType
        if not COLUMN.fullmatch(names[at]) or names[at].lower() in own:
            raise RuleRefused(
                f"the column {names[at]} has no name for a table: up to 63 letters, digits and _, and not "
                f"{' or '.join(own)}; "
                "AS NAME gives one"
            )
        if not isinstance(kind, PLAIN):
            raise RuleRefused(
                f"the column {names[at]} is {kind.simpleString()}; to_json(…) and string(…) make a text"
            )
    known = {names[at].lower() for at in chosen}
    if len(known) < len(chosen):
        raise RuleRefused("two columns have the same name; AS NAME gives another one")
    if not chosen:
        raise RuleRefused("it selects no column")
    columns = F.struct(*(F.col(str(at)).alias(names[at]) for at in chosen))
    return rows.select(
        *_carried(len(names)),
        F.lit("").alias("topic"),
        F.to_json(columns).cast("binary").alias("payload"),
        columns.alias("columns"),
    ).where("offset IS NOT NULL")


def _carried(many: int) -> list[Column]:
    """Those of HIDDEN, which stand behind `many` others."""
    return [F.col(str(many + at)).alias(name) for at, name in enumerate(("partition", "offset", "chain"))]


def _properties() -> Column:
    """User properties by name; of a name that comes twice, the last."""
    pairs = F.transform("user_properties", lambda one: F.struct(one["name"], one["value"]))
    return F.map_from_entries(pairs)
