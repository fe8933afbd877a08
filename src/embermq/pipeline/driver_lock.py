"""One driver at a time on a data directory: two would do everything twice."""

import fcntl
import os
import time

from embermq.pipeline.errors import DriverLockError
from embermq.pipeline.places import Places

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
