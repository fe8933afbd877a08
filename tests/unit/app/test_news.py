"""The lines of the broker's log about readers that hold back the message log."""

from __future__ import annotations

import logging

from msgspec.structs import replace
from tests.support.pipeline_statuses import pipeline_status, query_status

from embermq.app.news import PinNews, PipelineNews, waiting_text
from embermq.durability.retention import Pin, RetentionState
from embermq.pipeline.supervisor import SupervisorStatistics


def state(
    body_bytes: int,
    *,
    near: tuple[str, ...] = (),
    passed: tuple[str, ...] = (),
    to_pause: tuple[str, ...] = (),
) -> RetentionState:
    """Of a log whose readers may hold back a hundred bytes."""
    return RetentionState(
        start_offset=0,
        end_offset=9,
        body_bytes=body_bytes,
        parked_bytes=0,
        pins=(Pin("lake", 3, behind=6),),
        over_limit=body_bytes > 100,
        refuse_all=False,
        refused_generations=frozenset(),
        dropped=0,
        pin_limit_bytes=100,
        near=near,
        passed=passed,
        to_pause=to_pause,
    )


def test_a_query_is_named_once_before_and_once_when_the_log_goes_on_without_it() -> None:
    news = PinNews(["archive", "lake"])
    assert news.since(state(10)) == []
    ((level, line),) = news.since(state(60, near=("lake", "dispatch")))[1:]
    assert level == logging.WARNING
    assert line == (
        "lake holds back more than half of what readers may hold back of the log (60 of 100 bytes); past that, "
        "pipeline.pin_policies decides"
    )
    assert news.since(state(60, near=("lake", "dispatch"))) == []
    (level, line), (_, over) = news.since(state(120, near=("lake",), passed=("lake",)))
    assert level == logging.ERROR
    assert line.startswith("lake is so far behind that the log goes on without it")
    assert "furthest behind: lake, by 6 records" in over
    for _ in range(2):  # each drop brings it back to the limit, and what comes next past it again
        assert news.since(state(99, near=("lake",))) == []
        assert news.since(state(120, near=("lake",), passed=("lake",))) == []
    assert news.since(state(10)) == [(logging.INFO, "the log is within its limits again")]


def test_dispatch_goes_by_the_policy_of_the_log() -> None:
    (line,) = PinNews(["lake"]).since(state(60, near=("dispatch",)))
    assert line[1].endswith("past that, log.pin_policy decides")


def test_a_query_that_is_paused_is_named_with_the_way_out() -> None:
    found = PinNews(["lake"]).since(state(120, near=("lake",), passed=("lake",), to_pause=("lake",)))
    assert "lake is paused" in found[1][1] and "`embermq pipeline resume lake`" in found[1][1]


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
