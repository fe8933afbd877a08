"""What processes cost: CPU seconds and memory, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from embermq_bench.errors import ProcessGoneError

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class WatchedProcess(msgspec.Struct, frozen=True):
    """A process by the name it has in the report."""

    name: str
    pid: int


class CpuReading(msgspec.Struct, frozen=True):
    """CPU seconds since the process began; its descendants, ended ones included, apart."""

    own_s: float
    children_s: float


class ProcessCost(msgspec.Struct, frozen=True, kw_only=True):
    """CPU seconds of the measured window; largest proportional set size seen (with children, if asked)."""

    name: str
    pid: int
    cpu_s: float
    children_cpu_s: float
    pss_peak_bytes: int


def parse_watched(text: str) -> WatchedProcess:
    """`name=pid`, or `pid` alone, which is then named `broker`. Raises ValueError."""
    name, separator, number = text.rpartition("=")
    if separator and not name:
        raise ValueError(f"{text!r} has no name before '='")
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"{text!r} is not a process id, nor name=process-id")
    return WatchedProcess(name or "broker", int(number))


def parse_all_watched(texts: Iterable[str]) -> tuple[WatchedProcess, ...]:
    """Each text names one process or several, with commas between them. Raises ValueError."""
    return tuple(parse_watched(part.strip()) for text in texts for part in text.split(","))


def read_cpu(pid: int, *, children: bool) -> CpuReading:
    """CPU seconds (user and system) of a process. Raises ProcessGoneError."""
    own, waited = _cpu_ticks(pid)
    below = 0
    if children:
        below = waited
        for child in descendants(pid):
            try:
                below += sum(_cpu_ticks(child))
            except ProcessGoneError:
                continue  # it ended between the two reads; its parent has its time from now on
    return CpuReading(own / _TICKS_PER_S, below / _TICKS_PER_S)


def read_pss_bytes(pid: int, *, children: bool) -> int:
    """Proportional set size in bytes. Raises ProcessGoneError."""
    total = _pss_bytes(pid)
    if children:
        for child in descendants(pid):
            try:
                total += _pss_bytes(child)
            except ProcessGoneError:
                continue
    return total


def descendants(pid: int) -> list[int]:
    """Live children of every thread of `pid`, their children, and so on."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                waiting.extend(int(word) for word in (task / "children").read_text().split())
        except OSError:
            continue
        if parent != pid:
            found.append(parent)
    return found


def parse_stat(text: str) -> tuple[int, int]:
    """Clock ticks of the process itself and of the children it has waited for, from /proc/<pid>/stat."""
    fields = text.rpartition(")")[2].split()  # the name may itself contain spaces and parentheses
    return int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])


def _cpu_ticks(pid: int) -> tuple[int, int]:
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except OSError as error:
        raise ProcessGoneError(f"process {pid} cannot be read: {error.strerror}") from error


def _pss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError as error:
        raise ProcessGoneError(f"memory of process {pid} cannot be read: {error.strerror}") from error
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ProcessGoneError(f"process {pid} has no memory any more")
