"""A Delta Lake table whose commits in a folder are on disk before anybody goes by them. On a machine one Java writes it
at a time; in object storage the drivers of a cluster's slots write it side by side.

Commits of Delta in object storage that several drivers write: the storage refuses one whose number is taken. The JVM
gets one class more for it, whose source is beside this module; the compiler is Spark's own, by which it makes its
queries.

What a lake in a folder needs to come through a loss of power. Spark leaves it to the system when files reach the
disk, so a commit may be there without the records that it names.

So lake.db names the last commit that was synced, and the boot of the machine. What came later is taken back when the
machine has started since: nothing went by it, the log still has its records.

Several brokers may use one folder in turns (a network file system, and a node that takes over). What another one has
committed is behind what this one's lake.db knows, and is no trace of its loss of power. So each commit carries the
`run` that has made it, which lake.db names too; a commit of any other run is left, with all around it.
"""

import logging
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import msgspec
from msgspec import Struct, field
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from embermq.pipeline.errors import LakeError
from embermq.pipeline.sinks.delta_table import DeltaTable, TableShape

_CLASS = "embermq.ConditionalLogStore"
OPTIONS = {"spark.delta.logStore.s3a.impl": _CLASS}
"""Of the Spark session."""
_PROBE = "_delta_log/_embermq-"
"""How a name begins that is none of Delta's, which passes it over."""


def load_log_store(spark: SparkSession, folder: Path) -> None:
    """Before the first table is looked at. The class is written into the folder."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(files(__package__ or "").joinpath("ConditionalLogStore.java").read_text())
    for name, code in compiler.getBytecodes().items():
        file = folder / f"{name.replace('.', '/')}.class"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(code)
    loader.addURL(jvm.java.io.File(str(folder)).toURI().toURL())


def check_storage(spark: SparkSession, place: str) -> None:
    """The table is there. Raises LakeError for storage that lets a driver write its commit over another one's."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    path = jvm.org.apache.hadoop.fs.Path(f"{place}/{_PROBE}{uuid4().hex}")
    store = jvm.embermq.ConditionalLogStore(conf)
    nothing = jvm.java.util.ArrayList()
    store.write(path, nothing.iterator(), False, conf)
    try:
        store.write(path, nothing.iterator(), False, conf)
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() == "FileAlreadyExistsException":
            return
        raise
    finally:
        path.getFileSystem(conf).delete(path, False)
    raise LakeError(
        f"{place}: this storage overwrites what must not be there yet (it does not know If-None-Match of a PUT), so "
        "the drivers of several slots would lose one another's commits"
    )


LOG = "_delta_log"
_LAST_CHECKPOINT = "_last_checkpoint"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_COMMIT = re.compile(r"\.?(\d{20})\.")
"""Files of a commit, and the checksums that Hadoop keeps beside them."""


class _Added(Struct, frozen=True):
    path: str


class _About(Struct, frozen=True):
    user_metadata: str | None = field(name="userMetadata", default=None)


class _Action(Struct, frozen=True):
    """One line of a commit; only what adds a file, and who says so, counts here."""

    add: _Added | None = None
    about: _About | None = field(name="commitInfo", default=None)


def boot() -> str:
    """Another one after each start of the machine."""
    return _BOOT.read_text().strip() if _BOOT.exists() else ""


def sync_commits(folder: Path, first: int, last: int) -> None:
    """What the commits `first` to `last` have added, and they themselves, are on disk when it returns."""
    log = folder / LOG
    folders = {log, folder, folder.parent}
    files: list[Path] = []
    for number in range(first, last + 1):
        commit = log / f"{number:020}.json"
        if not commit.exists():  # cleaned away: it is old
            continue
        for line in commit.read_bytes().splitlines():
            added = msgspec.json.decode(line, type=_Action).add
            if added is not None and (path := folder / unquote(added.path)).exists():
                files.append(path)
                folders.add(path.parent)
        files += log.glob(f"{number:020}.*")
    if (hint := log / _LAST_CHECKPOINT).exists():
        files.append(hint)
    for path in (*files, *folders):
        _sync(path)


def take_back(folder: Path, last: int, run: str) -> int:
    """Remove the commits behind `last`, the newest first, so that a crash leaves no gap; how many files they were.
    Nothing goes when what would be left is no table: Delta has cleaned its log up since, or it is another table. Nor
    when one of them is not of `run`."""
    log = folder / LOG
    if not _is_whole(log, last):
        return 0
    numbered = ((match, file) for file in log.iterdir() if (match := _COMMIT.match(file.name)))
    later = sorted(((int(match[1]), file) for match, file in numbered if int(match[1]) > last), reverse=True)
    if not all(_may_go(file, run) for number, file in later if file.name == f"{number:020}.json"):
        return 0
    for _, file in later:
        file.unlink()
    if later:
        (log / _LAST_CHECKPOINT).unlink(missing_ok=True)
        _sync(log)
    return len(later)


def _may_go(commit: Path, run: str) -> bool:
    """Whether a commit is of this run; or torn: then nobody has synced it, and so nobody goes by it."""
    try:
        actions = [msgspec.json.decode(line, type=_Action) for line in commit.read_bytes().splitlines()]
    except msgspec.ValidationError:  # whole, by a program that says other things of itself
        return False
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return True
    return not actions or run in [one.about.user_metadata for one in actions if one.about is not None]


def _is_whole(log: Path, last: int) -> bool:
    """Whether the log has all that says what the table was at the commit `last`."""
    checkpoints = (
        int(file.name[:20]) for file in log.glob("*.checkpoint.parquet") if _COMMIT.match(file.name)
    )
    begin = max((number for number in checkpoints if number <= last), default=-1) + 1
    return all((log / f"{number:020}.json").exists() for number in range(min(begin, last), last + 1))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


log = logging.getLogger(__name__)


class Noted(Struct, frozen=True):
    """The last commit that is known to be on disk, the boot of the machine then, and the run that made it; `version` is
    -1 for none, `boot` is "" after a restore."""

    version: int = -1
    boot: str = ""
    run: str = ""


class HeldTable:
    """`take` comes first, and again after a failure."""

    def __init__(self, place: str, shape: TableShape, lock_file: Path, *, shared: bool = False) -> None:
        """`place` is a folder or a URL. `shared`: with drivers of other machines, that write it at the same time."""
        self._place = place
        self._shared = shared
        self._shape = shape
        self._folder = None if "://" in place else Path(place)
        self._lock_file = lock_file
        self._lock: Any = None
        self._synced = -1
        self._run = ""
        self._table: DeltaTable | None = None

    @property
    def table(self) -> DeltaTable:
        """The table; `take` comes before."""
        assert self._table is not None, "take comes first"
        return self._table

    def take(self, spark: SparkSession, noted: Noted, run: str) -> None:
        """Be the only one who writes it, as `run`. `noted` is what `sync` returned last: when the machine has started
        since, what is later and of the same run is taken back. Raises LakeError."""
        self._hold(spark)
        is_of_another_boot = noted.boot not in ("", boot()) and noted.run
        if (
            self._folder is not None
            and is_of_another_boot
            and (files := take_back(self._folder, noted.version, noted.run))
        ):
            log.warning(
                "%s: commits behind %d were not synced, %d files are taken back",
                self._place,
                noted.version,
                files,
            )
        self._table = DeltaTable(spark, self._place, self._shape, run)
        self._run, self._synced = run, noted.version

    def create(self, columns: StructType) -> None:
        """Make the table when it is not there. Raises LakeError."""
        self.table.create(columns)
        version = self.table.version()
        if version < 0:  # the statement does nothing where something is, and says nothing
            raise LakeError(
                f"{self._place} is neither empty nor a Delta Lake table: move away what is there, or name another "
                "place with pipeline.lake_dir"
            )
        if self._synced > version:  # the table was made anew
            self._synced = -1
        if self._shared:
            check_storage(self.table.spark, self._place)

    def sync(self) -> Noted:
        """All its commits are on disk when it returns; what is to be noted for `take`. The table is there."""
        version = self.table.version()
        if self._folder is not None:
            sync_commits(self._folder, self._synced + 1, version)
        self._synced = version
        return Noted(version, boot(), self._run)

    def close(self) -> None:
        """Let another Java write it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _hold(self, spark: SparkSession) -> None:
        """One JVM writes at a time. The Java of a driver that was killed may still be about to commit what it has
        written: the system releases its lock when it ends, and only then the table is asked how far it is."""
        if self._lock is not None:
            return
        self._lock_file.parent.mkdir(parents=True, exist_ok=True)
        jvm: Any = spark._jvm
        file = jvm.java.io.RandomAccessFile(str(self._lock_file), "rw")
        if file.getChannel().tryLock() is None:
            file.close()
            raise LakeError(f"{self._place}: a pipeline that is about to end still writes it")
        self._lock = file
