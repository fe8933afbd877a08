"""From records and delivery receipts to windows of event time."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from embermq.pipeline.schema import traffic_schema
from embermq.pipeline.transforms.batch_values import is_missing, is_rejected, looked_up

BUCKETS_PER_DOUBLING = 16
"""Latency buckets are this fine; see traffic.sql."""


def traffic_events(records: DataFrame) -> DataFrame:
    """Rows of `traffic_schema` of records."""
    known = set(records.columns)
    return records.select(
        *(
            F.col(field.name) if field.name in known else F.lit(None).cast(field.dataType).alias(field.name)
            for field in traffic_schema()
        )
    )


def traffic_windows(events: DataFrame, window_s: int, watermark_ms: int) -> DataFrame:
    """One row a (window, root, queue, client type, latency bucket); the last two are null for messages, and `queue` for
    all that is not in a durable queue.

    `messages`, `payload_bytes`, `qos1`, `qos2` count what is not late, `late` what was accepted before
    `watermark_ms`, `missing` positions that the log did not hold any more, `rejected` what cannot be understood.
    `deliveries` and `max_us` are of receipts. `first`, `next` and `newest_ms` say which positions of which source
    partition a row was made of and its newest time, errors (null window) included.
    All of it adds up over batches, so that the sink needs no state but its own rows.
    """
    ours = events.select(
        "partition",
        "offset",
        "span",
        "accepted_at",
        "root",
        "queue",
        "qos",
        "payload_bytes",
        "latency_us",
        "client_type",
        is_missing().alias("is_missing"),
        is_rejected().alias("is_rejected"),
    )
    is_receipt = F.col("latency_us").isNotNull()
    is_message = F.col("accepted_at").isNotNull() & ~is_receipt
    watermark = looked_up([watermark_ms], F.least("partition", F.lit(0)))
    is_late = is_message & (F.unix_millis("accepted_at") < watermark)
    counts = is_message & ~is_late
    doublings = F.log2(F.greatest(F.col("latency_us"), F.lit(1)).cast("double"))
    # Not F.window: it drops rows without a time, and with them the positions of records that are rejected.
    accepted_ms = F.unix_millis("accepted_at")
    grouped = ours.groupBy(
        (accepted_ms - accepted_ms % (window_s * 1000)).alias("window_ms"),
        "root",
        "queue",
        "client_type",
        F.floor(doublings * BUCKETS_PER_DOUBLING).cast("int").alias("bucket"),
        "partition",
    )
    return grouped.agg(
        F.count_if(counts).alias("messages"),
        F.coalesce(F.sum(F.when(counts, F.col("payload_bytes"))), F.lit(0)).alias("payload_bytes"),
        F.count_if(counts & (F.col("qos") == 1)).alias("qos1"),
        F.count_if(counts & (F.col("qos") == 2)).alias("qos2"),
        F.count_if(is_late).alias("late"),
        F.coalesce(F.sum(F.when(F.col("is_missing"), F.col("span"))), F.lit(0)).alias("missing"),
        F.coalesce(F.sum(F.when(F.col("is_rejected"), F.col("span"))), F.lit(0)).alias("rejected"),
        F.count_if(is_receipt).alias("deliveries"),
        F.max("latency_us").alias("max_us"),
        F.min("offset").alias("first"),
        F.max(F.col("offset") + F.col("span")).alias("next"),
        F.max(F.when(is_message, F.unix_millis("accepted_at"))).alias("newest_ms"),
    )


def latency_windows(sums: DataFrame, from_ms: int, to_ms: int) -> DataFrame:
    """Of partial sums of windows that begin within [from_ms, to_ms): day, client type, samples, median, 99th percentile
    and longest latency of each window and first topic level, ordered by the first two and the median."""
    inside = F.col("window_ms").between(from_ms, to_ms - 1) & F.col("client_type").isNotNull()
    of = ("window_ms", "root", "client_type")
    added = sums.where(inside).groupBy(*of, "bucket")
    buckets = added.agg(F.sum("deliveries").alias("deliveries"), F.max("max_us").alias("max_us"))
    each = Window.partitionBy(*of)
    seen, all_of_them = (F.sum("deliveries").over(one) for one in (each.orderBy("bucket"), each))
    longest = F.max("max_us")

    def quantile(share: float) -> Column:
        """The middle of the bucket that holds that share of the samples, never above its largest."""
        reaches = F.col("seen") >= F.lit(share) * F.col("all")
        found = F.min(F.when(reaches, F.struct("bucket", "max_us")))
        middle = F.pow(F.lit(2), (found["bucket"] + 0.5) / BUCKETS_PER_DOUBLING)
        return F.least(found["max_us"], F.round(middle).cast("bigint"))

    windows = buckets.withColumns({"seen": seen, "all": all_of_them}).groupBy(*of)
    day = F.to_date(F.timestamp_millis("window_ms")).cast("string").alias("day")
    figures = windows.agg(
        F.sum("deliveries").alias("deliveries"),
        quantile(0.50).alias("p50_us"),
        quantile(0.99).alias("p99_us"),
        longest.alias("max_us"),
    )
    ordered = figures.select(day, "client_type", "deliveries", "p50_us", "p99_us", "max_us")
    return ordered.orderBy("day", "client_type", "p50_us")
