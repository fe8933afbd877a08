"""What became of each delivery, where application logs are topics of their own: offsets here are positions in the
message log, and those of an application's log are called entries.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from embermq.model.position import OFFSET_BITS, OFFSET_END, position_of
from embermq.model.session_writes import QueueState
from embermq.pipeline.transforms.audit import (
    ACKNOWLEDGED,
    LOST,
    REJECTED,
    UNDER_WAY,
    WAITS,
    reason_of,
)
from embermq.pipeline.transforms.kafka_records import look_up

SETTLED = "settled, how is not checked"
ENDED = "session ended, not checked"
UNREADABLE = "not checked"
JUST_ACCEPTED = "just accepted"
_AT = ["generation", "offset"]


def position_column() -> Column:
    """Of a record with `partition` and `offset`."""
    return F.shiftleft(F.col("partition").cast("long"), OFFSET_BITS) + F.col("offset")


def sources(records: DataFrame) -> DataFrame:
    """Of copies in topics: topic, partition, offset, and as `source` the position that they are of."""
    parts = F.split(look_up("s").cast("string"), ";")
    partition, offset = (F.get(parts, F.lit(at)).try_cast("bigint") for at in range(2))
    source = F.shiftleft(partition, OFFSET_BITS) + offset
    return records.select("topic", "partition", "offset", source.alias("source")).where("source IS NOT NULL")


def first_entries(copies: DataFrame, prefix: str) -> DataFrame:
    """By log and source: where the first copy in partition 0 stands, null when all stand elsewhere."""
    log = F.substr("topic", F.lit(len(prefix) + 1))
    first = F.min(F.when(F.col("partition") == 0, F.col("offset")))
    grouped = copies.groupBy(log.alias("log"), F.col("source").alias("offset"))
    return grouped.agg(first.alias("entry"), F.lit(True).alias("is_entry"))


def judged_on_servers(
    owed: DataFrame, stored: Mapping[str, DataFrame], dispatched: Mapping[int, int], known: Mapping[int, int]
) -> DataFrame:
    """Deliveries with `outcome`, `why`, and whether it `is_below`: settled, and counted by its session.

    Sessions were read after `dispatched` and the entries, and know of all below `known`. One whose log is another one
    than its reader speaks of, or whose count is unknown, is believed in nothing that it could only say itself.
    """
    sessions = stored["sessions"].select(
        "generation",
        F.col("client").alias("client_id"),
        "floor",
        "spans",
        "below",
        (F.col("settled") >= 0).alias("is_counted"),
        "log_id",
    )
    rejected = stored["rejected"].select("offset", F.lit(True).alias("is_rejected"))
    joined = (
        owed.withColumnRenamed("client", "log")
        .join(F.broadcast(sessions), "generation", "left")
        .join(F.broadcast(stored["logs"]), "log", "left")
        .withColumn("is_own", F.coalesce(F.col("log_id") == F.col("topic_id"), F.lit(False)))
        .join(stored["unacknowledged"].select(*_AT, "why"), _AT, "left")
        .join(stored["open"].select(*_AT, "state"), _AT, "left")
        .join(stored["entries"], ["log", "offset"], "left")
        .join(rejected, "offset", "left")
    )
    at = F.col("offset")
    is_spanned = F.exists("spans", lambda one: (one["start"] <= at) & (at < one["end"]))
    is_passed = F.col("is_own") & (F.col("entry") < F.col("floor"))
    is_below = F.coalesce(F.col("state").isNull() & (is_spanned | is_passed), F.lit(False))
    is_settled = is_below | F.coalesce(F.col("state") == QueueState.DONE, F.lit(False))
    tells = F.col("is_counted") & (at >= F.col("below")) & F.col("is_rejected").isNull()
    outcome = (
        F.when(F.col("floor").isNull(), F.when(_is_below(at, known), ENDED).otherwise(JUST_ACCEPTED))
        .when(is_settled & F.col("why").isNotNull(), reason_of())
        .when(is_settled, F.when(tells, ACKNOWLEDGED).otherwise(SETTLED))
        .when(F.col("state").isNotNull(), UNDER_WAY)
        .when(~F.col("is_own"), UNREADABLE)
        .when(F.col("is_entry") | ~_is_below(at, dispatched), WAITS)
        .when(F.col("is_rejected"), REJECTED)
        .otherwise(LOST)
    )
    named = joined.withColumn("client", F.coalesce("client_id", "log"))
    return named.select(
        *owed.columns,
        "why",
        is_below.alias("is_below"),
        "is_own",
        "is_rejected",
        outcome.alias("outcome"),
    )


def _is_below(position: Column, ends: Mapping[int, int]) -> Column:
    found = F.lit(False)
    for number, end in ends.items():
        found |= (position >= position_of(number, 0)) & (
            position < position_of(number, min(end, OFFSET_END - 1))
        )
    return found
