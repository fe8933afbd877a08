"""Samples of delivery latency, of the records of their topic in Kafka.

Native expressions only; the layout of the samples is that of `model.receipts`.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from embermq.pipeline.schema import RECEIPTS, traffic_schema
from embermq.pipeline.transforms.kafka_headers import YEAR_10000_MS, look_up

FORMAT_MAJOR = "1"
_SAMPLES = "array<struct<t: bigint, l: bigint, c: int, r: string>>"
_CLIENT_TYPES = (0, 1)


def receipts_from_kafka(rows: DataFrame) -> DataFrame:
    """Rows of `traffic_schema` of Spark's Kafka source on the topic of receipts.

    A sample is a row; its `partition` is RECEIPTS and below, its `offset` that of the record it is in. What cannot be
    understood is a row with an error.
    """
    split = rows.withColumn("sample", F.explode_outer(_samples()))
    values = {
        "partition": F.lit(RECEIPTS) - F.col("partition"),
        "offset": F.col("offset"),
        "span": F.lit(1),
        "accepted_at": F.when(_is_whole(), F.timestamp_millis("sample.t")),
        "root": F.when(_is_whole(), F.col("sample.r")),
        "latency_us": F.when(_is_whole(), F.col("sample.l")),
        "client_type": F.when(_is_whole(), F.col("sample.c")),
        "error": F.when(~_is_whole(), F.lit("a sample that cannot be understood")),
    }
    return split.select(
        *(
            values.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in traffic_schema().fields
        )
    )


def _samples() -> Column:
    """Null when the value is nothing that this reader knows."""
    is_known = F.substring_index(look_up("v").cast("string"), ".", 1) == FORMAT_MAJOR
    return F.when(is_known, F.from_json(F.col("value").cast("string"), _SAMPLES))


def _is_whole() -> Column:
    told = (
        F.col("sample.t").between(0, YEAR_10000_MS)
        & (F.col("sample.l") >= 0)
        & F.col("sample.c").isin(*_CLIENT_TYPES)
        & F.col("sample.r").isNotNull()
    )
    return F.coalesce(told, F.lit(False))
