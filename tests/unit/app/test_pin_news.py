"""The lines of the broker's log about readers that hold back the message log."""

from __future__ import annotations

import logging

from embermq.app.pin_news import PinNews
from embermq.durability.retention import Pin, RetentionState


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
