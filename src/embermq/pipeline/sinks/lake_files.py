"""The files of the lake on disk: which small ones become one, and how they take the place of those they are made of.

A directory `date=.../root=...` is never changed for compaction: one with the same files but for those that are merged
is made beside it, of hard links, and the two change places in one step. That step is the commit; there is no ledger. A
crash before it leaves the directory as it was, one after it leaves the old one below `_compacting-old/`.

The old one stays there for a while with all its files: who has opened it to list it gets all of its names. Whatever a
crash leaves is removed by the next run.
"""

import fcntl
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from embermq.formats.pipeline_files import newer_file
from embermq.pipeline.errors import CompactionError, OtherVersionError
from embermq.pipeline.sinks.exchange import NoExchangeError, exchange

WORK = "_compacting"
RETIRED = "_compacting-old"
SPILL = "_compacting-spill"
RUN_LOCK = "_compacting.lock"
SWAP_LOCK = "_swap.lock"
"""Held while directories change places; who copies the whole lake shares it, so that it stays as it is meanwhile."""
LEDGER_WAIT_S = 60.0
PAUSE_S_MIN = 0.02
"""Between two directories; longer when one has taken longer."""
GRACE_S = 3.0
"""How long a directory that was replaced keeps its files, for listings that have begun."""

_NAME = re.compile(r"(?:part|merged)-(\d+)-(\d+)-(\d+)\.parquet")


class LakeFile(Struct, frozen=True, order=True):
    """A file by what its name says: positions [first, end), and the number that tells it from others of the same."""

    first: int
    end: int
    number: int
    name: str
    size: int
    inode: int
    modified_ns: int


class FileMerge(Struct, frozen=True):
    """Files of one directory that become one."""

    directory: Path
    files: tuple[LakeFile, ...]

    @property
    def size(self) -> int:
        """Of all of them, in bytes."""
        return sum(file.size for file in self.files)


class Made(Struct, frozen=True):
    """A merge and the file that was made for it."""

    merge: FileMerge
    path: Path


class ChangedMeanwhile(Exception):
    """A directory is not, or no more, what can be merged: the message says why. It is left as it is."""


def lake_files(directory: Path) -> list[LakeFile]:
    """Those that EmberMQ has written, by position. Raises ChangedMeanwhile when there is something that is no file."""
    found: list[LakeFile] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                raise ChangedMeanwhile(f"{entry.name} is no file")
            named = _NAME.fullmatch(entry.name)
            if named:
                status = entry.stat(follow_symlinks=False)
                first, end, number = map(int, named.groups())
                found.append(
                    LakeFile(
                        first, end, number, entry.name, status.st_size, status.st_ino, status.st_mtime_ns
                    )
                )
    return sorted(found)


def merges(directory: Path, target_bytes: int, older_than_ns: int) -> list[FileMerge]:
    """What is worth it: at least two files that are each smaller than half of the target, together at most as large.

    Files that were written later than that time (Unix, nanoseconds) are left out. Raises ChangedMeanwhile.
    """
    small = [
        file
        for file in lake_files(directory)
        if file.size < target_bytes // 2 and file.modified_ns <= older_than_ns
    ]
    found: list[FileMerge] = []
    gathered: list[LakeFile] = []
    for file in small:
        if gathered and sum(one.size for one in gathered) + file.size > target_bytes:
            found.append(FileMerge(directory, tuple(gathered)))
            gathered = []
        gathered.append(file)
    found.append(FileMerge(directory, tuple(gathered)))
    return [merge for merge in found if len(merge.files) > 1]


class LakeDirectory:
    """The lake as one compaction sees it. `ledger` is lake.db: its writer waits while directories change places."""

    def __init__(self, lake: Path, ledger: Path) -> None:
        self.lake = lake
        self._ledger = ledger
        self.work = lake / WORK
        self._retired = lake / RETIRED
        self.spill = lake / SPILL
        """For what Spark cannot hold in memory: there is room where the lake is."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """One compaction at a time; what an earlier one left is removed. Raises CompactionError, OtherVersionError."""
        with (self.lake / RUN_LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CompactionError(f"{self.lake}: another compaction is running") from None
            self._check_ledger()
            self._retired.mkdir(exist_ok=True)
            self._forget_retired(wait=True)
            self.clear()
            shutil.rmtree(self.spill, ignore_errors=True)
            self._check_exchange()
            try:
                yield
            finally:
                self._forget_retired(wait=True)
                self._retired.rmdir()
                shutil.rmtree(self.work, ignore_errors=True)
                shutil.rmtree(self.spill, ignore_errors=True)

    def clear(self) -> None:
        """Nothing below `_compacting/`, and of the directories that were replaced only those that are still listed."""
        self._forget_retired(wait=False)
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()

    def directories(self) -> list[Path]:
        """By name, so oldest first."""
        return sorted(path for path in self.lake.glob("date=*/root=*") if path.is_dir())

    def swap(self, directory: Path, made: list[Made]) -> None:
        """Put the files that were made in place of those they were made of. Raises ChangedMeanwhile; then nothing is
        changed."""
        fresh = self._retired / str(time.time_ns())
        with self._alone():
            present = _same_files(directory, made)
            fresh.mkdir()
            shutil.copystat(directory, fresh)
            merged = {file.name for one in made for file in one.merge.files}
            names = present - merged
            for name in names:
                os.link(directory / name, fresh / name)
            for one in made:
                name = _free_name(one.merge, names | merged)
                names.add(name)
                _take_over(one, directory)
                os.link(one.path, fresh / name)
            sync(fresh)
            exchange(fresh, directory)
            os.utime(fresh)  # its time of change says since when it is retired
            sync(directory.parent)
            sync(self._retired)

    def _forget_retired(self, *, wait: bool) -> None:
        for path in sorted(self._retired.iterdir()):
            left_s = path.stat().st_ctime + GRACE_S - time.time()
            if left_s > 0 and not wait:
                continue
            time.sleep(min(max(left_s, 0.0), GRACE_S))
            shutil.rmtree(path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The lake query puts no file into place, nobody copies the lake. Both locks end with their process."""
        with (self.lake / SWAP_LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            connection = sqlite3.connect(self._ledger, isolation_level=None, timeout=LEDGER_WAIT_S)
            began = time.monotonic()
            try:
                connection.execute("BEGIN IMMEDIATE")
                began = time.monotonic()
                yield
                connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise CompactionError(f"{self._ledger}: {error}") from error
            finally:
                connection.close()
        # SQLite lets nobody queue: with one directory right after the other the lake query might never have its turn.
        time.sleep(max(PAUSE_S_MIN, time.monotonic() - began))

    def _check_ledger(self) -> None:
        connection = sqlite3.connect(f"{self._ledger.as_uri()}?mode=ro", uri=True, timeout=LEDGER_WAIT_S)
        try:
            problem = newer_file(self._ledger.name, connection.execute("PRAGMA user_version").fetchone()[0])
        except sqlite3.Error as error:
            raise CompactionError(f"{self._ledger}: {error}") from error
        finally:
            connection.close()
        if problem:
            raise OtherVersionError(problem)

    def _check_exchange(self) -> None:
        one, other = self.work / "one", self.work / "other"
        one.mkdir()
        other.mkdir()
        try:
            exchange(one, other)
        except NoExchangeError as error:
            raise CompactionError(
                f"{self.lake}: its file system cannot exchange two directories ({error.strerror}), so readers would "
                "see records twice or not at all while files are merged"
            ) from error
        one.rmdir()
        other.rmdir()


@contextmanager
def unchanged(lake: Path) -> Iterator[None]:
    """While somebody copies the lake, no compaction changes it. Waits for a directory that changes just now."""
    if not lake.is_dir():
        yield
        return
    with (lake / SWAP_LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def _same_files(directory: Path, made: list[Made]) -> set[str]:
    """All names in the directory. Raises ChangedMeanwhile when a file that was merged is not there any more."""
    try:
        present = {file.name: file for file in lake_files(directory)}
        names = set(os.listdir(directory))
    except FileNotFoundError:
        raise ChangedMeanwhile("it was removed meanwhile") from None
    for one in made:
        for file in one.merge.files:
            if present.get(file.name) != file:
                raise ChangedMeanwhile(f"{file.name} was changed or removed meanwhile")
    return names


def _free_name(merge: FileMerge, taken: set[str]) -> str:
    first, end = min(file.first for file in merge.files), max(file.end for file in merge.files)
    number = 0
    while (name := f"merged-{first}-{end}-{number}.parquet") in taken:
        number += 1
    return name


def _take_over(made: Made, directory: Path) -> None:
    """Rights and age are those of what it was made of."""
    newest = max(made.merge.files, key=lambda file: file.modified_ns)
    shutil.copymode(directory / newest.name, made.path)
    os.utime(made.path, ns=(newest.modified_ns, newest.modified_ns))
    sync(made.path)


def sync(path: Path) -> None:
    """A file, or the names in a directory, is on disk when it returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
