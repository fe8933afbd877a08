"""The machine a run was made on, and the versions of what ran there."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import msgspec

from benchmarks.brokers import Programs
from embermq import HOT_PATH, __version__


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a figure needs beside it."""

    processor: str
    cores: int
    memory_mib: int
    kernel: str
    python: str
    versions: dict[str, str]
    """Of each broker, by the name of its variant or of its program."""
    load_average: tuple[float, float, float]


def describe(programs: Programs | None = None) -> Machine:
    """Read them now; `programs` are the other brokers of the run."""
    versions = {"embermq": f"{__version__} {'compiled' if HOT_PATH.is_compiled else 'source'}"}
    if programs is not None:
        versions["mosquitto"] = version_of([programs.mosquitto, "-h"])
    if programs is not None and programs.rumqttd:
        versions["rumqttd"] = version_of([programs.rumqttd, "--version"])
    return Machine(
        processor=_field("/proc/cpuinfo", "model name") or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_mib=int((_field("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) // 1024,
        kernel=platform.release(),
        python=platform.python_version(),
        versions=versions,
        load_average=os.getloadavg(),
    )


def version_of(command: list[str]) -> str:
    """The last word of what the program says first, or why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not installed ({getattr(error, 'strerror', None) or type(error).__name__})"
    words = (done.stdout.strip() or done.stderr.strip()).partition("\n")[0].split()
    return words[-1] if words else "unknown"


def _field(path: str, name: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
