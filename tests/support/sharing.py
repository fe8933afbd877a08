"""Several workers of one test run on one machine: ports of their own, and some tests with the machine to themselves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock
from pathlib import Path
from typing import BinaryIO


def this_worker() -> tuple[int, int]:
    """The number of this worker, and how many there are; (0, 1) without pytest-xdist."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return int(name.removeprefix("gw")), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


class Machine:
    """What the workers of a run share. Opened by each of them, closed at its end."""

    def __init__(self) -> None:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"alone-{os.getpid()}")
        self._paths = [Path(tempfile.gettempdir()) / f"tests-{run}.{name}" for name in ("turn", "use")]
        self._turn, self._use = (path.open("ab") for path in self._paths)

    @contextmanager
    def used(self, *, alone: bool) -> Iterator[None]:
        """For one test. Who waits to be alone holds the turn, so that nobody else comes in before."""
        with _held(self._turn, LOCK_EX):
            flock(self._use, LOCK_EX if alone else LOCK_SH)
        try:
            yield
        finally:
            flock(self._use, LOCK_UN)

    def close(self) -> None:
        for file in (self._turn, self._use):
            file.close()
        for path in self._paths:
            path.unlink(missing_ok=True)  # those who have them open keep them


@contextmanager
def _held(file: BinaryIO, kind: int) -> Iterator[None]:
    flock(file, kind)
    try:
        yield
    finally:
        flock(file, LOCK_UN)
