"""The lines of the broker's log about its pipeline."""

from __future__ import annotations

import logging

from msgspec.structs import replace
from tests.support.pipeline_statuses import pipeline_status, query_status

from embermq.app.pipeline_news import PipelineNews, waiting_text
from embermq.pipeline.supervisor import SupervisorStatistics

STARTING = SupervisorStatistics("starting", 7, 0, "")
RUNNING = SupervisorStatistics("running", 7, 0, "")
FOUND = pipeline_status(pid=7, java="17 (path)", spark="4.2.1")
STUMBLING = query_status(
    "lake", state="backoff", lag_messages=1, lag_s=1.0, last_error="OSError: no room", restarts=1
)


def test_a_start_is_one_line() -> None:
    news = PipelineNews()
    assert news.since(STARTING, replace(FOUND, state="down")) == []
    assert news.since(RUNNING, FOUND) == [(logging.INFO, "the pipeline runs (Spark 4.2.1, Java 17 (path))")]
    assert news.since(RUNNING, FOUND) == []


def test_a_failing_query_is_named_once_and_its_recovery_is_told() -> None:
    news = PipelineNews()
    news.since(RUNNING, FOUND)
    failing = replace(FOUND, state="degraded", queries=(STUMBLING,))
    assert news.since(RUNNING, failing) == [
        (logging.WARNING, "the pipeline has a query that fails: lake: OSError: no room")
    ]
    assert news.since(RUNNING, failing) == []
    assert [level for level, _ in news.since(RUNNING, FOUND)] == [logging.INFO]


def test_a_paused_query_is_no_failing_one_and_hides_none() -> None:
    news = PipelineNews()
    news.since(RUNNING, FOUND)
    paused = replace(STUMBLING, name="archive", state="paused", last_error="")
    degraded = replace(FOUND, state="degraded", queries=(paused,))
    assert news.since(RUNNING, degraded) == [
        (logging.WARNING, "the pipeline goes on without archive, until it is resumed")
    ]
    ((_, line),) = news.since(RUNNING, replace(degraded, queries=(paused, STUMBLING)))
    assert "a query that fails: lake: OSError: no room" in line
    assert news.since(RUNNING, replace(degraded, queries=(paused, STUMBLING))) == []
    assert news.since(RUNNING, degraded) == []


def test_a_restart_is_told_even_when_nobody_saw_it_go() -> None:
    news = PipelineNews()
    news.since(RUNNING, FOUND)
    again = SupervisorStatistics("running", 8, 1, "the driver ended with code 70")
    assert news.since(again, FOUND) == [
        (logging.WARNING, "the pipeline was restarted: the driver ended with code 70")
    ]


def test_failing_again_and_again_is_one_error_whatever_is_tried_meanwhile() -> None:
    news = PipelineNews()
    failed = SupervisorStatistics("failed", 0, 5, "cannot start")
    down = replace(FOUND, state="failed")
    ((level, text),) = news.since(failed, down)
    assert level == logging.ERROR and text.endswith("restarted at growing intervals: cannot start")
    for restarts in (6, 7):
        assert news.since(SupervisorStatistics("failed", 0, restarts, "cannot start"), down) == []
    back = SupervisorStatistics("running", 8, 8, "cannot start")
    assert [level for level, _ in news.since(back, FOUND)] == [logging.WARNING, logging.INFO]


def test_standing_still_is_an_error_while_every_process_says_that_it_runs() -> None:
    news = PipelineNews()
    news.since(RUNNING, FOUND)
    still = SupervisorStatistics("running", 7, 0, "", "dispatch has got nothing done")
    assert news.since(still, FOUND) == [
        (logging.ERROR, "the pipeline is down, its driver is restarted: dispatch has got nothing done")
    ]
    assert news.since(still, FOUND) == []
    assert [level for level, _ in news.since(RUNNING, FOUND)] == [logging.INFO]


def test_application_logs_that_wait_without_a_pipeline_are_said_once() -> None:
    news = PipelineNews()
    assert news.without_pipeline(0) == []
    assert news.without_pipeline(5) == [
        (logging.WARNING, "the pipeline is not running: application logs wait for 5 records")
    ]
    assert news.without_pipeline(9) == []
    assert news.without_pipeline(0) == []
    assert len(news.without_pipeline(1)) == 1


def test_what_ready_says_of_application_logs() -> None:
    assert waiting_text(FOUND) == "ok"
    dispatch = replace(STUMBLING, name="dispatch", lag_s=2.5)
    assert waiting_text(replace(FOUND, waiting=7)) == "7 records to come"
    assert (
        waiting_text(replace(FOUND, waiting=7, queries=(dispatch,)))
        == "7 records to come, the oldest for 2.5 s"
    )
