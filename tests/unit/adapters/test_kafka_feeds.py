"""The reader of application logs, on the Kafka that the driver plays by itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from queue import Empty, SimpleQueue
from threading import Event

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from tests.support.waiting import wait_until

from embermq.adapters.kafka import application_feeds
from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.application_feeds import (
    ENTRY_BYTES,
    LEAST_UNREAD_BYTES,
    KafkaApplicationFeeds,
    ReadRights,
    feed_entry,
)
from embermq.adapters.kafka.client import Failures
from embermq.ports.application_feed import ApplicationFeed, FeedEntry, FeedTaker

LOG = "embermq.msg.app.a"
PATIENCE_S = 20.0


class Taker(FeedTaker):
    """Who is read for; releases what it gets when it is told to."""

    def __init__(self) -> None:
        self.feed: ApplicationFeed
        self.entries: list[FeedEntry] = []
        self.releases = False

    def take(self, partition: int, entries: list[FeedEntry]) -> None:
        self.entries += entries
        if self.releases:
            self.feed.release(sum(entry.size for entry in entries))

    def gone(self, reason: str) -> None:
        raise AssertionError(reason)


class Server:
    """One that lives in this process, its producer, and what is posted to the broker's thread."""

    def __init__(self) -> None:
        quiet = logging.getLogger("embermq.kafka.driver.played")
        quiet.setLevel(logging.CRITICAL)
        self.producer = Producer({"test.mock.num.brokers": 1, "logger": quiet})
        (server,) = self.producer.list_topics(timeout=PATIENCE_S).brokers.values()
        self.posted: SimpleQueue[object] = SimpleQueue()
        self.failures = Failures()
        self.feeds = KafkaApplicationFeeds(
            parse_address(f"kafka://{server.host}:{server.port}"),
            KafkaSettings(),
            self.posted.put,
            unread_bytes_max=20_000,
            failures=self.failures,
        )

    def produce(self, count: int) -> None:
        for number in range(count):
            self.producer.produce(LOG, b"%d" % number, b"t", partition=0)
        assert self.producer.flush(PATIENCE_S) == 0

    def run(self) -> bool:
        """What has been posted next; False when nothing comes."""
        try:
            call = self.posted.get(timeout=PATIENCE_S)
        except Empty:
            return False
        assert callable(call)
        call()
        return True


class SlowToTell:
    """The driver, on a Kafka that takes long to say anything about topics."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._never = Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._consumer, name)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> object:
        self._never.wait(min(timeout, 0.3))
        return self._consumer.list_topics(topic, PATIENCE_S)


class Trouble:
    """What the driver hands out instead of a record."""

    def __init__(self, code: int) -> None:
        self._error = KafkaError(code)

    def topic(self) -> str:
        return LOG

    def partition(self) -> int:
        return 0

    def error(self) -> KafkaError:
        return self._error


class Troubled:
    """The driver, which has troubles to tell; `told` when all of them are."""

    def __init__(self, consumer: Consumer, *codes: int) -> None:
        self._consumer = consumer
        self._troubles = [Trouble(code) for code in codes]
        self.told = Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._consumer, name)

    def consume(self, count: int, timeout: float) -> list[object]:
        if self._troubles and timeout:
            return [self._troubles.pop(0)]
        if not self._troubles:
            self.told.set()
        return list(self._consumer.consume(count, timeout))


class Rights(ReadRights):
    """What may be read."""

    def __init__(self) -> None:
        self.logs: set[str] = set()

    def given(self, logs: Collection[str]) -> set[str]:
        return self.logs & set(logs)


@pytest.fixture
def server() -> Iterator[Server]:
    played = Server()
    yield played
    played.feeds.close()


def test_a_client_that_took_nothing_and_returns_is_read_for(server: Server) -> None:
    server.produce(1_500)
    slow = Taker()
    slow.feed = server.feeds.open(LOG, {0: 0}, slow)
    while sum(entry.size for entry in slow.entries) < 20_000:
        assert server.run()
    slow.feed.close()
    again = Taker()
    again.releases = True
    again.feed = server.feeds.open(LOG, {0: 0}, again)
    while len(again.entries) < 1_500:
        assert server.run(), f"nothing comes after {len(again.entries)} records"
    assert [entry.offset for entry in again.entries] == list(range(1_500))


def test_what_nobody_foresaw_is_told_and_counted_and_records_come_once(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread breaks down over a record, with others of the same batch in its hands."""
    breaks_at = {40, 41}

    def breaking(message: Message, offset: int) -> FeedEntry:
        if offset in breaks_at:
            breaks_at.remove(offset)
            raise KeyError("nobody foresaw this")
        return feed_entry(message, offset)

    monkeypatch.setattr(application_feeds, "feed_entry", breaking)
    monkeypatch.setattr(application_feeds, "ASK_S", 0.01)
    server.produce(100)
    taker = Taker()
    taker.releases = True
    taker.feed = server.feeds.open(LOG, {0: 0}, taker)
    while len(taker.entries) < 100:
        assert server.run(), f"nothing comes after {len(taker.entries)} records"
    assert [entry.offset for entry in taker.entries] == list(range(100))
    assert (server.failures.count, breaks_at) == (2, set())
    assert "nobody foresaw this" in caplog.text


def troubled(server: Server, *codes: int) -> Troubled:
    """A client in whose log nothing comes, and what the driver tells of it."""
    server.produce(1)
    taker = Taker()
    taker.releases = True
    taker.feed = server.feeds.open(LOG, {0: 0}, taker)
    while not taker.entries:
        assert server.run()
    found = Troubled(server.feeds._consumer, *codes)
    server.feeds._consumer = found  # type: ignore[assignment]
    assert found.told.wait(PATIENCE_S)
    return found


def test_an_error_of_a_moment_does_not_stay_with_a_client_that_gets_nothing(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    troubled(server, *[KafkaError.UNSUPPORTED_VERSION] * 3)
    wait_until(lambda: server.feeds.failing == "", PATIENCE_S, "nothing is wrong")
    assert caplog.text.count("its client gets nothing") == 1


def test_a_right_that_is_given_again_is_seen_although_nothing_comes(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.feeds._rights = rights = Rights()
    troubled(server, *[KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2)
    assert "TOPIC_AUTHORIZATION_FAILED" in server.feeds.failing
    rights.logs = {LOG}
    wait_until(lambda: server.feeds.failing == "", PATIENCE_S, "it may be read")
    assert caplog.text.count("its client gets nothing") == 1


def test_who_is_there_is_read_for_while_many_come(server: Server) -> None:
    taker = Taker()
    taker.releases = True
    taker.feed = server.feeds.open(LOG, {0: 0}, taker)
    server.produce(1)
    while not taker.entries:
        assert server.run()
    server.feeds._consumer = SlowToTell(server.feeds._consumer)  # type: ignore[assignment]
    for number in range(300):
        other = Taker()
        other.feed = server.feeds.open(f"embermq.msg.app.other{number}", {0: 0}, other)
    server.produce(1)
    began_s = time.monotonic()
    while len(taker.entries) < 2:
        assert server.run()
    assert time.monotonic() - began_s < PATIENCE_S


def test_all_clients_together_have_a_limit_and_one_that_goes_on_is_read_for(server: Server) -> None:
    """Past it each of them has a part of its own limit."""
    server.feeds._unread_bytes_max, server.feeds._unread_total_bytes_max = 1_000_000, 300_000
    logs = [f"{LOG}{number}" for number in range(6)]
    for log in logs:
        for number in range(2_000):
            server.producer.produce(log, b"%d" % number, b"t", partition=0)
    assert server.producer.flush(PATIENCE_S) == 0
    stalled = [Taker() for _ in logs[1:]]
    for taker, log in zip(stalled, logs[1:], strict=True):
        taker.feed = server.feeds.open(log, {0: 0}, taker)
    while not all(taker.entries for taker in stalled):
        assert server.run()
    lively = Taker()
    lively.releases = True
    lively.feed = server.feeds.open(logs[0], {0: 0}, lively)
    while len(lively.entries) < 2_000:
        assert server.run()
    held = sum(entry.size for taker in stalled for entry in taker.entries)
    assert held < 300_000 + 5 * (LEAST_UNREAD_BYTES + 500 * (ENTRY_BYTES + 10)), held
    for taker in stalled:
        taker.releases = True
        taker.feed.release(sum(entry.size for entry in taker.entries))
    while any(len(taker.entries) < 2_000 for taker in stalled):
        assert server.run()
