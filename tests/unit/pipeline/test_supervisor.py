"""When a pipeline that says it runs counts as down."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec.structs import replace
from tests.support.pipeline_statuses import pipeline_status, query_status

from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.status import PipelineStatus, QueryStatus
from embermq.pipeline.supervisor import DOUBLED_MAX, ProgressWatch
from embermq.pipeline.turns import TURN_S

SETTINGS = DriverSettings(
    queries=("dispatch", "archive"), progress_timeout_s=100, bulk_trigger_ms=20_000, dispatch_rest_ms=5_000
)
DISPATCH = query_status("dispatch", position=7, lag_messages=3, lag_s=1.0)
ARCHIVE = replace(DISPATCH, name="archive")


def status(*queries: QueryStatus, waits_for: str = "") -> PipelineStatus:
    return pipeline_status(*queries, log_end=10, waiting=3, waits_for=waits_for)


@pytest.mark.promise("pipeline-14")
def test_a_query_that_stands_still_while_records_wait_counts_as_down() -> None:
    watch = ProgressWatch(SETTINGS)
    assert not watch.look(status(DISPATCH), 0) and not watch.look(status(DISPATCH), 105)
    assert watch.stalled == ""
    assert watch.look(status(DISPATCH), 106)
    assert watch.stalled == "dispatch has got nothing done for 106 s, although 3 records wait"
    watch.begin(110)
    assert not watch.look(status(DISPATCH), 120) and watch.stalled, "until it gets something done"
    assert not watch.look(status(replace(DISPATCH, position=8)), 121)
    assert watch.stalled == ""


@pytest.mark.promise("pipeline-14")
def test_patience_doubles_with_each_driver_that_was_begun_in_vain() -> None:
    watch = ProgressWatch(SETTINGS)
    now_s = 0.0
    for begun in range(DOUBLED_MAX + 3):
        watch.begin(now_s)
        patience_s = 105 * (1 << min(begun, DOUBLED_MAX))
        assert not watch.look(status(DISPATCH), now_s) and not watch.look(
            status(DISPATCH), now_s + patience_s
        )
        now_s += patience_s + 1
        assert watch.look(status(DISPATCH), now_s)
    watch.look(status(replace(DISPATCH, position=8)), now_s)
    assert watch.look(status(replace(DISPATCH, position=8)), now_s + 106)


@pytest.mark.promise("pipeline-14")
@pytest.mark.parametrize(
    "looks",
    [
        [status(replace(DISPATCH, lag_messages=0))] * 5,
        [status(replace(DISPATCH, position=position)) for position in range(5)],
        [status(DISPATCH, waits_for="Kafka does not answer")] * 5,
        [status(replace(DISPATCH, name="lake"))] * 5,
        [status(replace(ARCHIVE, state="backoff"))] * 5,
        [status(replace(ARCHIVE, state="paused"))] * 5,
        [status(replace(ARCHIVE, restarts=restarts)) for restarts in range(5)],
    ],
    ids=[
        "nothing waits",
        "goes on",
        "waits for the log",
        "not wanted",
        "fails by itself",
        "is paused",
        "is started again",
    ],
)
def test_what_is_no_standstill(looks: list[PipelineStatus]) -> None:
    watch = ProgressWatch(SETTINGS)
    assert not any(watch.look(found, 90.0 * number) for number, found in enumerate(looks))
    assert watch.stalled == ""


@pytest.mark.promise("pipeline-14")
def test_dispatch_stands_still_also_when_it_fails_again_and_again() -> None:
    watch = ProgressWatch(SETTINGS)
    looks = [status(replace(DISPATCH, state="backoff", restarts=restarts)) for restarts in range(3)]
    assert [watch.look(found, 60.0 * number) for number, found in enumerate(looks)] == [False, False, True]


@pytest.mark.promise("pipeline-14")
def test_each_query_has_the_time_between_its_batches_besides() -> None:
    watch = ProgressWatch(SETTINGS)
    assert not watch.look(status(ARCHIVE), 0) and not watch.look(status(ARCHIVE), 120)
    assert watch.look(status(ARCHIVE), 121) and watch.stalled.startswith("archive")


@pytest.mark.promise("pipeline-14")
@pytest.mark.parametrize("state", ["starting", "stopped"])
def test_a_query_that_is_starting_has_the_turns_of_all_besides(
    state: Literal["starting", "stopped"],
) -> None:
    watch = ProgressWatch(SETTINGS)
    starting = status(replace(DISPATCH, state=state))
    start_s = 2 * TURN_S
    assert not watch.look(starting, 0) and not watch.look(starting, 105 + start_s)
    assert not watch.look(status(DISPATCH), 105 + start_s), "it has shown that it works"
    assert watch.look(status(DISPATCH), 105 + start_s + 106)
    hangs = ProgressWatch(SETTINGS)
    assert not hangs.look(starting, 0) and hangs.look(starting, 106 + start_s)


@pytest.mark.promise("pipeline-14")
def test_a_server_that_does_not_answer_is_waited_for_before_the_driver_is_to_blame() -> None:
    """A statement of the archive ends after its own time; the query says then why it fails."""
    settings = DriverSettings(
        queries=("archive",),
        progress_timeout_s=100,
        bulk_trigger_ms=20_000,
        dispatch_rest_ms=5_000,
        archive_timeout_s=300,
        message_store="postgresql://u@localhost/x",
    )
    watch = ProgressWatch(settings)
    assert not watch.look(status(ARCHIVE), 0) and not watch.look(status(ARCHIVE), 419)
    assert not watch.look(status(replace(ARCHIVE, state="backoff")), 420)
    assert not watch.look(status(replace(ARCHIVE, state="backoff")), 10_000)
    in_a_file = ProgressWatch(replace(settings, message_store=""))
    assert not in_a_file.look(status(ARCHIVE), 0) and in_a_file.look(status(ARCHIVE), 121)
