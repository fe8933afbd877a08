"""Batches in files of the driver's machine: what fails takes no room, and any folder may hold them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.log_writer import LogWriter, record

from embermq.pipeline.jobs.bulk_log import EmbeddedLog
from embermq.pipeline.jobs.kafka_bulk_log import KafkaBulkLog
from embermq.pipeline.log_look import Positions
from embermq.pipeline.places import Places
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks import lake_file
from embermq.pipeline.sinks.lake_file import make_lake_file
from embermq.pipeline.sources import batch_file
from embermq.pipeline.sources.batch_file import write_probe

FULL = "No space left on device"


class TasksHere:
    """What is asked of a Spark session: tasks run in this process, and what is read is told."""

    def __init__(self) -> None:
        self.sparkContext = self.read = self
        self.paths: list[str] = []

    def parallelize(self, values: list[Any], _slices: int) -> TasksHere:
        self.values = values
        return self

    def foreach(self, task: Callable[[Any], None]) -> None:
        for value in self.values:
            task(value)

    def map(self, task: Callable[[Any], Any]) -> TasksHere:
        self.task = task
        return self

    def collect(self) -> list[Any]:
        return [self.task(value) for value in self.values]

    def schema(self, _schema: object) -> TasksHere:
        return self

    def parquet(self, path: str) -> TasksHere:
        self.paths.append(path)
        return self

    def coalesce(self, _partitions: int) -> TasksHere:
        return self


def fail(*_: object) -> None:
    raise OSError(FULL)


def embedded(data_dir: Path, spark: TasksHere) -> EmbeddedLog:
    return EmbeddedLog(DriverSettings(), Places(data_dir), cast(SparkSession, spark))


def files(data_dir: Path) -> list[str]:
    return [each.suffix for each in sorted(Places(data_dir).scratch.rglob("*")) if each.is_file()]


def open_in(folder: Path) -> list[str]:
    """The files of a folder that this process has open, as often as it has."""
    found: list[str] = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # what lists them is one
            found.append(os.readlink(each))
    return sorted(name for name in found if name.startswith(f"{folder}/"))


def test_a_batch_that_could_not_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = embedded(tmp_path, TasksHere())
    monkeypatch.setattr(batch_file, "read_rows", fail)
    for _ in range(3):
        with pytest.raises(OSError, match=FULL):
            log.keep({PARTITION: 0}, {PARTITION: 10})
    assert files(tmp_path) == []
    log.probe({PARTITION: 0})
    assert files(tmp_path) == [".parquet"]


def test_who_reads_the_log_lets_go_of_its_files(tmp_path: Path) -> None:
    """A worker writes one batch after the other, and what retention removes meanwhile takes room while it is open."""
    with closing(LogWriter(tmp_path)) as writer:
        writer.append([record()] * 3)
        log = embedded(tmp_path, TasksHere())
        before = open_in(log_folder := Places(tmp_path).log)
        batch = log.keep({PARTITION: 0}, {PARTITION: 3})
        assert open_in(log_folder) == before
    assert batch.file is not None and len(pq.read_table(batch.file)) == 3


def test_a_file_of_the_lake_that_could_not_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, rows = cast(SparkSession, TasksHere()), tmp_path / "batch.parquet"
    write_probe(spark, rows)
    monkeypatch.setattr(lake_file, "statistics_of", fail)
    with pytest.raises(OSError, match=FULL):
        make_lake_file(spark, rows, 1, -1_000)
    assert list(tmp_path.iterdir()) == [rows]


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    spark, folder = TasksHere(), tmp_path / "of [1] {a,b} *?"
    file = embedded(folder, spark).probe({PARTITION: 0}).file
    (path,) = spark.paths
    assert file is not None and file.is_file()
    assert path.startswith(f"file://{tmp_path}/of \\[1\\] \\{{a,b\\}} \\*\\?/")


class Rows:
    """Of a log in Kafka."""

    kept = 0

    def persist(self, _level: object) -> Rows:
        self.kept += 1
        return self

    def unpersist(self) -> None:
        self.kept -= 1


class KafkaIsAway(KafkaBulkLog):
    bounds: Mapping[int, Any]

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def read(self, begin: Positions, end: Positions) -> DataFrame:
        return cast(DataFrame, self.rows)

    def measure(self, rows: DataFrame) -> None:
        fail()


def test_rows_that_could_not_be_read_are_not_kept_by_spark() -> None:
    rows = Rows()
    with pytest.raises(OSError, match=FULL):
        KafkaIsAway(rows).keep({}, {})
    assert not rows.kept
