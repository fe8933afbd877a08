"""What came, by first topic level: the message log of a broker in a Spark program of your own.

    python examples/spark/topics.py embermq-data              # what the log holds
    python examples/spark/topics.py embermq-data --follow     # and what comes, until Ctrl-C
    python examples/spark/topics.py --kafka 127.0.0.1:9092 --prefix embermq [--follow]

Spark needs a Java 17 or newer (JAVA_HOME). Who runs this has to be able to read the data directory, or the topic.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.spark import EmberMQSource, kafka_jars, messages_in_kafka


def by_root(messages: DataFrame) -> DataFrame:
    """One row for each first topic level; rows with `error` are records that nobody can read."""
    good = messages.where("error IS NULL")
    found = good.groupBy("root").agg(F.count("*").alias("messages"), F.sum("payload_bytes").alias("bytes"))
    return found.orderBy("root")


def show(found: DataFrame, _: int = 0) -> None:
    """One line a row."""
    for row in found.collect():
        print(f"{row['root']}: {row['messages']} messages, {row['bytes']} bytes", flush=True)


def messages_of(spark: SparkSession, words: argparse.Namespace) -> DataFrame:
    """All columns, of whichever log it is, as a stream when it is to be followed."""
    source = spark.readStream if words.follow else spark.read
    if not words.kafka:
        spark.dataSource.register(EmberMQSource)
        return source.format("embermq").option("data_dir", words.data_dir).load()
    options = {
        "subscribe": f"{words.prefix}.msg.all",
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }
    rows = source.format("kafka").option("kafka.bootstrap.servers", words.kafka).options(**options).load()
    return messages_in_kafka(rows, words.prefix)


def main() -> None:
    """Read once, or follow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir", nargs="?", default="embermq-data")
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--kafka", default="", metavar="HOST:PORT")
    parser.add_argument("--prefix", default="embermq")
    words = parser.parse_args()
    builder = SparkSession.builder.appName("topics").master("local[2]")
    if words.kafka:
        builder = builder.config("spark.jars", kafka_jars())
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    found = by_root(messages_of(spark, words))
    if not words.follow:
        show(found)
        return
    query = found.writeStream.outputMode("complete").foreachBatch(show)
    query.trigger(processingTime="2 seconds").start().awaitTermination()


if __name__ == "__main__":
    main()
