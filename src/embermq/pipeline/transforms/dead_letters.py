"""From dead letters to those that a filter wants."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from embermq.pipeline.transforms.archive import payload_json

SAMPLES = 3
"""Dead letters that are shown of each reason."""

_ABOUT = ("sequence", "id", "message_id", "queue", "group", "reason", "moved_at", "last_error", "key")
_BY_NAME = """
aggregate(reverse(user_properties), cast(map() as map<string, string>),
          (found, one) -> map_concat(map_filter(found, (name, value) -> name != one.name), map(one.name, one.value)))
"""


def filterable(letters: DataFrame) -> DataFrame:
    """The columns that a filter may name: those of the source and, where they have the message, `properties` (user
    properties by name, the first of a repeated one) and `payload_json` (the payload as text when it is JSON)."""
    if "payload" not in letters.columns:
        return letters
    return letters.withColumns({"properties": F.expr(_BY_NAME), "payload_json": payload_json()})


def judged_letters(letters: DataFrame, wanted: str | None) -> DataFrame:
    """What is told of each dead letter, and whether it is `chosen`; a filter that is null of one does not choose it."""
    chosen = F.lit(True) if wanted is None else F.coalesce(F.expr(wanted), F.lit(False))
    return filterable(letters).select(*_ABOUT, chosen.alias("chosen"))


def letter_counts(judged: DataFrame) -> DataFrame:
    """How many are `there` and `chosen`, by queue, group and reason."""
    grouped = judged.groupBy("queue", "group", "reason")
    counted = grouped.agg(F.count_if("chosen").alias("chosen"), F.count("*").alias("there"))
    return counted.orderBy("queue", "group", "reason")


def letter_samples(judged: DataFrame) -> DataFrame:
    """The oldest ones that are chosen, of each reason."""
    by_age = Window.partitionBy("reason").orderBy("sequence")
    ranked = judged.where("chosen").withColumn("rank", F.row_number().over(by_age))
    found = ranked.where(F.col("rank") <= SAMPLES).orderBy("reason", "sequence")
    return found.select(*_ABOUT, F.unix_millis("moved_at").alias("moved_ms"))
