"""The lock on a data directory: one process at a time may write there."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embermq.app.errors import StartError

ELSEWHERE = "name another directory with --data-dir"
_LOG_LINE = "log "
"""Second line of the file: which message log the directory belongs to."""


class DataLock:
    """The lock while it is held. It remembers which message log the directory belongs to."""

    def __init__(self, descriptor: int, data_dir: Path, known_log: int) -> None:
        self._descriptor = descriptor
        self._data_dir = data_dir
        self._known_log = known_log

    def note_log(self, identity: int, *, accept_loss: bool) -> None:
        """This is the message log that was found. Raises StartError when an earlier run had another one: what belongs
        to that is missing, unless the operator accepts it."""
        if self._known_log not in (0, identity) and not accept_loss:
            raise StartError(
                f"{self._data_dir} had another message log before: its broker.db is missing or was replaced; put a "
                "backup in its place (embermq restore), or start with --accept-loss to go on without it"
            )
        os.pwrite(self._descriptor, f"{os.getpid()}\n{_LOG_LINE}{identity}\n".encode(), 0)


@contextmanager
def held_data_dir(data_dir: Path) -> Iterator[DataLock]:
    """Make the directory if need be, and hold it. Raises StartError, with the process id of who holds it."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(
            f"cannot make the data directory {data_dir}: {error.strerror}; {ELSEWHERE}"
        ) from error
    descriptor, known_log = _lock(data_dir)
    try:
        yield DataLock(descriptor, data_dir, known_log)
    finally:
        os.close(descriptor)


def _lock(data_dir: Path) -> tuple[int, int]:
    """The descriptor, and the message log of the runs before, 0 when there were none."""
    path = data_dir / "broker.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(
            f"cannot write in the data directory {data_dir}: {error.strerror}; {ELSEWHERE}"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode(errors="replace").partition("\n")[0].strip() or "?"
        os.close(descriptor)
        raise StartError(
            f"the data directory {data_dir} is in use by another broker (process {holder}): "
            f"stop that one, or {ELSEWHERE}"
        ) from None
    line = os.pread(descriptor, 128, 0).decode(errors="replace").partition("\n")[2].strip()
    known = line.removeprefix(_LOG_LINE)
    known_log = int(known) if line.startswith(_LOG_LINE) and known.isascii() and known.isdigit() else 0
    os.ftruncate(descriptor, 0)
    kept = f"{_LOG_LINE}{known_log}\n" if known_log else ""
    os.pwrite(descriptor, f"{os.getpid()}\n{kept}".encode(), 0)
    return descriptor, known_log
