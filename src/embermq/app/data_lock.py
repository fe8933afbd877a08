"""The lock on a data directory: one process at a time may write there."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embermq.app.errors import StartError

ELSEWHERE = "name another directory with --data-dir"


@contextmanager
def held_data_dir(data_dir: Path) -> Iterator[None]:
    """Make the directory if need be, and hold it. Raises StartError, with the process id of who holds it."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(
            f"cannot make the data directory {data_dir}: {error.strerror}; {ELSEWHERE}"
        ) from error
    descriptor = _lock(data_dir)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(data_dir: Path) -> int:
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
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "?"
        os.close(descriptor)
        raise StartError(
            f"the data directory {data_dir} is in use by another broker (process {holder}): "
            f"stop that one, or {ELSEWHERE}"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
