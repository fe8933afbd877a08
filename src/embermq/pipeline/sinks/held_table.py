"""A Delta Lake table whose commits in a folder are on disk before anybody goes by them. On a machine one Java writes it
at a time; in object storage the drivers of a cluster's slots write it side by side.
"""

import logging
from pathlib import Path
from typing import Any

from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from embermq.pipeline.errors import LakeError
from embermq.pipeline.sinks.conditional_log import check_storage
from embermq.pipeline.sinks.delta_table import DeltaTable, TableShape
from embermq.pipeline.sinks.lake_disk import boot, sync_commits, take_back

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
