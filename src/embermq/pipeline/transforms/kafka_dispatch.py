"""From records in Kafka to records of application logs: a native explode, nothing else, so that it is real-time."""

from collections.abc import Collection, Mapping
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from embermq.formats.application_logs import SHARED
from embermq.pipeline.transforms.kafka_records import record_problem, with_headers

BATCH_BYTES = 61
"""Before the records of a batch, format 2."""
RECORD_BYTES = 3
"""Attributes, and the time and the offset since those of the batch, both 0."""


def batch_bytes(key: Column, value: Column, headers: Column) -> Column:
    """Of the batch that has this record alone, uncompressed. `headers`: array<struct<key: string, value: binary>>."""
    fields = F.lit(RECORD_BYTES) + _field(key) + _field(value) + _number_bytes(F.size(headers))
    body = F.aggregate(headers, fields, lambda total, one: total + _field(one["key"]) + _field(one["value"]))
    return F.lit(BATCH_BYTES) + body + _number_bytes(body)


def _field(field: Column) -> Column:
    """Its length and itself; what is null has the length -1."""
    there = F.coalesce(F.octet_length(field), F.lit(0))
    return there + _number_bytes(there)


def _number_bytes(number: Column) -> Column:
    """Of a number from 0 on, seven bits a byte, of which one is for the sign."""
    found = F.when(number < 1 << 6, 1)
    for length in (2, 3, 4):
        found = found.when(number < 1 << (7 * length - 1), length)
    return found.otherwise(5)


class AlreadyCarried(Protocol):
    """Tells which copies a log has already; `jobs.kafka_watch` fulfils it."""

    @property
    def most(self) -> Mapping[int, int]:
        """Offsets by source partition: below these everything has been carried, but to lagging logs."""

    @property
    def lagging(self) -> Mapping[str, Mapping[int, int]]:
        """The same of each of those."""

    @property
    def left_out(self) -> Collection[str]:
        """Lagging logs that get nothing now."""


_HEADER = "struct<key: string, value: binary>"
_NOT_CARRIED = ("s", "r")


def dispatched(
    records: DataFrame,
    log_prefix: str,
    rejected_topic: str,
    gone: Mapping[str, int],
    narrow: Mapping[str, int] | None = None,
    *,
    carried: AlreadyCarried | None = None,
) -> DataFrame:
    """(topic, key, value, headers, partition), a row for each stamp, in the order of the source.

    Takes the columns of Spark's Kafka source with headers. Headers are carried as they are, of `a` only the row's own,
    and `s`, "<source partition>;<source offset>", is added. A record that cannot be understood gives one row for
    `rejected_topic` with all its headers, `s` and the reason as `r`. A record without stamps gives none.

    A client's own log is read in its partition 0 alone, however many somebody has given it: that is where its records
    go. In any other topic the key says which partition, and `partition` is null.

    `gone` names application logs that are not there any more, each with the newest session generation that it cannot
    have had: stamps for these are rejected.

    `narrow` names topics that take no larger batch than so many bytes: what is larger for one log is rejected. For
    `rejected_topic` itself it is cut down to key, `s` and `r`.

    `carried` says what has been carried before, or is not to be: that gives no row.
    """
    narrow = narrow or {}
    known = with_headers(records, "partition", "offset", "key", "value", "headers")
    checked = known.withColumn("problem", record_problem(log_prefix))
    source = F.concat(F.col("partition").cast("string"), F.lit(";"), F.col("offset").cast("string"))
    positioned = checked.withColumn("source", _header("s", source))
    rejected = F.array(_rejection(rejected_topic, F.col("headers"), F.col("problem")))
    stamps = F.col("stamp_texts")
    if carried is not None:
        stamps = F.filter(stamps, lambda text: _is_due(text, carried))
        rejected = F.when(_is_beyond(carried.most), rejected)
    entries = F.transform(stamps, lambda text: _entry(text, rejected_topic, gone, narrow))
    is_good = F.col("problem").isNull()
    rows = positioned.select(
        "key",
        "value",
        F.explode(F.when(is_good, entries).otherwise(rejected)).alias("entry"),
    )
    partition = _partition(F.col("entry.topic"), log_prefix)
    ready = rows.select("entry.topic", "key", "value", "entry.headers", partition.alias("partition"))
    return _cut(ready, rejected_topic, narrow[rejected_topic]) if rejected_topic in narrow else ready


def _cut(rows: DataFrame, rejected_topic: str, limit: int) -> DataFrame:
    """The position tells which record it was, when even the topic for rejected ones does not take it."""
    size = batch_bytes(F.col("key"), F.col("value"), F.col("headers"))
    is_too_large = (F.col("topic") == rejected_topic) & (size > limit)
    kept = F.filter("headers", lambda one: one["key"].isin(*_NOT_CARRIED))
    return rows.select(
        "topic",
        "key",
        F.when(~is_too_large, F.col("value")).alias("value"),
        F.when(is_too_large, kept).otherwise(F.col("headers")).alias("headers"),
        "partition",
    )


def _is_due(stamp: Column, carried: AlreadyCarried) -> Column:
    topic = F.substring_index(stamp, ";", 1)
    found = _is_beyond(carried.most)
    # Thousands may have been left out at once: a condition of its own for each would be too deep for Spark.
    alike: dict[frozenset[tuple[int, int]], list[str]] = {}
    for name, positions in carried.lagging.items():
        alike.setdefault(frozenset(positions.items()), []).append(name)
    for together, names in alike.items():
        found = F.when(topic.isin(names), _is_beyond(dict(together))).otherwise(found)
    return ~topic.isin(*carried.left_out) & found if carried.left_out else found


def _is_beyond(positions: Mapping[int, int]) -> Column:
    """Whether a record does not stand below these, by source partition."""
    found = F.lit(True)
    for partition, offset in positions.items():
        found = found & ~((F.col("partition") == partition) & (F.col("offset") < offset))
    return found


def _partition(topic: Column, log_prefix: str) -> Column:
    is_own = topic.startswith(log_prefix) & ~topic.startswith(log_prefix + SHARED)
    return F.when(is_own, F.lit(0))


def _entry(stamp: Column, rejected_topic: str, gone: Mapping[str, int], narrow: Mapping[str, int]) -> Column:
    """A row of one stamp, for its log or, when that is gone or does not take it, for the rejected ones."""
    topic = F.substring_index(stamp, ";", 1)
    carried = F.concat(_carried("a", *_NOT_CARRIED), F.array(_header("a", stamp)))
    headers = F.concat(carried, F.array(F.col("source")))
    wanted = _row(topic, headers)
    for limit in sorted(set(narrow.values())):
        size = batch_bytes(F.col("key"), F.col("value"), headers)
        told = f", which takes {limit} bytes of a record (max.message.bytes): it has "
        reason = F.concat(F.lit("too large for the application log "), topic, F.lit(told), size)
        is_narrow = topic.isin([name for name, takes in narrow.items() if takes == limit])
        wanted = F.when(is_narrow & (size > limit), _rejection(rejected_topic, carried, reason)).otherwise(
            wanted
        )
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
