"""What a driver has for itself while it runs, and leaves behind when it is killed: the next one on the data directory
removes it. Whoever calls this holds the lock of the drivers."""

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from embermq.pipeline.places import Places

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
