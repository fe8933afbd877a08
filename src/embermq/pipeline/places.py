"""Where the pipeline keeps its files inside the broker's data directory.

What a driver has for itself while it runs, and leaves behind when it is killed: the next one on the data directory
removes it. Whoever calls this holds the lock of the drivers.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from embermq.formats.segments import FOLDER
from embermq.pipeline.errors import DriverLockError


class Places(Struct, frozen=True):
    """Paths below one data directory. Nothing is created here."""

    data_dir: Path

    @property
    def broker(self) -> Path:
        """broker.db: written by the broker, read here."""
        return self.data_dir / "broker.db"

    @property
    def clock(self) -> Path:
        """clock.json: how far the wall clock is ahead of the broker's time."""
        return self.data_dir / "clock.json"

    @property
    def log(self) -> Path:
        """log/: the segment files of the message log; written by the broker, read here."""
        return self.data_dir / FOLDER

    @property
    def applications(self) -> Path:
        """applications.db: the application logs."""
        return self.data_dir / "applications.db"

    @property
    def messages(self) -> Path:
        """messages.db: the message store."""
        return self.data_dir / "messages.db"

    @property
    def archive(self) -> Path:
        """archive.db: what a message store on a server has confirmed."""
        return self.data_dir / "archive.db"

    @property
    def lake_ledger(self) -> Path:
        """lake.db: how far the lake is, beside the lake itself."""
        return self.data_dir / "lake.db"

    @property
    def lake(self) -> Path:
        """lake/: the Delta Lake table, unless `pipeline.lake_dir` names another place."""
        return self.data_dir / "lake"

    @property
    def traffic(self) -> Path:
        """traffic.db: windows of rates and latencies."""
        return self.data_dir / "traffic.db"

    @property
    def rules(self) -> Path:
        """rules.db: which messages rules could not use."""
        return self.data_dir / "rules.db"

    @property
    def control(self) -> Path:
        """control.sock: where the broker is asked for application logs in Kafka, and takes what rules make."""
        return self.data_dir / "control.sock"

    @property
    def work(self) -> Path:
        """pipeline/: what may be deleted while the pipeline is down."""
        return self.data_dir / "pipeline"

    @property
    def checkpoints(self) -> Path:
        """pipeline/checkpoints/: Spark's own; made anew at each start of a query."""
        return self.work / "checkpoints"

    @property
    def scratch(self) -> Path:
        """pipeline/scratch/: Spark's local and warehouse directories."""
        return self.work / "scratch"

    @property
    def sockets(self) -> Path:
        """pipeline/sockets: names the directory of sockets that the driver has made."""
        return self.work / "sockets"

    @property
    def status(self) -> Path:
        """pipeline/status.json: written by the driver every second."""
        return self.work / "status.json"

    @property
    def supervisor(self) -> Path:
        """pipeline/supervisor.json: written by the broker whenever the driver comes or goes."""
        return self.work / "supervisor.json"

    @property
    def driver_lock(self) -> Path:
        """pipeline/driver.lock: held by the driver as long as it lives."""
        return self.work / "driver.lock"

    @property
    def driver_log(self) -> Path:
        """pipeline/driver.log: what the driver and its JVM print."""
        return self.work / "driver.log"

    @property
    def lake_lock(self) -> Path:
        """pipeline/lake.lock: held by the Java that writes the lake as long as it lives."""
        return self.work / "lake.lock"

    @property
    def traffic_lock(self) -> Path:
        """pipeline/traffic.lock: the same for the table of traffic of a cluster."""
        return self.work / "traffic.lock"

    def rule_table_lock(self, rule: str) -> Path:
        """pipeline/rule-tables/RULE.lock: the same for the table of a rule."""
        return self.work / "rule-tables" / f"{rule}.lock"

    @property
    def java_wrapper(self) -> Path:
        """pipeline/java/: a JAVA_HOME made for a runtime that needs a launcher of its own."""
        return self.work / "java"


ENDS_S = 10.0
"""A driver whose broker was killed is gone after that at the latest."""
_LOOK_S = 0.05


def lock_driver(places: Places, wait_s: float = 0.0) -> int:
    """Hold the lock until the descriptor is closed, at the latest with this process. Raises DriverLockError when
    another process still has it after `wait_s`."""
    places.work.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(places.driver_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline_s = time.monotonic() + wait_s
    while not _is_mine(descriptor):
        if time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
            continue
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "?"
        os.close(descriptor)
        raise DriverLockError(
            f"a pipeline runs on {places.data_dir} already (process {holder}): of the broker, unless it has "
            "pipeline.enabled = false, or of `embermq pipeline start`"
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _is_mine(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


SOCKETS_PREFIX = "embermq-sockets-"


def make_socket_directory(places: Places) -> Path:
    """For the sockets between the JVM and Python: outside the data directory, since the name of a socket has 107 bytes
    at most. What drivers before have left is removed first."""
    remove_leftovers(places)
    directory = Path(tempfile.mkdtemp(prefix=SOCKETS_PREFIX))
    places.work.mkdir(parents=True, exist_ok=True)
    places.sockets.write_text(str(directory))
    return directory


def remove_leftovers(places: Places) -> None:
    """Spark's scratch, and the directory of sockets; nothing else, whatever the note says."""
    shutil.rmtree(places.scratch, ignore_errors=True)
    with suppress(OSError, ValueError):
        directory = Path(places.sockets.read_text())
        if directory.name.startswith(SOCKETS_PREFIX) and directory.lstat().st_uid == os.geteuid():
            _remove_sockets(directory)
    places.sockets.unlink(missing_ok=True)


def _remove_sockets(directory: Path) -> None:
    """A directory that has anything else stays."""
    if not stat.S_ISDIR(directory.lstat().st_mode):
        return
    for entry in directory.iterdir():
        if stat.S_ISSOCK(entry.lstat().st_mode):
            entry.unlink()
    directory.rmdir()
