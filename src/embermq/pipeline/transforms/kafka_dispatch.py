"""From records in Kafka to records of application logs: a native explode, nothing else, so that it is real-time."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from embermq.formats.application_logs import SHARED
from embermq.pipeline.transforms.kafka_records import record_problem, with_headers

_HEADER = "struct<key: string, value: binary>"
_NOT_CARRIED = ("s", "r")


def dispatched(
    records: DataFrame,
    log_prefix: str,
    rejected_topic: str,
    gone: Mapping[str, int],
) -> DataFrame:
    """(topic, key, value, headers, partition), a row for each stamp, in the order of the source.

    Takes the columns of Spark's Kafka source with headers. Headers are carried as they are, of `a` only the row's own,
    and `s`, "<source partition>;<source offset>", is added. A record that cannot be understood gives one row for
    `rejected_topic` with all its headers, `s` and the reason as `r`. A record without stamps gives none.

    A client's own log is read in its partition 0 alone, however many somebody has given it: that is where its records
    go. In any other topic the key says which partition, and `partition` is null.

    `gone` names application logs that are not there any more, each with the newest session generation that it cannot
    have had: stamps for these are rejected.
    """
    known = with_headers(records, "partition", "offset", "key", "value", "headers")
    checked = known.withColumn("problem", record_problem(log_prefix))
    source = F.concat(F.col("partition").cast("string"), F.lit(";"), F.col("offset").cast("string"))
    positioned = checked.withColumn("source", _header("s", source))
    rejected = F.array(_rejection(rejected_topic, F.col("headers"), F.col("problem")))
    entries = F.transform(F.col("stamp_texts"), lambda text: _entry(text, rejected_topic, gone))
    is_good = F.col("problem").isNull()
    rows = positioned.select(
        "key",
        "value",
        F.explode(F.when(is_good, entries).otherwise(rejected)).alias("entry"),
    )
    partition = _partition(F.col("entry.topic"), log_prefix)
    return rows.select("entry.topic", "key", "value", "entry.headers", partition.alias("partition"))


def _partition(topic: Column, log_prefix: str) -> Column:
    is_own = topic.startswith(log_prefix) & ~topic.startswith(log_prefix + SHARED)
    return F.when(is_own, F.lit(0))


def _entry(stamp: Column, rejected_topic: str, gone: Mapping[str, int]) -> Column:
    """A row of one stamp, for its log or, when that is gone, for the rejected ones."""
    topic = F.substring_index(stamp, ";", 1)
    carried = F.concat(_carried("a", *_NOT_CARRIED), F.array(_header("a", stamp)))
    wanted = _row(topic, F.concat(carried, F.array(F.col("source"))))
    if not gone:
        return wanted
    generation = F.get(F.split(stamp, ";"), F.lit(1)).try_cast("bigint")
    is_gone = F.lit(False)
    for name, newest in gone.items():
        is_gone = is_gone | ((topic == name) & (generation <= newest))
    reason = F.concat(F.lit("the application log is gone: "), topic, F.lit(", generation "), generation)
    return F.when(is_gone, _rejection(rejected_topic, carried, reason)).otherwise(wanted)


def _rejection(rejected_topic: str, headers: Column, reason: Column) -> Column:
    carried = F.filter(headers, lambda one: ~one["key"].isin(*_NOT_CARRIED))
    own = F.array(F.col("source"), _header("r", reason))
    return _row(
        F.lit(rejected_topic), F.concat(F.coalesce(carried, F.array().cast(f"array<{_HEADER}>")), own)
    )


def _carried(*without: str) -> Column:
    return F.filter(F.col("headers"), lambda one: ~one["key"].isin(*without))


def _row(topic: Column, headers: Column) -> Column:
    return F.struct(topic.alias("topic"), headers.cast(f"array<{_HEADER}>").alias("headers"))


def _header(name: str, text: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value")).cast(_HEADER)
