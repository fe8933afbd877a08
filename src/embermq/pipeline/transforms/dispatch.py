"""From records to entries of application logs: a native explode of the stamps made at accept time."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

RETAIN_AS_PUBLISHED = 4


def application_entries(records: DataFrame) -> DataFrame:
    """One row a stamp: (offset, span, generation, log, flags, identifiers, error, body).

    `flags`: bits 0-1 granted QoS, bit 2 retain as published. `identifiers`: u32 big-endian each.
    A record without stamps keeps one row with a null generation, so that the sink sees every position; a row with
    `error` set is not exploded.
    """
    stamped = records.select("offset", "span", "error", "body", F.explode_outer("stamps").alias("stamp"))
    flags = F.col("stamp.qos") + F.when(F.col("stamp.retain_as_published"), RETAIN_AS_PUBLISHED).otherwise(0)
    hexadecimal = F.transform("stamp.subscription_identifiers", lambda number: F.lpad(F.hex(number), 8, "0"))
    return stamped.select(
        "offset",
        "span",
        F.col("stamp.generation").alias("generation"),
        F.col("stamp.log").alias("log"),
        flags.cast("int").alias("flags"),
        F.unhex(F.concat_ws("", hexadecimal)).alias("identifiers"),
        "error",
        "body",
    )
