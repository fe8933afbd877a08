"""The broker's time. Durations run on CLOCK_BOOTTIME, whatever somebody does to the wall clock.

*Broker time* is what everything that is due, expires or waits is counted in, and what stores keep of it. It begins as
the wall clock and goes on with CLOCK_BOOTTIME, which counts the time of a suspended machine too. Across a restart the
wall clock says how much has passed, less the offset that the last run noted: a step while the broker runs counts
neither then nor later, and broker time never goes back. *Dates*, which are for people and programs elsewhere, are the
wall clock's: broker time and the offset.

Where the two are apart, broker time runs up to 1 % faster or slower until they agree: one second takes 100 s.
A wall clock before the date of this build has not been set: there are no dates then, and a downtime cannot be known.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Protocol

from msgspec import Struct

from embermq import __date__
from embermq.model.noted_time import NotedTime

BUILT_MS = int(datetime.fromisoformat(__date__).replace(tzinfo=UTC).timestamp() * 1000)
STEP_MS = 60_000
"""A wall clock that moves by more than this at once has been set; less is corrected in silence."""
SLEW = 100
"""Broker time is corrected by one part in so many of what passes."""


class TimeSource(Protocol):
    """The machine's clocks, in milliseconds."""

    def boot_ms(self) -> int:
        """Since the machine was started; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Unix time, as far as somebody has set it right."""
        ...


class MachineTime(TimeSource):
    """The machine's own clocks: time since boot, sleep included, and the wall clock."""

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ClockChange(Enum):
    """What `look` has found the wall clock to have done since the last look."""

    STEPPED = "stepped"
    SET = "set"
    UNSET = "unset"


class ClockStatistics(Struct, frozen=True):
    """`offset_ms` is what the wall clock is ahead of broker time, None when it is not set."""

    offset_ms: int | None
    steps: int


class BrokerClock:
    """Broker time and dates. `look` is called about once a second, on the event loop; `now_ms` from any thread."""

    def __init__(
        self, noted: NotedTime | None = None, source: TimeSource | None = None, *, built_ms: int = BUILT_MS
    ) -> None:
        self._source = source or MachineTime()
        self._built_ms = built_ms
        wall_ms, self._looked_ms = self._source.wall_ms(), self._source.boot_ms()
        is_set = wall_ms >= built_ms
        if noted is None:
            start_ms = max(wall_ms, built_ms)
        elif is_set and noted.offset_ms is not None:
            start_ms = max(noted.broker_ms, wall_ms - noted.offset_ms)
        else:
            start_ms = noted.broker_ms
        self._shift_ms = start_ms - self._looked_ms
        self._last_ms = start_ms
        self.offset_ms: int | None = wall_ms - start_ms if is_set else None
        """To be added to broker time for the date; None while there are no dates."""
        self._steps = 0
        self.on_change: Callable[[ClockChange, int], None] = lambda _change, _by_ms: None
        """Told when the wall clock has been moved, and by how many milliseconds; 0 for one that had not been set."""

    def now_ms(self) -> int:
        """Broker time: near Unix milliseconds unless the wall clock was wrong. It never goes back."""
        now_ms = self._source.boot_ms() + self._shift_ms
        if now_ms < self._last_ms:  # it is being slowed down, by less than a look's correction
            return self._last_ms
        self._last_ms = now_ms
        return now_ms

    def go_on_from(self, known_ms: int) -> None:
        """Be no earlier: another machine has had that time, by which it has said what is due."""
        behind_ms = max(0, known_ms - self.now_ms())
        self._shift_ms += behind_ms
        if self.offset_ms is not None:
            self.offset_ms -= behind_ms

    def statistics(self) -> ClockStatistics:
        return ClockStatistics(self.offset_ms, self._steps)

    def noted(self) -> NotedTime:
        """For the next run."""
        return NotedTime(self.now_ms(), self.offset_ms)

    def look(self) -> None:
        """Compare with the wall clock."""
        boot_ms, wall_ms = self._source.boot_ms(), self._source.wall_ms()
        passed_ms, self._looked_ms = boot_ms - self._looked_ms, boot_ms
        before_ms = self.offset_ms
        if wall_ms < self._built_ms:
            self.offset_ms = None
            if before_ms is not None:
                self._steps += 1
                self.on_change(ClockChange.UNSET, wall_ms - self.now_ms() - before_ms)
            return
        offset_ms = wall_ms - boot_ms - self._shift_ms
        most_ms = passed_ms // SLEW
        correction_ms = max(-most_ms, min(most_ms, offset_ms))
        self._shift_ms += correction_ms
        self.offset_ms = offset_ms - correction_ms
        if before_ms is None:
            self.on_change(ClockChange.SET, 0)
        elif abs(offset_ms - before_ms) > STEP_MS:
            self._steps += 1
            self.on_change(ClockChange.STEPPED, offset_ms - before_ms)
