"""Queries start one after the other, dispatch first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.waiting import wait_until

from embermq.pipeline.jobs.query_job import JobSetup, QueryJob
from embermq.pipeline.keeper import Keeper
from embermq.pipeline.paused import pause_queries
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.turns import TURN_S, Turns

NO_SPARK = cast(SparkSession, None)
SOON_S = 30


class Played(QueryJob):
    """A query that begins, or dies, when a test says so."""

    def __init__(self) -> None:
        self.starts = 0
        self.has_worker = threading.Event()
        self.is_through = False
        self.dies_of = ""

    @classmethod
    def create(cls, setup: JobSetup) -> Played:
        return cls()

    def start(self, spark: SparkSession) -> StreamingQuery:
        self.starts += 1
        self.has_worker.set()
        return cast(StreamingQuery, self)

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's name
        if self.dies_of:
            reason, self.dies_of = self.dies_of, ""
            self.has_worker.clear()
            raise RuntimeError(reason)
        return threading.Event().wait(0.001)

    def stop(self) -> None:
        """Nothing."""

    def has_begun(self, query: StreamingQuery) -> bool:
        return self.is_through

    def lag(self) -> int:
        return 0

    def upkeep(self, now_ms: int) -> None:
        """Nothing."""

    def quiesce(self, timeout_s: float) -> None:
        """Nothing."""


def kind_of(name: str, job: Played) -> Any:
    class Kind(Played):
        @classmethod
        def create(cls, setup: JobSetup) -> Played:
            return job

    Kind.name = cast(Any, name)
    return Kind


@pytest.fixture
def stopping() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.promise("pipeline-14")
def test_a_query_starts_its_workers_when_the_one_before_it_has_begun(
    tmp_path: Path, stopping: threading.Event
) -> None:
    names = ("dispatch", "archive", "traffic")
    jobs = {name: Played() for name in names}
    turns = Turns(names)
    setup = JobSetup(DriverSettings(backoff_first_ms=1), Places(tmp_path))
    keepers = {name: Keeper(kind_of(name, jobs[name]), setup, NO_SPARK, stopping, turns) for name in names}
    for name in reversed(names):  # whoever is ready first
        keepers[name].start()
    for number, name in enumerate(names):
        assert jobs[name].has_worker.wait(SOON_S)
        assert [jobs[other].starts for other in names] == [1] * (number + 1) + [0] * (len(names) - number - 1)
        assert not keepers[name].is_settled() and keepers[name].report().state == "starting"
        jobs[name].is_through = True
        wait_until(lambda name=name: keepers[name].report().state == "running", SOON_S)  # type: ignore[misc]


@pytest.mark.promise("pipeline-14")
def test_a_query_that_failed_is_not_called_running_before_something_has_gone_through(
    tmp_path: Path, stopping: threading.Event
) -> None:
    job = Played()
    setup = JobSetup(DriverSettings(backoff_first_ms=1), Places(tmp_path))
    keeper = Keeper(kind_of("dispatch", job), setup, NO_SPARK, stopping, Turns(["dispatch"]))
    job.is_through = True
    keeper.start()
    wait_until(lambda: keeper.report().state == "running", SOON_S, "it runs")
    job.is_through = False
    job.dies_of = "Python worker failed to connect back."
    wait_until(lambda: job.starts == 2 and job.has_worker.is_set(), SOON_S, "it is started again")
    assert keeper.report().state == "backoff" and keeper.is_settled()
    job.is_through = True
    wait_until(lambda: keeper.report().state == "running", SOON_S, "it runs again")


@pytest.mark.promise("pipeline-14")
def test_one_that_does_not_begin_keeps_the_others_waiting_only_so_long() -> None:
    now = [0.0]
    turns = Turns(["dispatch", "archive"], lambda: now[0])
    never = threading.Event()
    turns.take("dispatch", never)
    taken = threading.Event()

    def take() -> None:
        turns.take("archive", never)
        taken.set()

    waiting = threading.Thread(target=take)
    waiting.start()
    now[0] = TURN_S - 0.01
    assert not taken.wait(0.05)
    now[0] = TURN_S
    assert taken.wait(SOON_S)
    waiting.join(SOON_S)


@pytest.mark.promise("pipeline-14")
def test_one_that_has_given_up_for_now_is_not_waited_for_and_nobody_waits_at_the_end() -> None:
    turns = Turns(["dispatch", "archive", "lake"])
    never = threading.Event()
    turns.leave("dispatch")  # its sink cannot be opened
    turns.take("archive", never)
    stopping = threading.Event()
    stopping.set()
    turns.take("lake", stopping)  # returns, though archive has the turn


@pytest.mark.promise("pipeline-5")
def test_a_paused_query_keeps_nobody_waiting(tmp_path: Path, stopping: threading.Event) -> None:
    jobs = {name: Played() for name in ("dispatch", "archive", "lake")}
    jobs["lake"].is_through = True
    turns = Turns(tuple(jobs))
    setup = JobSetup(DriverSettings(), Places(tmp_path))
    pause_queries(tmp_path, ["dispatch"])
    keepers = [Keeper(kind_of(name, job), setup, NO_SPARK, stopping, turns) for name, job in jobs.items()]
    for keeper in keepers:
        keeper.start()
    assert jobs["archive"].has_worker.wait(SOON_S) and not jobs["lake"].starts
    pause_queries(tmp_path, ["archive"])  # in the middle of its start
    wait_until(lambda: keepers[2].report().state == "running", SOON_S, "the third one's turn")
    assert all(keeper.is_settled() for keeper in keepers[:2])
