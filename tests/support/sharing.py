"""Several workers of one test run on one machine: ports of their own, and some tests with the machine to themselves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock, lockf
from functools import cache
from pathlib import Path
from typing import IO


def this_worker() -> tuple[int, int]:
    """The number of this worker, and how many there are; (0, 1) without pytest-xdist."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return int(name.removeprefix("gw")), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


@cache
def _reserved(_process: int) -> IO[bytes]:
    """Never closed: the locks would go."""
    path = Path(tempfile.gettempdir()) / f"tests-{os.getuid()}.ports"
    return path.open("ab")


def reserve_number(number: int) -> None:
    """For this process, as long as it lives. Raises BlockingIOError when another one has it."""
    lockf(_reserved(os.getpid()), LOCK_EX | LOCK_NB, 1, number)


class Machine:
    """What the workers of a run share. Opened by each of them, closed at its end."""

    def __init__(self) -> None:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"alone-{os.getpid()}")
        self._paths = [Path(tempfile.gettempdir()) / f"tests-{run}.{name}" for name in ("turn", "use")]
        self._turn, self._use = (path.open("ab") for path in self._paths)
        self._is_alone = False

    @contextmanager
    def used(self, *, alone: bool, stays_alone: bool) -> Iterator[None]:
        """For one test; when the next one is to be alone as well, nobody comes in between."""
        if not (alone and self._is_alone):
            self._enter(alone=alone)
        try:
            yield
        finally:
            if not (alone and stays_alone):
                self._is_alone = False
                flock(self._use, LOCK_UN)

    def _enter(self, *, alone: bool) -> None:
        """Who waits to be alone holds the turn, so that nobody else comes in before."""
        flock(self._use, LOCK_UN)  # nobody waits for the turn with something that others wait for
        flock(self._turn, LOCK_EX)
        try:
            flock(self._use, LOCK_EX if alone else LOCK_SH)
            self._is_alone = alone
        finally:
            flock(self._turn, LOCK_UN)

    def close(self) -> None:
        for file in (self._turn, self._use):
            file.close()
        for path in self._paths:
            path.unlink(missing_ok=True)  # those who have them open keep them
