"""Broker time across restarts: `clock.json` in the data directory."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import msgspec

from embermq.edge.clock import BrokerClock, ClockChange, TimeSource
from embermq.model.noted_time import NotedTime

LOG = logging.getLogger("embermq")
FILE_NAME = "clock.json"
NOTED_S = 60
"""How often it is written while the wall clock stays as it is: what a crash may make of a time that was never set."""


class ClockFile:
    """Keeps a clock's time, and tells when the wall clock was moved."""

    def __init__(self, data_dir: Path, source: TimeSource | None = None) -> None:
        self._path = data_dir / FILE_NAME
        self.clock = BrokerClock(self._read(), source)
        self.clock.on_change = self._changed
        self._looks = 0
        self._said = ""
        if self.clock.offset_ms is None:
            LOG.warning(
                "the clock is before the date of this build, so it is not set: messages get no date, and no downtime "
                "counts, until it is"
            )

    def _read(self) -> NotedTime | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=NotedTime)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            LOG.warning("%s cannot be read, the wall clock alone counts: %s", self._path, error)
            return None

    def look(self) -> None:
        """Look at the clock, and write it down now and then. Called once a second."""
        self.clock.look()
        self._looks += 1
        if self._looks % NOTED_S == 1:
            self.note()

    def note(self) -> None:
        """Write it down. What goes wrong is told once: a full disk must not end anything here."""
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(msgspec.json.encode(self.clock.noted()))
            fresh.replace(self._path)
            self._said = ""
        except OSError as error:
            if not self._said:
                LOG.warning("%s cannot be written: %s", self._path, error)
            self._said = str(error)

    def _changed(self, change: ClockChange, by_ms: int) -> None:
        moved = f"{'forward' if by_ms > 0 else 'back'} by {timedelta(seconds=round(abs(by_ms) / 1_000))}"
        if change is ClockChange.SET:
            LOG.info("the clock has been set: messages get their dates from now on")
        elif change is ClockChange.UNSET:
            LOG.warning(
                "the clock was moved %s, before the date of this build: messages get no date now", moved
            )
        else:
            LOG.warning("the clock was moved %s; timeouts and expiry are not affected", moved)
        self.note()

    def told(self) -> str:
        """For operators: "ok", or what is the matter."""
        offset_ms = self.clock.offset_ms
        if offset_ms is None:
            return "not set"
        if abs(offset_ms) < 1_000:
            return "ok"
        where = "behind" if offset_ms > 0 else "ahead of"
        return f"broker time is {abs(offset_ms) // 1_000} s {where} the wall clock"
