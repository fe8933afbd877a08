"""Which files of the lake are merged, and what readers and a crash see while they take one another's place.

The files here hold numbers, one a line: Spark has no part in it.
"""

import errno
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from embermq.pipeline.errors import CompactionError, OtherVersionError
from embermq.pipeline.sinks import lake_files as module
from embermq.pipeline.sinks.exchange import NoExchangeError, exchange
from embermq.pipeline.sinks.lake_files import (
    ChangedMeanwhile,
    FileMerge,
    LakeDirectory,
    Made,
    lake_files,
    merges,
)

DAY = "date=2026-11-21/root=plant%2F1"
EVER_NS = 1 << 62
ENOUGH_S = 30.0


def put(directory: Path, first: int, end: int, number: int = 0, *, pad: int = 0) -> Path:
    """A file with the numbers [first, end), at least `pad` bytes long."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"part-{first}-{end}-{number}.parquet"
    file.write_text("".join(f"{one}\n" for one in range(first, end)) + " " * pad)
    return file


def numbers(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


def held_numbers(directory: Path) -> list[int]:
    """Of all files, as a reader finds them that lists names and then opens them."""
    return sorted(one for name in os.listdir(directory) for one in numbers(directory / name))


@pytest.fixture
def lake(tmp_path: Path) -> LakeDirectory:
    ledger = tmp_path / "lake.db"
    connection = sqlite3.connect(ledger)
    connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE lake_pending (staged TEXT);")
    connection.close()
    (tmp_path / "lake").mkdir()
    return LakeDirectory(tmp_path / "lake", ledger)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was replaced goes at the end of a compaction, when nobody lists it any more."""
    monkeypatch.setattr(module, "GRACE_S", 0.0)


def made(lake: LakeDirectory, merge: FileMerge, number: int = 0) -> Made:
    """As Spark does it."""
    path = lake.work / f"made-{number}"
    path.unlink(missing_ok=True)
    path.write_text("".join((merge.directory / file.name).read_text() for file in merge.files))
    return Made(merge, path)


def merge_all(lake: LakeDirectory, directory: Path, target_bytes: int = 10_000) -> int:
    plan = merges(directory, target_bytes, EVER_NS)
    lake.swap(directory, [made(lake, merge, number) for number, merge in enumerate(plan)])
    return len(plan)


@pytest.mark.promise("pipeline-10", "pipeline-12")
def test_small_files_are_gathered_in_the_order_of_the_log_up_to_the_target(lake: LakeDirectory) -> None:
    day = lake.lake / DAY
    for first, size in ((100, 30), (20, 49), (9, 30), (3, 40), (40, 50), (60, 99), (200, 45)):
        put(day, first, first, pad=size)
    put(day, 20, 20, 1, pad=20)
    (day / "mine.parquet").write_text("5")
    found = merges(day, 100, EVER_NS)
    assert [[(file.first, file.number) for file in merge.files] for merge in found] == [
        [(3, 0), (9, 0)],
        [(20, 0), (20, 1), (100, 0)],
    ], "half of the target and more is large enough, and one file alone is nothing to merge"
    assert [merge.size for merge in found] == [70, 99]
    assert not merges(day, 100, 1), "all were written later"
    (day / "below").mkdir()
    with pytest.raises(ChangedMeanwhile, match="below is no file"):
        merges(day, 100, EVER_NS)


@pytest.mark.promise("pipeline-10", "pipeline-12")
def test_what_is_merged_keeps_names_rights_age_and_what_others_put_there(lake: LakeDirectory) -> None:
    day = lake.lake / DAY
    files = [put(day, first, first + 10) for first in range(0, 40, 10)]
    large = put(day, 40, 50, pad=400)
    (day / "_note").write_text("")
    for file in files:
        file.chmod(0o640)
        os.utime(file, ns=(5, 7_000))
    day.chmod(0o750)
    with lake.held():
        plan = merges(day, 120, EVER_NS)
        assert len(plan) == 1
        lake.swap(day, [made(lake, plan[0])])
    assert sorted(os.listdir(day)) == ["_note", "merged-0-40-0.parquet", large.name]
    assert held_numbers(day) == list(range(50))
    merged = (day / "merged-0-40-0.parquet").stat()
    assert (merged.st_mode & 0o777, merged.st_mtime_ns, day.stat().st_mode & 0o777) == (0o640, 7_000, 0o750)
    assert lake_files(day)[0].end == 40
    put(day, 0, 0, 9)
    with lake.held():
        assert merge_all(lake, day, 300) == 1
    assert "merged-0-40-1.parquet" in os.listdir(day), "a name that is there already is not given again"
    assert not any(lake.lake.glob("_compacting/*"))


@pytest.mark.promise("pipeline-10", "pipeline-12")
def test_a_reader_sees_each_record_once_or_an_error_while_files_come_and_are_merged(
    lake: LakeDirectory,
) -> None:
    day = lake.lake / DAY
    put(day, 0, 3)
    sink_file = sqlite3.connect(lake._ledger, isolation_level=None, check_same_thread=False)
    stop = threading.Event()
    reads, problems = Counter[str](), list[str]()
    published, merged = [3], 0

    def read() -> None:
        while not stop.is_set():
            at_least = published[0]
            try:
                found = held_numbers(day)
            except FileNotFoundError:
                reads["error"] += 1
                continue
            reads["whole"] += 1
            if found != list(range(len(found))) or len(found) < at_least:
                problems.append(f"{len(found)} of at least {at_least}")

    def publish() -> None:
        """As the lake query does it."""
        while not stop.is_set() and published[0] < 3_000:
            staged = put(lake.lake / "_staging", published[0], published[0] + 3)
            sink_file.execute("BEGIN IMMEDIATE")
            staged.rename(day / staged.name)
            sink_file.execute("COMMIT")
            published[0] += 3

    threads = [threading.Thread(target=work) for work in (read, read, publish)]
    with lake.held():
        for thread in threads:
            thread.start()
        try:
            deadline_s = time.monotonic() + ENOUGH_S
            while (merged < 20 or reads["whole"] < 20) and not problems and time.monotonic() < deadline_s:
                merged += merge_all(lake, day, 40)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            sink_file.close()
    assert not problems
    assert held_numbers(day) == list(range(published[0]))
    assert merged >= 20 and reads["whole"] >= 20


@pytest.mark.promise("pipeline-10")
def test_a_listing_that_has_begun_finds_all_names(lake: LakeDirectory) -> None:
    day = lake.lake / DAY
    names = {put(day, first, first + 10).name for first in range(0, 40, 10)}
    with lake.held():
        opened = os.open(day, os.O_RDONLY)
        try:
            assert merge_all(lake, day) == 1
            assert set(os.listdir(opened)) == names
        finally:
            os.close(opened)
        assert held_numbers(day) == list(range(40))
    assert [path.name for path in lake.lake.glob("_compacting*")] == ["_compacting.lock"]


@pytest.mark.promise("pipeline-12")
def test_a_crash_at_any_step_leaves_the_old_files_or_the_new_ones(
    lake: LakeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    left = [0]

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def step(*words: object, **options: object) -> object:
            if not left[0]:
                raise Killed
            left[0] -= 1
            return real(*words, **options)

        return step

    monkeypatch.setattr(module, "exchange", dying(exchange))
    monkeypatch.setattr(module, "sync", dying(module.sync))
    monkeypatch.setattr(os, "link", dying(os.link))
    monkeypatch.setattr(os, "utime", dying(os.utime))
    day = lake.lake / DAY
    endings = set()
    for steps in range(100):
        left[0] = 1_000
        names = [put(day, first, first + 10).name for first in range(0, 40, 10)]
        with lake.held():
            plan = merges(day, 10_000, EVER_NS)
            files = [made(lake, merge) for merge in plan]
            left[0] = steps
            try:
                lake.swap(day, files)
                endings.add("whole")
            except Killed:
                endings.add("new" if sorted(os.listdir(day)) != sorted(names) else "old")
            finally:
                left[0] = 1_000
        assert held_numbers(day) == list(range(40)), steps
        if "whole" in endings:
            break
        for name in os.listdir(day):
            (day / name).unlink()
    assert endings == {"old", "new", "whole"}


@pytest.mark.promise("pipeline-12")
def test_what_changed_meanwhile_is_left_as_it_is(lake: LakeDirectory) -> None:
    day = lake.lake / DAY
    first, _ = put(day, 0, 10), put(day, 10, 20)
    with lake.held():
        plan = merges(day, 10_000, EVER_NS)
        files = [made(lake, plan[0])]
        first.unlink()
        with pytest.raises(ChangedMeanwhile, match=r"part-0-10-0\.parquet was changed or removed"):
            lake.swap(day, files)
        assert held_numbers(day) == list(range(10, 20)), "somebody removed records: they stay removed"
        for file in day.iterdir():
            file.unlink()
        day.rmdir()
        with pytest.raises(ChangedMeanwhile, match="removed meanwhile"):
            lake.swap(day, files)
        assert not day.exists()


@pytest.mark.promise("pipeline-12", "pipeline-8")
def test_who_may_not_begin_is_told_why(lake: LakeDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    with lake.held(), pytest.raises(CompactionError, match="another compaction is running"), lake.held():
        pytest.fail("there were two")

    def refused(one: Path, other: Path) -> None:
        raise NoExchangeError(errno.EINVAL, "Invalid argument", str(one), None, str(other))

    with monkeypatch.context() as patched:
        patched.setattr(module, "exchange", refused)
        with pytest.raises(CompactionError, match="cannot exchange two directories"), lake.held():
            pytest.fail("readers would see records twice")
    connection = sqlite3.connect(lake._ledger)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(OtherVersionError, match="schema version 99"), lake.held():
        pytest.fail("a newer EmberMQ may do things differently")
