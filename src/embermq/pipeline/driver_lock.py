"""One driver at a time on a data directory: two would do everything twice."""

import fcntl
import os

from embermq.pipeline.errors import DriverLockError
from embermq.pipeline.places import Places


def lock_driver(places: Places) -> int:
    """Hold the lock until the descriptor is closed, at the latest with this process. Raises DriverLockError."""
    places.work.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(places.driver_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "?"
        os.close(descriptor)
        raise DriverLockError(
            f"a pipeline runs on {places.data_dir} already (process {holder}): of the broker, unless it has "
            "pipeline.enabled = false, or of `embermq pipeline start`"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
