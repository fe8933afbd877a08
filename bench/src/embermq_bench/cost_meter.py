"""CPU and memory of processes over a window."""

from __future__ import annotations

import time
from collections.abc import Sequence

from embermq_bench.process_cost import CpuReading, ProcessCost, WatchedProcess, read_cpu, read_pss_bytes


class CostMeter:
    """CPU and memory of the watched processes, and of this one, over a window."""

    def __init__(self, watched: Sequence[WatchedProcess], *, children: bool, pss_interval_s: float) -> None:
        self._watched = watched
        self._children = children
        self._pss_interval_s = pss_interval_s
        self._next_pss = 0.0
        self._began: list[CpuReading] = []
        self._ended: list[CpuReading] = []
        self._peaks = [0] * len(watched)
        self._began_at = self._began_cpu = 0.0
        self.elapsed_s = 0.0
        self.generator_cpu_s = 0.0

    def begin(self) -> None:
        """The window begins."""
        self._began_cpu = time.process_time()
        self._began_at = time.monotonic()
        self._began = [read_cpu(process.pid, children=self._children) for process in self._watched]

    def sample(self) -> None:
        """Look at the memory, when it is time."""
        if time.monotonic() < self._next_pss:
            return
        for place, process in enumerate(self._watched):
            self._peaks[place] = max(self._peaks[place], read_pss_bytes(process.pid, children=self._children))
        self._next_pss = time.monotonic() + self._pss_interval_s

    def end(self) -> None:
        """The window ends."""
        self._ended = [read_cpu(process.pid, children=self._children) for process in self._watched]
        self.elapsed_s = time.monotonic() - self._began_at
        self.generator_cpu_s = time.process_time() - self._began_cpu
        self._next_pss = 0.0
        self.sample()

    def costs(self) -> tuple[ProcessCost, ...]:
        """What the window cost."""
        return tuple(
            ProcessCost(
                name=process.name,
                pid=process.pid,
                cpu_s=after.own_s - before.own_s,
                children_cpu_s=max(0.0, after.children_s - before.children_s),
                pss_peak_bytes=peak,
            )
            for process, before, after, peak in zip(
                self._watched, self._began, self._ended, self._peaks, strict=True
            )
        )
