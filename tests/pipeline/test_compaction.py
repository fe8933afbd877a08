"""Compaction of a lake that the lake query has written, by Spark: nothing lost, twice, or written again."""

import json
import os
import shutil
import signal
import subprocess
import time
from glob import glob
from pathlib import Path

import pandas as pd
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.log_writer import LogWriter, record
from tests.pipeline.queries import log_rows
from tests.support.broker_process import EMBERMQ
from tests.support.waiting import wait_until

from embermq.app.backup import make_backup, restore_backup
from embermq.pipeline.errors import CompactionError
from embermq.pipeline.jobs import compact as job
from embermq.pipeline.jobs.compact import Compaction, CompactionReport, CompactionTerms
from embermq.pipeline.places import Places
from embermq.pipeline.sinks import lake_files
from embermq.pipeline.sinks.lake import Lake
from embermq.pipeline.sinks.lake_files import LakeDirectory
from embermq.pipeline.transforms.lake import lake_rows

PIPELINE_CHAPTER = Path(__file__).parents[2] / "docs" / "pipeline.md"
MEGABYTE = 1024 * 1024
BATCHES = 3
BATCH = 28
START_S = 90.0
ROOTS = ("plänt 1", "a=b", "", "cars")


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose lake has several batches."""
    places = Places(tmp_path_factory.mktemp("written") / "data")
    log = LogWriter(places.data_dir)
    lake = Lake(places.lake, places.lake_ledger, 200)
    for start in range(0, BATCHES * BATCH, BATCH):
        log.append([record(f"{ROOTS[i % 4]}/{i}", b'{"i": %d}' % i) for i in range(start, start + BATCH)])
        lake.write(lake_rows(log_rows(spark, places, start, start + BATCH)))
    lake.file.close()
    log.close()
    return places.data_dir


@pytest.fixture
def places(written: Path, tmp_path: Path) -> Places:
    """A copy for each test."""
    return Places(shutil.copytree(written, tmp_path / "data"))


def rows_of(lake: Path) -> list[tuple[object, ...]]:
    table = pd.read_parquet(lake).sort_values("offset")
    columns = ["offset", "topic", "payload", "payload_json", "accepted_at", "date", "root"]
    return [tuple(row) for row in table[columns].to_numpy()]


def files_of(lake: Path) -> dict[str, int]:
    """Every file that readers see, and its inode."""
    return {str(file.relative_to(lake)): file.stat().st_ino for file in lake.glob("date=*/root=*/*.parquet")}


def run(spark: SparkSession, places: Places, **terms: int | bool) -> CompactionReport:
    lake = LakeDirectory(places.lake, places.lake_ledger)
    told: list[tuple[int, int]] = []
    order = CompactionTerms(target_bytes=MEGABYTE, older_than_ns=time.time_ns(), **terms)  # type: ignore[arg-type]
    with lake.held():
        report = Compaction(lake, order, lambda done, total: told.append((done, total))).run(lambda: spark)
    assert told == sorted(told) and (not told or told[-1][0] == told[-1][1] >= report.files_merged)
    return report


def check_recipes(spark: SparkSession, lake: Path) -> None:
    """Those of the chapter on the pipeline, and its list of columns."""
    files = glob(f"{lake}/date=2025-*/root=*/*.parquet")
    messages = spark.read.option("basePath", str(lake)).option("mergeSchema", "true").parquet(*files)
    told = [(row.offset, row.date, row.root) for row in messages.orderBy("offset").collect()]
    table = dataset.dataset(files, partitioning="hive").to_table(columns=["offset", "root"]).sort_by("offset")
    assert [row[0] for row in told] == table["offset"].to_pylist() == [row[0] for row in rows_of(lake)]
    assert table["root"].to_pylist() == [row[2] for row in told]
    chapter = PIPELINE_CHAPTER.read_text().partition("### The lake")[2].partition("### The message store")[0]
    missing = [name for name in messages.columns if f"`{name}`" not in chapter]
    assert not missing, "the chapter names every column"


@pytest.mark.promise("pipeline-2", "pipeline-10", "pipeline-12")
def test_files_become_few_and_the_lake_query_goes_on_where_it_was(
    spark: SparkSession, log: LogWriter, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_files, "GRACE_S", 0.1)
    before, files = rows_of(places.lake), files_of(places.lake)
    broken = next(places.lake.glob("date=*/root=a%3Db")) / "part-0-28-7.parquet"
    broken.write_bytes(b"PAR1 torn")
    report = run(spark, places)
    assert [refusal.directory for refusal in report.refusals] == [str(broken.parent.relative_to(places.lake))]
    assert report.refusals[0].reason.startswith("part-0-28-7.parquet: ")
    assert (report.directories, report.files_made, report.files_merged) == (3, 3, 3 * BATCHES)
    broken.unlink()

    write = job._write

    def forgetful(spark: SparkSession, source: Path, target: Path, bins: int) -> None:
        next(source.glob("bin=*/0.parquet")).unlink()
        write(spark, source, target, bins)

    monkeypatch.setattr(job, "_write", forgetful)
    with pytest.raises(CompactionError, match="nothing was changed"):
        run(spark, places)
    monkeypatch.setattr(job, "_write", write)
    assert run(spark, places).files_merged == BATCHES

    after = files_of(places.lake)
    assert rows_of(places.lake) == before and len(files) == 4 * BATCHES and len(after) == 4
    assert spark.read.parquet(str(places.lake)).count() == len(before)
    offsets = pq.read_table(places.lake / next(iter(after)), partitioning=None)["offset"].to_pylist()
    assert offsets == sorted(offsets), "in the order of the log"
    again = run(spark, places)
    assert (again.files_merged, files_of(places.lake)) == (0, after), (
        "it changes nothing when it is run twice"
    )

    anew = Lake(places.lake, places.lake_ledger, 200)
    log.append([record("cars/x", b"new")])
    end = BATCHES * BATCH + 1
    assert anew.write(lake_rows(log_rows(spark, places, 0, end))) == 1, "what was merged is not written again"
    assert [row[0] for row in rows_of(places.lake)] == list(range(end))
    anew.file.close()
    check_recipes(spark, places.lake)
    make_backup(places.data_dir, tmp_path / "backup", lambda *_: None)
    restore_backup(tmp_path / "backup", tmp_path / "restored", lambda *_: None)
    assert rows_of(tmp_path / "restored" / "lake") == rows_of(places.lake)


@pytest.mark.promise("pipeline-10", "pipeline-12")
def test_the_command_goes_on_after_a_kill(places: Places) -> None:
    before, files = rows_of(places.lake), files_of(places.lake)
    words = [str(EMBERMQ), "pipeline", "compact", "--data-dir", str(places.data_dir), "--json"]

    def command(*more: str) -> tuple[int, list[dict[str, object]]]:
        done = subprocess.run([*words, *more], capture_output=True, text=True, timeout=START_S, check=False)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    code, lines = command("--dry-run", "--older-than-hours", "0")
    report = lines[-1]["report"]
    assert isinstance(report, dict) and code == 0
    assert (report["files_merged"], report["files_made"], report["dry_run"]) == (4 * BATCHES, 4, True)
    assert files_of(places.lake) == files and not list(places.lake.glob("_compacting*"))

    first = subprocess.Popen([*words, "--older-than-hours", "0"], stdout=subprocess.DEVNULL)
    work = places.lake / "_compacting" / "in"
    wait_until(lambda: work.exists() or first.poll() is not None, START_S, "Spark is about to", poll_s=0.002)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert rows_of(places.lake) == before
    code, lines = command("--older-than-hours", "0")
    assert code == 0 and lines[-2] == {"done": 4 * BATCHES, "total": 4 * BATCHES}
    assert rows_of(places.lake) == before and len(files_of(places.lake)) == 4
    assert [path.name for path in places.lake.glob("_compacting*")] == ["_compacting.lock"]
