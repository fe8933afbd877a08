"""How long a query that has died stays down."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path
from typing import ClassVar, cast
from unittest.mock import Mock

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.waiting import wait_until

from embermq.pipeline.jobs.query_job import JobSetup, QueryJob
from embermq.pipeline.keeper import Keeper, short_reason
from embermq.pipeline.paused import pause_queries, resume_query
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.turns import Turns

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


class Query:
    """Goes on until it is stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802 - Spark's name
        return self.stopped.wait(0.01)

    def stop(self) -> None:
        self.stopped.set()


class Lives(Dies):
    """A query that has nothing to die of."""

    started: ClassVar[list[Query]] = []

    def start(self, spark: SparkSession) -> StreamingQuery:
        self.started.append(Query())
        return cast(StreamingQuery, self.started[-1])

    def has_begun(self, query: StreamingQuery) -> bool:
        return True


class Soon(threading.Event):
    """Waits a moment instead of a second."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(0.01)


@pytest.mark.promise("pipeline-5", "pipeline-13")
def test_a_paused_query_stands_still_until_somebody_resumes_it(tmp_path: Path) -> None:
    stopping = Soon()
    keeper = Keeper(
        Lives, JobSetup(DriverSettings(), Places(tmp_path)), NO_SPARK, stopping, Turns(["dispatch"])
    )
    keeper.start()
    wait_until(lambda: keeper.report().state == "running", 30, "it runs")
    pause_queries(tmp_path, ["dispatch"])
    wait_until(lambda: keeper.report().state == "paused", 30, "it stands still")
    assert Lives.started[-1].stopped.is_set()
    assert keeper.is_settled() and keeper.report().restarts == 0
    (tmp_path / "broker.db").touch()
    for name in ("../broker.db", str(tmp_path / "broker.db"), ".", ""):
        assert not resume_query(tmp_path, name), "no name of a query"
    assert (tmp_path / "broker.db").exists()
    assert resume_query(tmp_path, "dispatch") and not resume_query(tmp_path, "dispatch")
    wait_until(lambda: keeper.report().state == "running", 30, "it goes on")
    assert len(Lives.started) == 2
    stopping.set()


@pytest.mark.promise("pipeline-14")
def test_a_folder_that_cannot_be_read_for_a_while_ends_no_query_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> frozenset[str]:
        raise OSError(errno.EMFILE, "Too many open files")

    stopping = Soon()
    setup = JobSetup(DriverSettings(backoff_first_ms=1), Places(tmp_path))
    keeper = Keeper(Lives, setup, NO_SPARK, stopping, Turns(["dispatch"]))
    with monkeypatch.context() as trouble:
        trouble.setattr("embermq.pipeline.keeper.paused_queries", fails)
        keeper.start()
        wait_until(lambda: keeper.report().state == "backoff", 30, "it says so")
    wait_until(lambda: keeper.report().state == "running", 30, "it goes on")
    stopping.set()


@pytest.mark.promise("pipeline-14")
def test_what_has_been_put_right_is_no_failure(tmp_path: Path) -> None:
    """Pauses double with what fails; one that was put right is short, and makes no later one longer."""
    pauses = Pauses()
    setup = JobSetup(DriverSettings(backoff_first_ms=500, backoff_max_ms=30_000), Places(tmp_path))
    Keeper(Dies, setup, NO_SPARK, pauses, Turns(["dispatch"])).start()
    wait_until(pauses.is_set, 30, "it has died of everything")
    assert pauses.seconds == [0.5, 1.0, 2.0, 0.5, 0.5, 4.0]


def test_a_query_that_dies_says_one_line_and_its_thread_leaves_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, pauses = Mock(), Pauses()
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    setup = JobSetup(DriverSettings(), Places(tmp_path))
    Keeper(Dies, setup, NO_SPARK, pauses, Turns(["dispatch"])).start()
    connection = gateway._gateway_client.get_thread_connection.return_value
    wait_until(lambda: connection.close.called, 30, "its connection is closed")
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(record.getMessage(), record.exc_info) for record in told if "no" in record.getMessage()] == [
        ("query dispatch: RuntimeError: no", None)
    ] * HEALS.count("no")


def test_what_java_threw_is_told_by_its_own_words() -> None:
    thrown = "An error occurred while calling o1.sql.\n: java.io.IOException: no room\n\tat a.B.c(B.java:1)\n"
    assert short_reason(RuntimeError(thrown)) == "RuntimeError: java.io.IOException: no room"
