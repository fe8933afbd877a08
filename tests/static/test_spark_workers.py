"""Spark's workers in Python, as the tests have them forked: each ends as Spark wants it, and with who asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.spark_workers import with_seed
from tests.support.waiting import wait_until

BY_INPUT = 1
"""The exit code of Spark's daemon when its input ends."""


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a short name, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="embermq-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_daemon_ends_with_its_input_and_with_who_asked_for_it(sockets: Path, is_killed: bool) -> None:
    told = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(sockets)}
    with subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=with_seed(os.environ | told),
    ) as asker:
        assert asker.stdin is not None and asker.stdout is not None
        socket = Path(asker.stdout.read(int.from_bytes(asker.stdout.read(4))).decode())
        assert socket.parent == sockets and socket.exists()
        if is_killed:
            asker.kill()  # what it removes is removed: it was not the daemon itself
        asker.stdin.close()
        assert asker.wait() == (-signal.SIGKILL if is_killed else BY_INPUT)
    wait_until(lambda: not socket.exists(), what="the daemon has ended in order")
