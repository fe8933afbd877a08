"""Once a second: readers hear how far the pipeline is, and their floors follow what they have passed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Protocol

from embermq.delivery.application.fed_lane import FedLane
from embermq.delivery.application.window import SlidingWindow
from embermq.ports.application_logs import ApplicationLogs, Place
from embermq.ports.errors import StoreError
from embermq.ports.pipeline_progress import PipelineProgress
from embermq.sessions.tick import Tick

QUERY = "dispatch"
ROUND_MS = 1_000


class RoundsOwner(Protocol):
    """Has the lanes that rounds look at."""

    def lanes(self) -> Iterable[FedLane]:
        """Every lane that is to be looked at in a round."""

    def trim(self) -> None:
        """Trim logs below what every reader has settled."""

    def moved(self, lane: FedLane) -> None:
        """It has heard a report: its base or its floors may have moved."""


class Rounds:
    """Looks at all lanes of one kind in turns, and asks where their logs begin and end."""

    def __init__(
        self,
        tick: Tick,
        owner: RoundsOwner,
        window: SlidingWindow,
        progress: PipelineProgress,
        logs: ApplicationLogs,
    ) -> None:
        self._tick = tick
        self._owner = owner
        self._window = window
        self._progress = progress
        self._logs = logs
        self._round_ms = 0
        self._asking = False

    def look(self, now_ms: int) -> None:
        """Begin a round when it is time. Called again and again."""
        if 0 <= now_ms - self._round_ms < ROUND_MS:  # less than 0: the clock was set back
            return
        self._round_ms = now_ms
        self._owner.trim()
        reported = self._progress.complete(QUERY)
        waiting: list[FedLane] = []
        for lane in self._owner.lanes():
            self._window.follow_idle(lane)
            if reported and lane.reported != reported and lane.wants_report:
                waiting.append(lane)
        if waiting and not self._asking:
            self._asking = True
            logs: dict[str, int] = {}
            for lane in waiting:
                logs[lane.log] = max(logs.get(lane.log, 0), lane.number + 1)
            self._logs.ends(logs, partial(self._reached, reported, waiting))

    def _reached(
        self, reported: Mapping[int, int], waiting: list[FedLane], ends: Mapping[Place, int] | StoreError
    ) -> None:
        """Ends that were asked for after the report."""
        self._asking = False
        if isinstance(ends, StoreError):
            return  # asked again in the next round
        self._tick.wake()
        for lane in waiting:
            end = ends.get((lane.log, lane.number))
            if end is None or lane.is_over:
                continue
            lane.hear(reported, end)
            self._owner.moved(lane)
