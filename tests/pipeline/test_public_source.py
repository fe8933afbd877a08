"""`format("embermq")`, as a Spark program of a user's has it."""

import os
import runpy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.log_writer import LogWriter, record
from tests.support.kafka_server import KafkaServer

from embermq.pipeline.java import find_java
from embermq.pipeline.places import Places
from embermq.pipeline.schema import record_schema
from embermq.pipeline.spark import EmberMQSource, kafka_jars

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "topics.py"
SHOWN = ["r0: 12 messages, 24 bytes", "r1: 8 messages, 16 bytes"]
END_S = 240


def filled(log: LogWriter) -> None:
    for number in range(4):
        log.append([record(f"r{i % 2}/x", b"%02d" % (5 * number + i)) for i in range(5)])


@pytest.mark.promise("pipeline-8", "pipeline-4")
def test_the_log_is_read_from_any_offset_in_batches_and_as_a_stream(
    spark: SparkSession, log: LogWriter, places: Places, tmp_path: Path
) -> None:
    filled(log)
    spark.dataSource.register(EmberMQSource)
    source = spark.read.format("embermq").option("data_dir", str(places.data_dir))
    assert source.load().schema == record_schema("all")
    assert [row.offset for row in source.load().orderBy("offset").collect()] == list(range(20))
    part = source.option("start", "3").option("end", "7").load().orderBy("offset").collect()
    assert [(row.offset, bytes(row.payload)) for row in part] == [(i, b"%02d" % i) for i in range(3, 7)]
    stream = spark.readStream.format("embermq").options(data_dir=str(places.data_dir), records_max="6").load()

    def count_new() -> int:
        before = spark.catalog.tableExists("seen") and spark.table("seen").count()
        query = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
        query.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
        spark.read.parquet(str(tmp_path / "out")).createOrReplaceTempView("seen")
        return spark.table("seen").count() - int(before)

    assert count_new() == 20
    log.append([record("r9/x", b"new")])
    assert count_new() == 1, "a query goes on where its checkpoint says"
    spark.catalog.dropTempView("seen")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "data_dir: '' has no embedded message log"),
        ({"data_dir": "/nowhere"}, "data_dir: '/nowhere' has no embedded message log"),
        ({"data_dir": "HERE", "start": "newest"}, "start: 'newest' is not a whole number"),
        ({"data_dir": "HERE", "offset": "3"}, "offset: no option of embermq; it has data_dir, end,"),
    ],
)
def test_options_that_cannot_be_are_named(
    spark: SparkSession, log: LogWriter, places: Places, options: dict[str, str], named: str
) -> None:
    filled(log)
    spark.dataSource.register(EmberMQSource)
    given = {name: str(places.data_dir) if value == "HERE" else value for name, value in options.items()}
    with pytest.raises(PySparkException, match=named):
        spark.read.format("embermq").options(**given).load().collect()


def test_the_example(
    spark: SparkSession, log: LogWriter, places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(log)
    example = runpy.run_path(str(EXAMPLE))
    words = Namespace(data_dir=str(places.data_dir), kafka=None, follow=False)
    example["show"](example["by_root"](example["messages_of"](spark, words)))
    assert capsys.readouterr().out.splitlines() == SHOWN


@pytest.mark.in_faults
def test_the_example_as_a_program(log: LogWriter, places: Places, tmp_path: Path) -> None:
    filled(log)
    java = find_java(tmp_path / "java")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(places.data_dir)],
        env=os.environ | {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=END_S,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == SHOWN


def test_the_example_on_kafka(
    spark: SparkSession, kafka: KafkaServer, capsys: pytest.CaptureFixture[str]
) -> None:
    log = LogInKafka(kafka.bootstrap, kafka.prefix())
    log.append(record(f"r{number % 5 % 2}/x", b"%02d" % number) for number in range(20))
    log.append_raw(b"r0/x", b"broken", [("v", b"9.0")])
    log.flush()
    example = runpy.run_path(str(EXAMPLE))
    words = Namespace(kafka=kafka.bootstrap, prefix=log.kafka.prefix, follow=False)
    messages = example["messages_of"](spark, words)
    assert messages.schema.names == record_schema("all").names
    example["show"](example["by_root"](messages))
    assert capsys.readouterr().out.splitlines() == SHOWN
    words.follow = True
    assert example["messages_of"](spark, words).isStreaming
    assert kafka_jars().count(".jar") == 4
