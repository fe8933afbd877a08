"""The machine a run was made on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import msgspec

from benchmarks.brokers import MOSQUITTO


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a figure needs beside it."""

    processor: str
    cores: int
    memory_mib: int
    kernel: str
    python: str
    mosquitto: str
    load_average: tuple[float, float, float]


def describe() -> Machine:
    """Read them now."""
    return Machine(
        processor=_field("/proc/cpuinfo", "model name") or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_mib=int((_field("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) // 1024,
        kernel=platform.release(),
        python=platform.python_version(),
        mosquitto=mosquitto_version(),
        load_average=os.getloadavg(),
    )


def mosquitto_version() -> str:
    """The installed version, or why there is none."""
    try:
        output = subprocess.run(
            [MOSQUITTO, "-h"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except OSError as error:
        return f"not installed ({error.strerror})"
    return output.splitlines()[0].removeprefix("mosquitto version ") if output else "unknown"


def _field(path: str, name: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
