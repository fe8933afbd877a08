"""Who is due, without a Spark: one that catches up keeps nobody else from its turn."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from tests.pipeline.feeding import AT_ONCE
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.support.rule_receiver import receiving

from embermq.pipeline.jobs.bulk import Bulk, Feed, SharedRows
from embermq.pipeline.jobs.bulk_log import BulkLog, EmbeddedLog
from embermq.pipeline.jobs.bulk_parts import PARTS
from embermq.pipeline.jobs.query_job import JobSetup
from embermq.pipeline.log_look import Bounds, Positions
from embermq.pipeline.places import Places
from embermq.pipeline.rules.live import RuleKind
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.rules.webhook import WebhookTarget, connection_to
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.session import POOL
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.turns import Turns


def free_feed(name: str, positions: dict[int, int]) -> Mock:
    feed = Mock(has_begun=True, since_s=float("inf"), batch=None)
    feed.name = name
    feed.look.return_value = True
    feed.resume.return_value = positions
    return feed


def given_to(feed: Mock) -> list[SharedRows | None]:
    return [call.args[2] for call in feed.take.call_args_list]


def bulk_on(log: BulkLog, places: Places, settings: DriverSettings = AT_ONCE) -> Bulk:
    return Bulk(PARTS, JobSetup(settings, places), log, Mock(), threading.Event(), turns=Turns([POOL]))


@pytest.mark.promise("pipeline-14")
def test_one_that_catches_up_does_not_take_the_turn_of_the_others(log: LogWriter, places: Places) -> None:
    for _ in range(4):
        log.append([record(accepted_ms=NOON_MS)] * 5)
    settings = replace(AT_ONCE, bulk_trigger_ms=3_600_000)
    loop = bulk_on(EmbeddedLog(settings, places, Mock()), places, settings)
    behind, there = free_feed("archive", {PARTITION: 0}), free_feed("lake", {PARTITION: 18})
    loop.feeds = [behind, there]
    loop._look()
    (given,) = given_to(behind)
    assert given is not None and given.end == {PARTITION: 7}
    (given,) = given_to(there)
    assert given is not None and given.end == {PARTITION: 20}


@pytest.mark.promise("pipeline-14")
@pytest.mark.parametrize(("waiting", "times"), [(999, 0), (1_000, 1)])
def test_much_that_waits_beside_the_log_waits_for_no_turn(
    log: LogWriter, places: Places, waiting: int, times: int
) -> None:
    log.append([record(accepted_ms=NOON_MS)] * 5)
    loop = bulk_on(EmbeddedLog(AT_ONCE, places, Mock()), places)
    loop._due_s = float("inf")
    traffic = free_feed("traffic", {PARTITION: 5})
    traffic.has_more.side_effect = lambda least: waiting >= least
    loop.feeds = [traffic]
    loop._look()
    assert given_to(traffic) == [None] * times


@pytest.mark.promise("pipeline-14")
def test_a_server_that_does_not_answer_while_tidied_up_holds_nobody_up(places: Places) -> None:
    answers = threading.Event()
    log = EmbeddedLog(AT_ONCE, places, Mock())
    feed = Feed(PARTS[0], JobSetup(AT_ONCE, places), log)
    log.look()
    feed.part, feed.positions = Mock(), {PARTITION: 7}
    feed.part.keep_up.side_effect = lambda _: answers.wait(60)
    with ThreadPoolExecutor(2) as threads:
        assert feed.resume(threads, Mock()) == {PARTITION: 7}
        assert feed.resume(threads, Mock()) == {PARTITION: 7}
        answers.set()
    feed.part.keep_up.side_effect = OSError("refused")
    with ThreadPoolExecutor(2) as threads:
        assert feed.resume(threads, Mock()) == {PARTITION: 7}
    with ThreadPoolExecutor(2) as threads:
        assert feed.resume(threads, Mock()) is None, "its failure is its own"


def test_what_a_rule_has_connected_to_is_left_when_the_loop_ends(places: Places) -> None:
    places.work.mkdir(parents=True)
    with receiving() as receiver:
        rule = RuleSettings(sql="SELECT", to="webhook", url=receiver.url)
        kind, log = RuleKind("hook", rule, Mock(), Mock()), Mock(bounds={})
        loop = Bulk(
            [kind],
            JobSetup(AT_ONCE, places),
            log,
            Mock(),
            threading.Event(),
            turns=Turns(["rules"]),
            turn="rules",
        )
        (feed,) = loop.feeds
        feed.part = part = kind(AT_ONCE, places, log)
        assert isinstance(part._target, WebhookTarget)
        part._target._connection = connection = connection_to(rule)
        connection.connect()
        loop._stopping.set()
        loop.start()
        loop.join()
        assert connection.sock is None


class Partitions(BulkLog):
    """Three of them, of which one batch takes four records each."""

    is_partitioned = True

    def look(self) -> None:
        self.bounds = {0: Bounds(0, 10), 1: Bounds(0, 10), 2: Bounds(0, 0)}

    def bounded(self, starts: Positions, ends: Positions) -> dict[int, int]:
        return {number: min(ends[number], at + 4) for number, at in starts.items()}

    identity = starts = since = read = probe = receipt_bounds = read_receipts = measure = publish = Mock()


@pytest.mark.promise("pipeline-14")
def test_those_whose_positions_cross_read_where_they_are_behind_and_meet(places: Places) -> None:
    """Neither begins anything new before."""
    loop = bulk_on(Partitions(), places)
    archive, lake = free_feed("archive", {0: 7, 1: 0, 2: 0}), free_feed("lake", {0: 1, 1: 6, 2: 0})
    at_work = free_feed("traffic", {})
    at_work.look.return_value, at_work.batch = False, SharedRows(loop._log, {}, {0: 4, 1: 6, 2: 0}, 1)
    loop.feeds = [archive, lake, at_work]
    seen = []
    for _ in range(3):
        loop._look()
        for feed in (archive, lake):
            (given,) = given_to(feed)
            assert given is not None and given.begin == feed.resume()
            feed.resume.return_value = given.end
            feed.take.reset_mock()
        seen.append((archive.resume(), lake.resume()))
    assert seen == [
        ({0: 7, 1: 4, 2: 0}, {0: 4, 1: 6, 2: 0}),
        ({0: 7, 1: 6, 2: 0}, {0: 7, 1: 6, 2: 0}),
        ({0: 10, 1: 10, 2: 0}, {0: 10, 1: 10, 2: 0}),
    ]
