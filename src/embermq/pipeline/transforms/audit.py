"""From records, and from what is stored about deliveries, to what became of each delivery."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from embermq.model.session_writes import QueueState
from embermq.model.unacknowledged import FIRST_SENT, OUTCOMES
from embermq.pipeline.transforms.batch_values import is_copy

ACKNOWLEDGED, UNDER_WAY, WAITS, ENDED, REJECTED, LOST = (
    "acknowledged",
    "under way",
    "waits",
    "session ended",
    "rejected",
    "lost",
)
_AT = ["generation", "offset"]
QUEUE_TOPIC = "$queue/"


def audited_records(records: DataFrame, is_before_log: Column, position: Column | None = None) -> DataFrame:
    """What is kept of records while they are audited: no payloads. `from_lake`: the log begins behind them. `is_copy`:
    of another slot's record. `offset` is the position, where that is another one."""
    root = F.coalesce(F.col("root"), F.lit(""))
    is_queue = F.col("topic").startswith(QUEUE_TOPIC)
    return records.select(
        (F.col("offset") if position is None else position).alias("offset"),
        "span",
        "error",
        "accepted_at",
        F.to_date("accepted_at").alias("date"),
        root.alias("root"),
        F.when(is_queue, F.substr("topic", F.lit(len(QUEUE_TOPIC) + 1))).alias("queue"),
        "topic",
        "qos",
        "publisher",
        "payload_bytes",
        F.transform(
            "stamps", lambda one: F.struct(one["log"].alias("log"), one["generation"].alias("generation"))
        ).alias("stamps"),
        is_before_log.alias("from_lake"),
        is_copy().alias("is_copy"),
    )


def deliveries(records: DataFrame) -> DataFrame:
    """One row for each message and application that it was stamped for."""
    good = records.where("error IS NULL").withColumn("stamp", F.explode("stamps"))
    return good.select(
        "offset",
        "date",
        "root",
        "topic",
        "payload_bytes",
        "from_lake",
        F.col("stamp.log").alias("client"),
        F.col("stamp.generation").alias("generation"),
    )


def judged(owed: DataFrame, stored: Mapping[str, DataFrame], dispatched: int) -> DataFrame:
    """Deliveries with `outcome`, `why`, and whether it `is_below` the floor of the session.

    An entry that its log should have and has not is lost, and so is one whose body neither the log nor the file of
    bodies that were kept aside has.
    """
    sessions = stored["sessions"].select("generation", "floor", "has_ended")
    rejected = stored["rejected"].select("offset", F.lit(True).alias("is_rejected"))
    joined = (
        owed.join(F.broadcast(sessions), "generation", "left")
        .join(stored["unacknowledged"].select(*_AT, "why"), _AT, "left")
        .join(stored["marks"].select(*_AT, "state"), _AT, "left")
        .join(stored["entries"].select(*_AT, F.lit(True).alias("is_entry")), _AT, "left")
        .join(stored["bodies"].select(*_AT, F.lit(True).alias("has_body")), _AT, "left")
        .join(rejected, "offset", "left")
    )
    outcome = (
        F.when(F.col("why").isNotNull(), reason_of())
        .when(
            F.col("floor").isNull() | ((F.col("has_ended") == 1) & (F.col("offset") >= F.col("floor"))), ENDED
        )
        .when((F.col("offset") < F.col("floor")) | (F.col("state") == QueueState.DONE), ACKNOWLEDGED)
        .when(F.col("state") == QueueState.RELEASED, UNDER_WAY)
        .when(F.col("from_lake") & F.col("has_body").isNull(), LOST)
        .when(F.col("state").isNotNull(), UNDER_WAY)
        .when(F.col("is_rejected"), REJECTED)
        .when(F.col("is_entry") | (F.col("offset") >= dispatched), WAITS)
        .otherwise(LOST)
    )
    is_below = F.col("offset") < F.col("floor")
    return joined.select(*owed.columns, "why", is_below.alias("is_below"), outcome.alias("outcome"))


def reason_of() -> Column:
    """In a word, of the column `why`."""
    return F.element_at(
        F.create_map(*(F.lit(one) for why, name in OUTCOMES.items() for one in (int(why), name))),
        F.col("why"),
    )


def counted_sessions(owed: DataFrame, sessions: DataFrame) -> DataFrame:
    """Of each application session that is there: how many it was `owed` below its floor, how many of these were
    `passed` over, and how many the broker says were sent (`settled`)."""
    below = F.col("is_below")
    passed = below & (F.col("why") < int(FIRST_SENT))
    counts = owed.groupBy("generation").agg(
        F.count_if(below).alias("owed"),
        F.count_if(passed).alias("passed"),
        F.count(F.lit(1)).alias("deliveries"),
    )
    there = sessions.where("client_type = 1 AND has_ended = 0")
    return there.join(counts, "generation", "left").select(
        "generation",
        "client",
        "created_ms",
        "floor",
        "settled",
        *(name for name in ("dropped",) if name in sessions.columns),
        *(F.coalesce(F.col(name), F.lit(0)).alias(name) for name in ("owed", "passed", "deliveries")),
    )
