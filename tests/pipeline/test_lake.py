"""The lake: a Delta Lake table with each position once, whatever is repeated, lost or killed; readable by others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import deltalake
import duckdb
import duckdb_extension_delta  # type: ignore[import-untyped]
import polars as pl
import pyarrow.fs as pafs
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.pipeline.lake import offsets_in, rows_in
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import log_rows, rows_of
from tests.support.seaweed import BUCKET, KEY, SECRET, SeaweedServer
from tests.support.tcp_proxy import TcpProxy

from embermq.cli.main import main
from embermq.pipeline.errors import LakeError
from embermq.pipeline.jobs import compact as job
from embermq.pipeline.jobs.lake_upkeep import tidy
from embermq.pipeline.places import Places, lock_driver
from embermq.pipeline.sinks.held_table import load_log_store
from embermq.pipeline.sinks.lake import Lake
from embermq.pipeline.sources.batch_file import write_batch
from embermq.pipeline.transforms.archive import lake_rows
from embermq.tools.backup import make_backup, restore_backup

REPLAYS = [(0, 10), (0, 10), (5, 17), (3, 30), (29, 40)]
"""Offset ranges as a query might repeat them after losing its checkpoint."""
LOG_ID = 7
LOG_FILES = pafs.FileSelector(f"{BUCKET}/lake/_delta_log")
ANONYMOUS = {
    "aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider",
}
"""Nothing is signed, so a header may be taken away."""
DAY_MS = 86_400_000
NOON = date(2025, 6, 15)
RECORDS = 40


def fill(log: LogWriter) -> None:
    """40 records of four roots and two days, eight of them in a frame that is damaged."""
    for tick in range(4):
        at_ms = NOON_MS + (DAY_MS if tick == 3 else 0)
        log.append([record(f"r{i % 3}/x", b"%d" % (tick * 10 + i), accepted_ms=at_ms) for i in range(10)])
    log.damage(20, record() * 2)


GOOD = [offset for offset in range(RECORDS) if offset not in range(22, 30)]


@pytest.fixture
def lakes(places: Places) -> Iterator[list[Lake]]:
    """Closed at the end."""
    opened: list[Lake] = []
    yield opened
    for lake in opened:
        lake.close()


def opened(spark: SparkSession, places: Places, lakes: list[Lake], log_id: int = LOG_ID) -> Lake:
    """The lake as a driver that has just started opens it; the one before has ended."""
    for before in lakes:
        before.close()
    lake = Lake(str(places.lake), places)
    lakes.append(lake)
    lake.open(spark, log_id)
    return lake


def write(lake: Lake, spark: SparkSession, places: Places, start: int, end: int) -> int:
    """As a batch of the embedded log is written, by its file; rows of a log in Kafka are in tests of their own."""
    file = places.work / "batch.parquet"
    write_batch(spark, places.log, start, end, file)
    return lake.write_file(file)


@pytest.mark.promise("pipeline-2", "pipeline-4", "pipeline-10")
def test_repeated_with_other_boundaries_and_read_by_others(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake]
) -> None:
    """Batches that overlap leave each record once, for Spark, deltalake, Polars and DuckDB alike."""
    fill(log)
    lake = opened(spark, places, lakes)
    assert [write(lake, spark, places, start, end) for start, end in REPLAYS] == [10, 0, 7, 13, 10]
    counts = lake.file.counts()
    assert counts.pop("bytes") > 0
    assert counts == {"records": 40, "entries": 32, "rejected": 8}
    assert (lake.file.position(), lake.positions()) == (40, {0: 40})
    by_spark = spark.read.format("delta").load(str(places.lake))
    assert sorted(row.offset for row in by_spark.select("offset").collect()) == GOOD
    assert offsets_in(places) == GOOD
    by_polars = pl.scan_delta(str(places.lake)).select("offset", "root", "date").collect().sort("offset")
    assert by_polars["offset"].to_list() == GOOD
    assert set(by_polars["root"]) == {"r0", "r1", "r2", "cars"}
    assert set(by_polars["date"]) == {NOON, NOON + timedelta(days=1)}
    assert sorted(in_duckdb(places)) == GOOD
    table = deltalake.DeltaTable(str(places.lake))
    assert table.metadata().partition_columns == []
    (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{places.lake}`").collect()
    assert detail.clusteringColumns == ["date", "root", "accepted_at"]


def in_duckdb(places: Places) -> list[int]:
    """With the extension that comes from PyPI, so that nothing is fetched."""
    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        rows = connection.execute('SELECT "offset" FROM delta_scan(?)', [str(places.lake)]).fetchall()
    return [row[0] for row in rows]


@pytest.mark.promise("pipeline-2", "pipeline-10")
@pytest.mark.parametrize(
    "dies", ["before its commit", pytest.param("after its commit", marks=pytest.mark.in_faults)]
)
def test_a_batch_whose_driver_dies_is_there_once(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake], dies: str
) -> None:
    """The next driver cuts its batches differently, and has lost what lake.db said."""
    log.append([record(payload=b"%d" % i) for i in range(RECORDS)])
    lake = opened(spark, places, lakes)
    write(lake, spark, places, 0, 10)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    target: tuple[object, str] = (
        (lake.table, "_commit") if dies.startswith("before") else (lake.file, "count")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*target, die)
        with pytest.raises(KeyboardInterrupt):
            write(lake, spark, places, 5, 20)
    there = 20 if dies.startswith("after") else 10
    assert lake.file.position() == 10, "what retention goes by is never ahead"
    assert offsets_in(places) == list(range(there)), "readers see all of a batch or nothing"
    lake.close()
    places.lake_ledger.unlink()
    again = opened(spark, places, lakes)
    assert (again.positions(), again.file.position()) == ({0: there}, there)
    write(again, spark, places, 5, RECORDS)
    assert offsets_in(places) == list(range(RECORDS))


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2", "pipeline-10")
def test_what_a_loss_of_power_has_torn_is_written_again(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake], tmp_path: Path
) -> None:
    """A commit that is there without its records; lake.db, which is synced, does not know of it."""
    log.append([record(payload=b"%d" % i) for i in range(RECORDS)])
    lake = opened(spark, places, lakes)
    write(lake, spark, places, 0, 10)
    before = rows_of(places.lake_ledger, "SELECT version, next_offset FROM lake_version, progress")
    known = set(places.lake.rglob("*"))
    write(lake, spark, places, 10, 20)
    for file in set(places.lake.rglob("*.parquet")) - known:
        os.truncate(file, 100)
    lake.file.connection.execute("UPDATE progress SET next_offset = 10")
    lake.file.connection.execute(
        "UPDATE lake_version SET version = ?, boot = 'the one before'", before[0][:1]
    )
    lake.close()
    fresh = Places(tmp_path / "after")  # Delta remembers the table of that place, as a new JVM does not
    places.data_dir.rename(fresh.data_dir)
    again = opened(spark, fresh, lakes)
    assert again.positions() == {0: 10}
    assert rows_of(fresh.lake_ledger, "SELECT version, next_offset FROM lake_version, progress") == before
    write(again, spark, fresh, 5, RECORDS)
    assert offsets_in(fresh) == list(range(RECORDS))


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2", "pipeline-10")
def test_a_broker_whose_machine_has_restarted_leaves_what_another_one_has_written(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake], tmp_path: Path
) -> None:
    """Both use one folder in turns, as nodes of a cluster do that take over from one another."""
    log.append([record(payload=b"%d" % i) for i in range(RECORDS)])
    first = opened(spark, places, lakes)
    write(first, spark, places, 0, 10)
    first.file.connection.execute("UPDATE lake_version SET boot = 'the one before'")
    first.close()
    second = Lake(str(places.lake), Places(tmp_path / "other"))
    lakes.append(second)
    second.open(spark, LOG_ID)
    write(second, spark, places, 10, 20)
    second.table.merge()
    commits = {file.name for file in places.lake.glob("_delta_log/*.json")}
    again = opened(spark, places, lakes)
    assert commits <= {file.name for file in places.lake.glob("_delta_log/*.json")}
    assert again.positions() == {0: 20}
    assert offsets_in(places) == list(range(20))


@pytest.mark.promise("pipeline-4", "pipeline-5")
def test_what_is_no_record_moves_the_position(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake]
) -> None:
    """Rejected records and a range that the log has let go; a later driver does not read them again."""
    log.append([record()] * 5)
    log.append([b"\0\0\0\1\x10"] * 3)
    log.append([record()])
    log.trim_below(5)
    lake = opened(spark, places, lakes)
    assert write(lake, spark, places, 0, 8) == 8
    assert lake.file.counts() == {"records": 8, "missing": 5, "rejected": 3}
    assert opened(spark, places, lakes).positions() == {0: 8}
    assert rows_in(places, "offset") == []


@pytest.mark.promise("pipeline-10", "pipeline-3")
def test_positions_are_of_a_partition_and_of_one_life_of_a_log(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake]
) -> None:
    """A log that was made anew begins with offset 0 again, and Delta passes over a smaller version in silence."""
    log.append([record(payload=b"%d" % i) for i in range(RECORDS)])

    def partitions(*ranges: tuple[int, int, int]) -> DataFrame:
        rows = [
            log_rows(spark, places, start, end).withColumn("partition", F.lit(number).cast("int"))
            for number, start, end in ranges
        ]
        found = rows[0]
        for more in rows[1:]:
            found = found.unionByName(more)
        return lake_rows(found)

    lake = Lake(str(places.lake), places)
    lakes.append(lake)
    lake.open(spark, LOG_ID, [0, 1])
    lake.begin_at({0: 5, 1: 0})
    assert lake.write(partitions((0, 0, 20), (1, 0, 3))) == 18
    assert lake.write(partitions((0, 10, 20), (1, 0, 9))) == 6
    assert lake.file.positions() == lake.positions() == {0: 20, 1: 9}
    lake.open(spark, LOG_ID, [0, 1, 2])
    assert lake.positions() == {0: 20, 1: 9}, "the third has not begun"
    lake.open(spark, LOG_ID + 1, [0, 1])
    assert lake.positions() == lake.file.positions() == {}, "another log"
    assert lake.write(partitions((0, 0, 2))) == 2
    found = sorted(rows_in(places, "log_id", "partition", "offset"))
    expected = [(7, 0, at) for at in range(5, 20)] + [(7, 1, at) for at in range(9)] + [(8, 0, 0), (8, 0, 1)]
    assert found == expected


@pytest.mark.in_faults
def test_a_lake_that_was_removed_is_filled_anew(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake]
) -> None:
    log.append([record()] * 10)
    write(opened(spark, places, lakes), spark, places, 0, 10)
    shutil.rmtree(places.lake)
    lake = opened(spark, places, lakes)
    assert (lake.positions(), lake.file.position()) == ({}, None)
    write(lake, spark, places, 0, 5)
    shutil.rmtree(places.lake)  # while somebody writes it
    with pytest.raises(LakeError, match="the table was removed, or another one is in its place"):
        write(lake, spark, places, 5, 10)
    lake.open(spark, LOG_ID)
    write(lake, spark, places, 0, 10)
    assert offsets_in(places) == list(range(10))


@pytest.mark.parametrize("other", ["date=2025-06-15/root=cars/part-0.parquet", ""])
def test_a_place_with_something_else_is_refused(
    spark: SparkSession, places: Places, lakes: list[Lake], other: str
) -> None:
    """Files of another kind, or a file; nothing of it is touched."""
    file = places.lake / other
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PAR1")
    for _ in range(2):
        with pytest.raises(LakeError, match="is neither empty nor a Delta Lake table"):
            opened(spark, places, lakes)
    assert [path for path in (places.lake, *places.lake.rglob("*")) if path.is_file()] == [file]


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.promise("pipeline-2")
def test_a_java_that_still_writes_is_waited_for(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake]
) -> None:
    """That of a killed driver may be about to commit: whoever asked the table before would write its batch again."""
    places.work.mkdir(parents=True)
    words = [sys.executable, "-c", HOLDER, str(places.lake_lock)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(LakeError, match="still writes it"):
            opened(spark, places, lakes)
        other.kill()
    log.append([record()] * 3)
    lake = opened(spark, places, lakes)
    assert write(lake, spark, places, 0, 3) == 3


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-7", "pipeline-10")
def test_files_are_merged_and_old_records_deleted_beside_readers(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake]
) -> None:
    fill(log)
    lake = opened(spark, places, lakes)
    for start in range(0, RECORDS, 10):
        write(lake, spark, places, start, start + 10)
    reader = deltalake.DeltaTable(str(places.lake))
    before = lake.table.size().files
    kept = [offset for offset in GOOD if offset >= 30]
    done = tidy(lake.table, 10, NOON + timedelta(days=11))
    assert (done.deleted, done.merged.files_added) == (len(GOOD) - len(kept), 1)
    assert lake.table.size().files == 1 < before
    assert offsets_in(places) == kept
    assert sorted(reader.to_pyarrow_table(columns=["offset"])["offset"].to_pylist()) == GOOD, "its snapshot"
    assert lake.table.positions(LOG_ID, [0]) == {0: RECORDS}
    version = lake.table.version()
    again = tidy(lake.table, 10, NOON + timedelta(days=11))
    assert (again.deleted, again.merged.files_removed, lake.table.version()) == (0, 0, version)
    log.append([record(payload=b"new")])
    write(lake, spark, places, RECORDS, RECORDS + 1)
    assert offsets_in(places) == [*kept, RECORDS]


@pytest.fixture
def compact(
    spark: SparkSession, places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """The command in this process, with Spark that has started already."""

    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(job, "batch_session", started)

    def command(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["pipeline", "compact", "--data-dir", str(places.data_dir), *words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return command


@pytest.mark.promise("pipeline-12")
def test_the_command(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake], compact: Any
) -> None:
    """`pipeline compact`: what it would do, that it is refused beside a driver, and what it has done."""
    code, _, told = compact()
    assert code == 1 and "has no lake" in told
    fill(log)
    lake = opened(spark, places, lakes)
    for start in range(0, RECORDS, 20):
        write(lake, spark, places, start, start + 20)
    lake.close()
    version = rows_of(places.lake_ledger, "SELECT version FROM lake_version")
    old = ["--set", "pipeline.lake_retention_days=30"]
    code, out, _ = compact("--dry-run", *old)
    assert code == 0 and f"deleted  {len(GOOD)} records would be" in out
    assert rows_of(places.lake_ledger, "SELECT version FROM lake_version") == version
    held = lock_driver(places)
    try:
        code, _, told = compact()
    finally:
        os.close(held)
    assert code == 1 and "kept in order by the pipeline that runs" in told
    code, out, _ = compact("--json", *old)
    *steps, report = map(json.loads, out.splitlines())
    assert code == 0 and steps[-1] == {"done": 3, "total": 3}
    found = report["report"]
    assert (found["files_before"], found["deleted"]) == (2, len(GOOD)) and offsets_in(places) == []


@pytest.mark.promise("pipeline-10")
def test_a_backup_has_the_lake_of_its_position(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake], tmp_path: Path
) -> None:
    """What is committed while it is made is not in it: the restored broker's log may not have it either."""
    log.append([record()] * RECORDS)
    lake = opened(spark, places, lakes)
    write(lake, spark, places, 0, 10)
    lake.file.connection.execute("BEGIN")  # as it stands when the backup looks
    lake.table.append(lake_rows(log_rows(spark, places, 10, 20)).drop("span", "error"), LOG_ID, 0, 20)
    make_backup(places.data_dir, tmp_path / "saved", lambda *_: None)
    lake.close()
    restore_backup(tmp_path / "saved", tmp_path / "fresh", lambda *_: None)
    fresh = Places(tmp_path / "fresh")
    assert offsets_in(fresh) == list(range(10))
    again = opened(spark, fresh, lakes)
    assert again.positions() == {0: 10}
    write(again, spark, places, 5, RECORDS)
    assert offsets_in(fresh) == list(range(RECORDS))


@pytest.mark.promise("pipeline-2", "pipeline-10", "cluster-21")
def test_of_two_drivers_that_write_at_once_one_is_refused(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake], tmp_path: Path
) -> None:
    """That of a node that stood still, and the one of the slot's next node: before a commit, and during one."""
    log.append([record(payload=b"%d" % i) for i in range(RECORDS)])
    late = opened(spark, places, lakes)
    write(late, spark, places, 0, 5)
    other = Lake(str(places.lake), Places(tmp_path / "other"))
    lakes.append(other)
    other.open(spark, LOG_ID)
    write(other, spark, places, 5, 10)
    with pytest.raises(LakeError, match="another driver has written up to 10, where 5 was known"):
        write(late, spark, places, 5, 20)
    for at, has_asked in ((10, False), (20, True)):
        late.open(spark, LOG_ID)
        if has_asked:  # and knows by its own commit where the table is
            write(late, spark, places, 5, at)
            other.open(spark, LOG_ID)
        commit, end = late.table._commit, at + 5

        def overtaken(*given: Any, commit: Any = commit, end: int = end) -> None:
            write(other, spark, places, 10, end)
            commit(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(late.table, "_commit", overtaken)
            with pytest.raises(LakeError, match=f"another driver has written behind {at} meanwhile"):
                write(late, spark, places, 5, 30)
        assert offsets_in(places) == list(range(end))
    late.open(spark, LOG_ID)
    assert late.positions() == {0: 25}
    write(late, spark, places, 5, RECORDS)
    assert offsets_in(places) == list(range(RECORDS))


@contextmanager
def object_storage(
    spark: SparkSession,
    folder: Path,
    options: Mapping[str, str] = MappingProxyType({}),
    *,
    is_open: bool = False,
) -> Iterator[SeaweedServer]:
    """Where this session finds it."""
    hadoop: Any = spark._jsc.hadoopConfiguration()
    with SeaweedServer(folder, is_open=is_open) as server:
        named = {
            "endpoint": server.endpoint,
            "path.style.access": "true",
            "endpoint.region": "us-east-1",
            "access.key": KEY,
            "secret.key": SECRET,
            "impl.disable.cache": "true",
            **options,
        }
        for name, value in named.items():
            hadoop.set(f"fs.s3a.{name}", value)
        try:
            yield server
        finally:
            for name in named:
                hadoop.unset(f"fs.s3a.{name}")


def log_names(server: SeaweedServer) -> set[str]:
    return {each.base_name for each in server.files().get_file_info(LOG_FILES)}


@pytest.mark.in_faults
@pytest.mark.promise("cluster-21")
def test_a_commit_whose_number_is_taken_is_refused_by_the_storage(
    spark: SparkSession, places: Places, lakes: list[Lake], tmp_path: Path
) -> None:
    """As the drivers of several slots write; without that they do not begin."""
    load_log_store(spark, tmp_path / "classes")
    with object_storage(spark, tmp_path / "weak", {"create.conditional.enabled": "false"}):
        lakes.append(weak := Lake(f"s3a://{BUCKET}/lake", places, shared=True))
        with pytest.raises(Py4JJavaError, match="Conditional Writes Unavailable"):
            weak.open(spark, LOG_ID, [0])
        weak.close()
    # Or it does not know the header, and says nothing.
    with (
        object_storage(spark, tmp_path / "deaf", ANONYMOUS, is_open=True) as server,
        TcpProxy(server.port, lambda sent: sent.replace(b"If-None-Match:", b"X-None-Match: ")) as proxy,
    ):
        spark._jsc.hadoopConfiguration().set("fs.s3a.endpoint", f"http://127.0.0.1:{proxy.port}")
        lakes.append(deaf := Lake(f"s3a://{BUCKET}/lake", places, shared=True))
        with pytest.raises(LakeError, match="overwrites what must not be there yet"):
            deaf.open(spark, LOG_ID, [0])
        assert not [name for name in log_names(server) if "embermq" in name], "nothing is left of the look"
        deaf.close()
    with object_storage(spark, tmp_path / "strong") as server:
        lakes.append(strong := Lake(f"s3a://{BUCKET}/lake", places, shared=True))
        strong.open(spark, LOG_ID, [0])
        jvm: Any = spark._jvm
        conf: Any = spark._jsparkSession.sessionState().newHadoopConf()
        commit = jvm.org.apache.hadoop.fs.Path(f"s3a://{BUCKET}/lake/_delta_log/{0:020}.json")
        with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
            jvm.embermq.ConditionalLogStore(conf).write(
                commit, jvm.java.util.ArrayList().iterator(), False, conf
            )
        assert not [name for name in log_names(server) if "embermq" in name], "nothing is left of the look"
        assert strong.table.version() == 0


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2", "pipeline-10")
def test_in_object_storage(
    spark: SparkSession, log: LogWriter, places: Places, lakes: list[Lake], tmp_path: Path
) -> None:
    """Written, opened anew, put in order, and read by the package deltalake."""
    log.append([record(payload=b"%d" % i) for i in range(RECORDS)])
    with object_storage(spark, tmp_path / "seaweed") as server:
        place = f"s3a://{BUCKET}/lake"
        for ranges in ([(0, 10), (5, 20)], [(0, 25), (17, RECORDS)]):
            lake = Lake(place, places)
            lakes.append(lake)
            lake.open(spark, LOG_ID)
            for start, end in ranges:
                write(lake, spark, places, start, end)
            lake.close()
        assert tidy(lake.table, 0, NOON).merged.files_added == 1
        found = deltalake.DeltaTable(f"s3://{BUCKET}/lake", storage_options=server.options())
        table = found.to_pyarrow_table(columns=["offset"])
        assert sorted(table["offset"].to_pylist()) == list(range(RECORDS))
