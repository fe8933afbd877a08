"""How long a query that has died stays down."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.waiting import wait_until

from embermq.pipeline.jobs.query_job import JobSetup, QueryJob
from embermq.pipeline.keeper import Keeper
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings

NO_SPARK = cast(SparkSession, None)
HEALS = ["no", "no", "no", "yes", "yes", "no"]


class Pauses(threading.Event):
    """Nobody waits; ends when all have been."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        if len(self.seconds) == len(HEALS):
            self.set()
        return self.is_set()


class Dies(QueryJob):
    """Of one reason after the other."""

    name = "dispatch"

    def __init__(self) -> None:
        self._reasons = iter(HEALS)

    @classmethod
    def create(cls, setup: JobSetup) -> Dies:
        return cls()

    def start(self, spark: SparkSession) -> StreamingQuery:
        raise RuntimeError(next(self._reasons))

    def lag(self) -> int:
        return 0

    def upkeep(self, now_ms: int) -> None:
        """Nothing."""

    def quiesce(self, timeout_s: float) -> None:
        """Nothing."""

    def heal(self, reason: str) -> bool:
        return reason == "yes"


@pytest.mark.promise("pipeline-14")
def test_what_has_been_put_right_is_no_failure(tmp_path: Path) -> None:
    """Pauses double with what fails; one that was put right is short, and makes no later one longer."""
    pauses = Pauses()
    setup = JobSetup(DriverSettings(backoff_first_ms=500, backoff_max_ms=30_000), Places(tmp_path))
    Keeper(Dies, setup, NO_SPARK, pauses).start()
    wait_until(pauses.is_set, 30, "it has died of everything")
    assert pauses.seconds == [0.5, 1.0, 2.0, 0.5, 0.5, 4.0]
