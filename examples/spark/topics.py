"""What came, by first topic level: the message log of a broker in a Spark program of your own.

    python examples/spark/topics.py embermq-data              # what the log holds
    python examples/spark/topics.py embermq-data --follow     # and what comes, until Ctrl-C

Spark needs a Java 17 or newer (JAVA_HOME). Who runs this has to be able to read the data directory.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.spark import EmberMQSource


def by_root(messages: DataFrame) -> DataFrame:
    """One row for each first topic level; rows with `error` are records that nobody can read."""
    good = messages.where("error IS NULL")
    found = good.groupBy("root").agg(F.count("*").alias("messages"), F.sum("payload_bytes").alias("bytes"))
    return found.orderBy("root")


def show(found: DataFrame, _: int = 0) -> None:
    """One line a row."""
    for row in found.collect():
        print(f"{row['root']}: {row['messages']} messages, {row['bytes']} bytes", flush=True)


def main() -> None:
    """Read once, or follow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir")
    parser.add_argument("--follow", action="store_true")
    words = parser.parse_args()
    spark = SparkSession.builder.appName("topics").master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(EmberMQSource)
    if not words.follow:
        show(by_root(spark.read.format("embermq").option("data_dir", words.data_dir).load()))
        return
    stream = spark.readStream.format("embermq").option("data_dir", words.data_dir).load()
    query = by_root(stream).writeStream.outputMode("complete").foreachBatch(show)
    query.trigger(processingTime="2 seconds").start().awaitTermination()


if __name__ == "__main__":
    main()
