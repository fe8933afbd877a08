"""Spark's workers in Python without their imports, which are more than half of what a driver costs that lives for
seconds: each of its kinds has a process of its own, and each of those imports pandas and Arrow in all that it forks.

Here they are forked from one process that has all of it behind it. They are the same programs with the same arguments,
environment, directory and files, but in no session of the driver's: tests of what processes are left do without.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.support.measuring import is_judged

VARIABLE = "SPARK_WORKER_SEED"
NO_SEED = {VARIABLE: ""}
"""The environment of a driver whose workers start as everywhere else."""
HERE = Path(__file__).resolve().parent
SEED, SITE = HERE / "spark_seed.py", HERE / "spark_site"
BACKLOG = 128
_OF_THE_SEED = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # no thread before a fork
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # as spark-submit has it: its workers agree on the hashes of strings
    "PYTHONUNBUFFERED": "1",
}


def with_seed(environment: Mapping[str, str]) -> dict[str, str]:
    """What a driver is started with. `make perf` has Spark as it is."""
    if is_judged() or VARIABLE in environment:
        return dict(environment)
    path = f"{SITE}{os.pathsep}{environment.get('PYTHONPATH', '')}".rstrip(os.pathsep)
    return {**environment, "PYTHONPATH": path, VARIABLE: _seed()}


@cache
def _seed() -> str:
    """Where the one of this process listens. It ends when this process does."""
    folder = tempfile.TemporaryDirectory(prefix="embermq-seed-")
    address = f"{folder.name}/seed"
    requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, theirs = socket.socketpair()
    with requests, theirs:
        requests.bind(address)
        requests.listen(BACKLOG)
        process = subprocess.Popen(
            [sys.executable, "-P", str(SEED), str(requests.fileno()), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ | _OF_THE_SEED,
            pass_fds=[requests.fileno(), theirs.fileno()],
            start_new_session=True,
        )
    atexit.register(_end, ours, process, folder)
    return address


def _end(
    ours: socket.socket, process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]
) -> None:
    ours.close()
    process.wait()
    folder.cleanup()
