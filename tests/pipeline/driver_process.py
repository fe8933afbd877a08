"""The driver as a process of its own, so that a test can kill it."""

import os
import subprocess
import sys
from collections.abc import Mapping

import msgspec
from tests.faults.spark_processes import kill_all
from tests.support.waiting import wait_until

from embermq.pipeline.places import Places
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.status import read_status
from embermq.pipeline.supervisor import session_members

START_S = 400
"""From nothing to the first record; a busy machine takes several times the usual ten seconds."""


class DriverProcess:
    """`python -m embermq.pipeline`, leading a session of its own."""

    def __init__(
        self, places: Places, settings: PipelineSettings, environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment`: what differs from that of the tests."""
        self.places = places
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "embermq.pipeline",
                "--data-dir",
                str(places.data_dir),
                "--settings-json",
                "-",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | dict(environment or {}),
        )
        assert self.process.stdin is not None
        # Beside other tests: see `BrokerProcess`.
        self.process.stdin.write(msgspec.json.encode(msgspec.structs.replace(settings, nice=0)) + b"\n")
        self.process.stdin.flush()

    def wait_for_position(self, name: str, end: int) -> None:
        wait_until(lambda: position(self.places, name) >= end, START_S, f"{name} at {end}", poll_s=0.05)

    def is_gone(self) -> bool:
        return not session_members(self.process.pid)

    def end(self) -> None:
        kill_all(session_members(self.process.pid))  # Spark's workers may be faster: they end with its JVM
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


def position(places: Places, name: str) -> int:
    return next((query.position for query in read_status(places.data_dir).queries if query.name == name), 0)
