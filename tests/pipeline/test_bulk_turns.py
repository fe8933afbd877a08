"""Who is due, without a Spark: one that catches up keeps nobody else from its turn."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from tests.pipeline.feeding import AT_ONCE
from tests.pipeline.log_writer import NOON_MS, LogWriter, record

from embermq.pipeline.jobs.bulk import POOL, Bulk, Feed
from embermq.pipeline.jobs.bulk_parts import PARTS
from embermq.pipeline.jobs.query_job import JobSetup
from embermq.pipeline.places import Places
from embermq.pipeline.sources.log_file import LogFile
from embermq.pipeline.turns import Turns


def free_feed(name: str, position: int) -> Mock:
    feed = Mock(has_begun=True, since_s=float("inf"), batch=None)
    feed.name = name
    feed.look.return_value = True
    feed.next_position.return_value = position
    return feed


@pytest.mark.promise("pipeline-14")
def test_one_that_catches_up_does_not_take_the_turn_of_the_others(log: LogWriter, places: Places) -> None:
    for _ in range(4):
        log.append([record(accepted_ms=NOON_MS)] * 5)
    settings = replace(AT_ONCE, bulk_trigger_ms=3_600_000)
    loop = Bulk(PARTS, JobSetup(settings, places), Mock(), threading.Event(), Turns([POOL]))
    behind, there = free_feed("archive", 0), free_feed("lake", 18)
    loop.feeds = [behind, there]
    with closing(LogFile(places.log)) as found:
        loop._look(found)
    (given,) = [call.args[2] for call in behind.take.call_args_list]
    assert given.end == 7
    (given,) = [call.args[2] for call in there.take.call_args_list]
    assert given.end == 20


@pytest.mark.promise("pipeline-14")
@pytest.mark.parametrize(("waiting", "times"), [(999, 0), (1_000, 1)])
def test_much_that_waits_beside_the_log_waits_for_no_turn(
    log: LogWriter, places: Places, waiting: int, times: int
) -> None:
    log.append([record(accepted_ms=NOON_MS)] * 5)
    loop = Bulk(PARTS, JobSetup(AT_ONCE, places), Mock(), threading.Event(), Turns([POOL]))
    loop._due_s = float("inf")
    traffic = free_feed("traffic", 5)
    traffic.has_more.side_effect = lambda least: waiting >= least
    loop.feeds = [traffic]
    with closing(LogFile(places.log)) as found:
        loop._look(found)
    assert [call.args[2] for call in traffic.take.call_args_list] == [None] * times


@pytest.mark.promise("pipeline-14")
def test_a_server_that_does_not_answer_while_tidied_up_holds_nobody_up(places: Places) -> None:
    answers = threading.Event()
    feed = Feed(PARTS[0], JobSetup(AT_ONCE, places))
    feed.part = Mock()
    feed.part.file.position.return_value = 7
    feed.part.keep_up.side_effect = lambda _: answers.wait(60)
    with ThreadPoolExecutor(2) as threads:
        assert feed.next_position(threads, Mock(), 20) == 7
        assert feed.next_position(threads, Mock(), 20) == 7
        answers.set()
    feed.part.keep_up.side_effect = OSError("refused")
    with ThreadPoolExecutor(2) as threads:
        assert feed.next_position(threads, Mock(), 20) == 7
    with ThreadPoolExecutor(2) as threads:
        assert feed.next_position(threads, Mock(), 20) is None, "its failure is its own"
