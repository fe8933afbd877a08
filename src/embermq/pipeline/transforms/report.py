"""From records to what a report tells of them. All take what `audited_records` gives, without what is unreadable."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

SHARES = (0.5, 0.95, 0.99)
"""Of sizes."""


def by_hour(records: DataFrame) -> DataFrame:
    """What was accepted in each hour below each first topic level; `queue` for what went to a durable one."""
    hour = F.date_trunc("hour", "accepted_at").alias("hour")
    return records.groupBy(hour, "root", "queue").agg(
        *_counts(), F.count_if(F.col("qos") == 1).alias("qos1"), F.count_if(F.col("qos") == 2).alias("qos2")
    )


def by_publisher(records: DataFrame) -> DataFrame:
    """What each client published on each day."""
    return records.groupBy("date", "publisher").agg(*_counts())


def by_receiver(records: DataFrame) -> DataFrame:
    """What each application was owed on each day."""
    owed = records.withColumn("client", F.explode("stamps.log"))
    return owed.groupBy("date", "client").agg(*_counts())


def by_size(records: DataFrame) -> DataFrame:
    """Messages of up to `bytes_max` bytes, and more than half of that."""
    doublings = F.ceil(F.log2(F.greatest(F.col("payload_bytes"), F.lit(1)).cast("double")))
    return records.groupBy(F.pow(F.lit(2), doublings).cast("long").alias("bytes_max")).agg(*_counts())


def sizes_by_root(records: DataFrame) -> DataFrame:
    """Quantiles, exact for up to some thousands of sizes, below each first topic level."""
    quantiles = F.percentile_approx("payload_bytes", list(SHARES))
    return records.groupBy("root").agg(
        *_counts(),
        *(quantiles[at].alias(f"p{round(share * 100)}") for at, share in enumerate(SHARES)),
        F.max("payload_bytes").alias("largest"),
    )


def _counts() -> tuple[Column, Column]:
    return F.count(F.lit(1)).alias("messages"), F.sum("payload_bytes").alias("payload_bytes")
