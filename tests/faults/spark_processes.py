"""The processes of a broker's pipeline, for tests that kill them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.support.broker_process import BrokerProcess


def driver_of(broker: BrokerProcess) -> list[int]:
    """Spark's driver, which the broker has started; none while it is down."""
    return _processes(broker, b"embermq.pipeline")


def jvm_of(broker: BrokerProcess) -> list[int]:
    """The Java machine of that driver."""
    return _processes(broker, b"org.apache.spark.deploy.SparkSubmit")


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL for each that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _processes(broker: BrokerProcess, word: bytes) -> list[int]:
    """Those of the broker's descendants whose command line has the word."""
    found = []
    for pid in broker.descendants():
        with suppress(OSError):
            if word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found
