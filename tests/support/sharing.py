"""Several workers of one test run on one machine: ports of their own."""

from __future__ import annotations

import os
import tempfile
from fcntl import LOCK_EX, LOCK_NB, lockf
from functools import cache
from pathlib import Path


def this_worker() -> tuple[int, int]:
    """The number of this worker, and how many there are; (0, 1) without pytest-xdist."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return int(name.removeprefix("gw")), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


@cache
def _reserved(_process: int) -> int:
    """A descriptor that is never closed: the locks would go."""
    path = Path(tempfile.gettempdir()) / f"tests-{os.getuid()}.ports"
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


def reserve_number(number: int) -> None:
    """For this process, as long as it lives. Raises BlockingIOError when another one has it."""
    lockf(_reserved(os.getpid()), LOCK_EX | LOCK_NB, 1, number)
