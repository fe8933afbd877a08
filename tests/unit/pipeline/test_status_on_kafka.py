"""Status of a pipeline on Kafka: what it does from the driver, how far it is from what it has published."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.json import encode

from embermq.pipeline.log_look import Bounds, LogLook, SeenEnds, ToldReport
from embermq.pipeline.places import Places
from embermq.pipeline.status import DriverReport, QueryReport, read_status, write_report

NOW_MS = time.time_ns() // 1_000_000
BOUNDS = {0: Bounds(10, 100), 1: Bounds(0, 50)}


def look(asked: list[Mapping[int, int]], **done: dict[int, int]) -> LogLook:
    def accepted_ms(positions: Mapping[int, int]) -> int:
        asked.append(positions)
        return NOW_MS - 7_000

    return LogLook(BOUNDS, done, accepted_ms)


def driver(data_dir: Path, updated_ms: int) -> None:
    query = QueryReport(
        name="dispatch",
        state="running",
        mode="realtime",
        positions={"0": 20},
        lag_messages=80,
        lag_s=2.5,
        missing=3,
    )
    report = DriverReport(
        pid=os.getpid(),
        state="running",
        started_ms=updated_ms,
        updated_ms=updated_ms,
        queries=(query,),
        kafka=True,
    )
    write_report(Places(data_dir).status, report)


@pytest.mark.promise("pipeline-13")
def test_lag_and_state_are_there_while_the_driver_starts(tmp_path: Path) -> None:
    report = DriverReport(
        pid=os.getpid(),
        state="starting",
        started_ms=NOW_MS,
        updated_ms=NOW_MS,
        queries=(QueryReport(name="dispatch", state="starting"),),
        kafka=True,
    )
    write_report(Places(tmp_path).status, report)
    dispatch, lake = read_status(tmp_path, NOW_MS, look([], dispatch={0: 90, 1: 50}, lake={})).queries
    assert (dispatch.state, dispatch.lag_messages, dispatch.lag_s) == ("starting", 10, 7.0)
    assert (lake.state, lake.lag_messages, lake.lag_s) == ("starting", 140, 7.0)


@pytest.mark.promise("pipeline-13")
def test_a_driver_elsewhere_is_shown_as_long_as_it_is_heard(tmp_path: Path) -> None:
    query = QueryReport(name="lake", state="running", totals={"records": 9, "rejected": 1})
    report = DriverReport(
        pid=7, host="spark-1", state="running", started_ms=1, updated_ms=2, queries=(query,), kafka=True
    )
    heard = LogLook(BOUNDS, {"lake": {}}, lambda _: NOW_MS, ToldReport(encode(report), NOW_MS - 9_000))
    found = read_status(tmp_path, NOW_MS, heard)
    assert (found.state, found.pid, found.host) == ("running", 7, "spark-1")
    assert (found.queries[0].state, found.queries[0].totals) == ("running", {"records": 9, "rejected": 1})
    late = read_status(tmp_path, NOW_MS + 9_000, heard)
    assert (late.state, late.pid, late.host, late.queries[0].state) == ("down", 0, "", "down")


@pytest.mark.promise("pipeline-13", "pipeline-5")
def test_a_pipeline_that_never_ran_says_what_waits_and_for_how_long(tmp_path: Path) -> None:
    asked: list[Mapping[int, int]] = []
    found = read_status(tmp_path, NOW_MS, look(asked, dispatch={}, lake={0: 100, 1: 50}))
    assert (found.state, found.log_end, found.waiting) == ("down", 150, 140)
    dispatch, lake = found.queries
    assert (dispatch.state, dispatch.position, dispatch.lag_messages, dispatch.lag_s) == ("down", 0, 140, 7.0)
    assert (lake.position, lake.lag_messages, lake.lag_s) == (150, 0, 0.0)
    assert found.warnings == ("the pipeline is down: application logs wait for 140 records",)
    assert asked == [{0: 10, 1: 0}]


@pytest.mark.promise("pipeline-13")
def test_positions_are_those_that_were_published_and_the_age_is_the_drivers_while_it_lives(
    tmp_path: Path,
) -> None:
    driver(tmp_path, NOW_MS)
    asked: list[Mapping[int, int]] = []
    found = read_status(tmp_path, NOW_MS, look(asked, dispatch={0: 90, 1: 50}))
    (dispatch,) = found.queries
    assert (dispatch.state, dispatch.mode, dispatch.totals) == ("running", "realtime", {"missing": 3})
    assert (dispatch.positions, dispatch.position) == ({"0": 90, "1": 50}, 140)
    assert (dispatch.lag_messages, dispatch.lag_s, asked) == (10, 2.5, [])
    driver(tmp_path, NOW_MS - 60_000)
    found = read_status(tmp_path, NOW_MS, look(asked, dispatch={0: 90, 1: 50}))
    assert (found.state, found.queries[0].state) == ("down", "down")
    assert (found.queries[0].lag_messages, found.queries[0].lag_s, asked) == (10, 7.0, [{0: 90}])


def test_without_anybody_who_waits_nothing_waits(tmp_path: Path) -> None:
    found = read_status(tmp_path, NOW_MS, look([]))
    assert (found.waiting, found.queries, found.warnings) == (0, (), ())


def test_records_are_dated_by_when_their_place_was_seen_empty() -> None:
    seen = SeenEnds(remembered=3)
    assert seen.accepted_ms({0: 1}) is None
    for at_ms, end in ((1_000, 5), (2_000, 7), (3_000, 7)):
        seen.look({0: end, 1: 4}, at_ms)
    assert seen.accepted_ms({0: 6}) == seen.accepted_ms({0: 4}) == seen.accepted_ms({0: 5, 1: 4}) == 1_000
    assert (seen.accepted_ms({0: 7}), seen.accepted_ms({0: 7, 1: 3})) == (3_000, 1_000)
    seen.look({0: 9, 1: 4}, 4_000)
    assert (seen.accepted_ms({0: 7}), seen.accepted_ms({0: 5}), seen.accepted_ms({0: 9})) == (
        3_000,
        2_000,
        4_000,
    )
