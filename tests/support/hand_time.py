"""A machine's clocks that a test moves."""

from __future__ import annotations

DAY_MS = 86_400_000
START_MS = 1_800_000_000_000
"""In 2027, after the date of any build that is tested."""


class HandTime:
    """Both clocks go on with `passes`; `steps` moves the wall clock alone."""

    def __init__(self, wall_ms: int = START_MS, boot_ms: int = 5_000_000) -> None:
        self._wall_ms = wall_ms
        self._boot_ms = boot_ms

    def boot_ms(self) -> int:
        return self._boot_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def passes(self, ms: int) -> None:
        self._boot_ms += ms
        self._wall_ms += ms

    def steps(self, by_ms: int) -> None:
        self._wall_ms += by_ms

    def restarts(self, *, after_ms: int) -> None:
        """The machine is started again: its uptime begins anew."""
        self._boot_ms = 0
        self._wall_ms += after_ms
