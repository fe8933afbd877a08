"""What the traffic windows are made of on Kafka: heads of records, and samples of delivery latency, of one source.

Native expressions only; the layout of the samples is that of `model.receipts`.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from embermq.pipeline.schema import RECEIPTS, traffic_schema
from embermq.pipeline.transforms.kafka_headers import YEAR_10000_MS, look_up
from embermq.pipeline.transforms.kafka_records import records_from_kafka

FORMAT_MAJOR = "1"
_SAMPLES = "array<struct<t: bigint, l: bigint, c: int, r: string>>"
_CLIENT_TYPES = (0, 1)


def receipts_partition(number: Column | int) -> Column:
    """What stands in `partition` for a partition of the topic of receipts: RECEIPTS and below."""
    return F.lit(RECEIPTS) - number


def traffic_events_from_kafka(rows: DataFrame, log_prefix: str, receipts_topic: str) -> DataFrame:
    """Rows of `traffic_schema` of Spark's Kafka source on the message log and the topic of receipts.

    A sample is a row; its `offset` is that of the record it is in. What cannot be understood is a row
    with an error.
    """
    is_receipt = F.col("topic") == receipts_topic
    told = rows.withColumn("samples", F.when(is_receipt, _samples())).withColumn("is_receipt", is_receipt)
    records = records_from_kafka(told, "traffic", log_prefix, also=("samples", "is_receipt"))
    # One scan of the source: a union would read both topics twice.
    split = records.withColumn("sample", F.explode_outer("samples"))
    of_samples = {
        "partition": receipts_partition(F.col("partition")),
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
            F.when(F.col("is_receipt"), of_samples.get(field.name, F.lit(None)))
            .otherwise(F.col(field.name) if field.name in records.columns else F.lit(None))
            .cast(field.dataType)
            .alias(field.name)
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
