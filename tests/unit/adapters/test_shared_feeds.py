"""Reading shared logs when Kafka does not answer a question: what the driver has handed out is not lost by it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from tests.support.waiting import wait_until

from embermq.adapters.kafka import shared_feeds
from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.application_feeds import ReadRights
from embermq.adapters.kafka.shared_feeds import KafkaSharedFeeds
from embermq.model.application_positions import StoredPositions
from embermq.ports.application_feed import FeedEntry, SharedTaker

pytestmark = pytest.mark.promise("application-11")


class HandMessage:
    """What the driver hands out: a record, or an error of a partition."""

    def __init__(self, partition: int, offset: int, error: int | None = None) -> None:
        self._partition = partition
        self._offset = offset
        self._error = KafkaError(error) if error is not None else None

    def error(self) -> KafkaError | None:
        return self._error

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"t"

    def value(self) -> bytes:
        return b"x"

    def headers(self) -> None:
        return None


class HandConsumer:
    """Hands out `batches`, after it has been given both partitions. `refusals` questions are not answered."""

    def __init__(self) -> None:
        self.batches: deque[list[HandMessage]] = deque()
        self.refusals = 0
        self.breaks = self.lacks_right = False
        self.assigned: list[tuple[int, int]] = []
        self._on_assign: Callable[..., None] | None = None

    def subscribe(self, _topics: list[str], on_assign: Callable[..., None], **_others: object) -> None:
        self._on_assign = on_assign

    def consume(self, _count: int, _timeout: float) -> list[HandMessage]:
        on_assign, self._on_assign = self._on_assign, None
        if on_assign is not None:
            on_assign(self, [TopicPartition("log", partition) for partition in (0, 1)])
        if self.breaks:
            raise KeyError("nobody foresaw this")
        return self.batches.popleft() if self.batches else []

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        if places:
            self._ask()
        self.assigned += [(place.partition, place.offset) for place in places]

    def incremental_unassign(self, _places: list[TopicPartition]) -> None:
        return

    def resume(self, _places: list[TopicPartition]) -> None:
        return

    def get_watermark_offsets(self, _place: TopicPartition, _timeout: float) -> tuple[int, int]:
        self._ask()
        return 5, 9

    def list_topics(self, _topic: str, _timeout: float) -> Any:
        self._ask()
        return SimpleNamespace(topics={"log": SimpleNamespace(error=None)})

    def committed(self, places: list[TopicPartition], _timeout: float) -> list[TopicPartition]:
        if self.lacks_right:
            raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
        return places

    def close(self) -> None:
        return

    def _ask(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


class Rights(ReadRights):
    """What may be read."""

    def __init__(self) -> None:
        self.logs: set[str] = set()
        self.asked = 0

    def given(self, logs: Collection[str]) -> set[str]:
        self.asked += 1
        return self.logs & set(logs)


class Taker(SharedTaker):
    """Remembers what came."""

    def __init__(self) -> None:
        self.came: list[tuple[int, int]] = []
        self.has: list[int] = []
        self.reason = ""

    def assigned(self, partition: int, stored: StoredPositions) -> None:
        self.has.append(partition)

    def revoked(self, partition: int) -> None:
        self.has.remove(partition)

    def take(self, partition: int, entries: list[FeedEntry]) -> None:
        self.came += [(partition, entry.offset) for entry in entries]

    def gone(self, reason: str) -> None:
        self.reason = reason


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> HandConsumer:
    consumer = HandConsumer()
    monkeypatch.setattr(shared_feeds, "Consumer", lambda _options: consumer)
    monkeypatch.setattr(shared_feeds, "LOOK_S", 0.0)
    monkeypatch.setattr(shared_feeds, "RETRY_S", 0.0)
    monkeypatch.setattr(shared_feeds, "ASK_AGAIN_S", 0.0)
    return consumer


@pytest.fixture
def feeds(consumer: HandConsumer) -> Iterator[KafkaSharedFeeds]:
    feeds = KafkaSharedFeeds(parse_address("kafka://nowhere"), KafkaSettings(), lambda call: call())
    yield feeds
    feeds.close()


@pytest.fixture
def taker(consumer: HandConsumer, feeds: KafkaSharedFeeds) -> Taker:
    """A member with both partitions; the first time that Kafka was asked for them it did not answer."""
    consumer.refusals = 1
    taker = Taker()
    feeds.join("group", "log", taker, lambda _partition: StoredPositions(0, 0))
    wait_until(lambda: len(taker.has) == 2, what="it has both partitions in the end")
    return taker


def test_records_come_beside_those_of_a_partition_that_has_to_be_found_again(
    consumer: HandConsumer, taker: Taker
) -> None:
    consumer.refusals = 3
    consumer.batches.append([HandMessage(0, 0), HandMessage(1, 0, KafkaError._AUTO_OFFSET_RESET)])
    wait_until(lambda: (1, 5) in consumer.assigned, what="it is read from what is left")
    assert taker.came == [(0, 0)]


def test_records_come_although_it_is_not_known_whether_the_log_is_there(
    consumer: HandConsumer, taker: Taker
) -> None:
    consumer.refusals = 3
    consumer.batches += [
        [HandMessage(0, 0, KafkaError.UNKNOWN_TOPIC_OR_PART)],
        [HandMessage(0, 0)],
        [HandMessage(0, 1)],
    ]
    wait_until(lambda: len(taker.came) == 2 and not consumer.refusals, what="all records come")
    assert taker.came == [(0, 0), (0, 1)]


def test_a_member_over_whom_the_thread_breaks_down_leaves_and_is_told(
    consumer: HandConsumer, feeds: KafkaSharedFeeds, taker: Taker
) -> None:
    consumer.breaks = True
    wait_until(lambda: taker.reason, what="it is told")
    assert "nobody foresaw this" in taker.reason
    consumer.breaks = False
    consumer.batches.append([HandMessage(0, 0)])
    other = Taker()
    feeds.join("group", "log", other, lambda _partition: StoredPositions(0, 0))
    wait_until(lambda: not consumer.batches, what="the next one is served")


def test_an_error_of_a_moment_does_not_stay_with_a_member_that_gets_nothing(
    consumer: HandConsumer, feeds: KafkaSharedFeeds, taker: Taker, caplog: pytest.LogCaptureFixture
) -> None:
    for code in [KafkaError.UNSUPPORTED_VERSION] * 3:
        consumer.batches.append([HandMessage(0, 0, code)])
    wait_until(lambda: "UNSUPPORTED_VERSION" in caplog.text, what="it is told")
    wait_until(lambda: feeds.failing == "" and not consumer.batches, what="nothing is wrong")
    assert caplog.text.count("a member of it gets nothing") == 1


def test_kafka_that_has_come_back_is_seen_although_nothing_comes(
    consumer: HandConsumer, feeds: KafkaSharedFeeds, taker: Taker
) -> None:
    consumer.refusals = 3
    feeds._on_error(KafkaError(KafkaError._TRANSPORT))
    wait_until(lambda: feeds.failing == "", what="nothing is wrong")
    assert consumer.refusals == 0


def test_the_right_to_a_log_that_is_given_again_is_seen_although_nothing_comes(
    consumer: HandConsumer, feeds: KafkaSharedFeeds, taker: Taker, caplog: pytest.LogCaptureFixture
) -> None:
    feeds._rights = rights = Rights()
    for code in [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2:
        consumer.batches.append([HandMessage(0, 0, code)])
    wait_until(lambda: "TOPIC_AUTHORIZATION_FAILED" in feeds.failing and rights.asked > 1, what="it is told")
    rights.logs = {"log"}
    wait_until(lambda: feeds.failing == "", what="it may be read")
    assert caplog.text.count("a member of it gets nothing") == 1


def test_the_right_to_a_group_that_is_given_again_is_seen_although_nothing_comes(
    consumer: HandConsumer, feeds: KafkaSharedFeeds, taker: Taker
) -> None:
    consumer.lacks_right = True
    consumer.batches.append([HandMessage(0, 0, KafkaError.GROUP_AUTHORIZATION_FAILED)])
    wait_until(lambda: "GROUP_AUTHORIZATION_FAILED" in feeds.failing, what="it is told")
    consumer.lacks_right = False
    wait_until(lambda: feeds.failing == "", what="it may be used")
