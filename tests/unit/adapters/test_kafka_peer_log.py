"""The log of another slot is read once, in order and to its end, whatever is in it and whenever Kafka answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from queue import Empty, SimpleQueue
from threading import Event

import pytest
from confluent_kafka import KafkaError

from embermq.adapters.kafka import peer_log
from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.peer_log import KafkaPeerLog
from embermq.formats.kafka_record import KafkaEncoder
from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.model.position import position_of
from embermq.ports.errors import StoreUnavailable
from embermq.ports.peer_logs import PeerRecords

WAIT_S = 60.0
SILENCE_S = 0.02
OUTGOING = KafkaEncoder().encode(encode_record(Message("a", b"", 1, False, "c", 5, 1)))


class Found:
    """A record, or the end of a partition."""

    def __init__(self, partition: int, offset: int, *, is_end: bool = False) -> None:
        self._place = (partition, offset)
        self._is_end = is_end

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self._is_end else None

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def key(self) -> bytes:
        return OUTGOING.key

    def value(self) -> bytes:
        return OUTGOING.value

    def headers(self) -> object:
        return OUTGOING.headers


class Topic:
    """By partition what stands at its offsets: `r` a record, `e` the end of a transaction, `-` what was deleted."""

    def __init__(self, *partitions: str) -> None:
        self.partitions = list(partitions)
        self.is_strange = False
        """The next question for its end fails as nobody thought of."""
        self.away = 0
        """So many questions after a silence are not answered."""
        self.silent = Event()
        """Nothing was there to be read for long."""


class HandReader:
    """As a consumer, it tells each end once, and begins at what is there."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._at = self._told = (0, -1)

    def at(self, offsets: Mapping[int, int]) -> None:
        (self._at,) = offsets.items()

    def offsets(self, partitions: int) -> tuple[dict[int, int], dict[int, int]]:
        if self._topic.is_strange:
            self._topic.is_strange = False
            raise RuntimeError("who would have thought")
        found = self._topic.partitions[:partitions]
        lows = {one: len(text) - len(text.lstrip("-")) for one, text in enumerate(found)}
        return lows, {one: len(text) for one, text in enumerate(found)}

    def consume(self, count: int) -> Iterator[Found]:
        partition, offset = self._at
        text = self._topic.partitions[partition]
        some = False
        for here in range(offset, len(text)):
            self._at = partition, here + 1
            if text[here] == "r":
                some = True
                yield Found(partition, here)
        if self._told != self._at:
            self._told = self._at
            yield Found(*self._at, is_end=True)
        elif not some:
            self._topic.silent.wait(SILENCE_S)
            self._topic.silent.set()
            raise StoreUnavailable("nothing to be read")

    def close(self) -> None:
        pass


class Reading:
    """The reader of a topic, and the positions that it has taken."""

    def __init__(self, topic: Topic, monkeypatch: pytest.MonkeyPatch, at: int = 0) -> None:
        self.topic = topic
        self.taken: SimpleQueue[int] = SimpleQueue()
        monkeypatch.setattr(peer_log, "LOOK_S", 0.001)
        monkeypatch.setattr(peer_log, "PartitionReader", lambda *_, **__: HandReader(topic))
        self.log = KafkaPeerLog(parse_address("kafka://127.0.0.1:1"), KafkaSettings(), "slot-0")
        monkeypatch.setattr(self.log, "_partitions", self._partitions)
        self.log.start(at, self._take)

    def _partitions(self) -> int:
        if self.topic.silent.is_set() and self.topic.away:
            self.topic.away -= 1
            raise StoreUnavailable("Kafka does not answer")
        return len(self.topic.partitions)

    def _take(self, found: PeerRecords, done: Callable[[], None]) -> None:
        for position, _ in found.records:
            self.taken.put(position)
        done()

    def takes(self, *places: tuple[int, int]) -> None:
        """These are the next ones."""
        for place in places:
            assert self.taken.get(timeout=WAIT_S) == position_of(*place)

    def is_caught_up(self) -> bool:
        there = Event()
        self.log.catch_up(there.set)
        return there.wait(WAIT_S)

    def has_been_silent(self) -> None:
        self.topic.silent.clear()
        assert self.topic.silent.wait(WAIT_S)


Begin = Callable[..., Reading]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    begun: list[Reading] = []

    def reading(*partitions: str, at: int = 0) -> Reading:
        begun.append(Reading(Topic(*partitions), monkeypatch, at))
        return begun[-1]

    yield reading
    for each in begun:
        each.log.close()


def test_a_quiet_log_that_ends_with_a_transaction_has_been_read_for_good(begin: Begin) -> None:
    reading = begin("rre")
    reading.takes((0, 0), (0, 1))
    for _ in range(2):
        reading.has_been_silent()
        assert reading.is_caught_up()


def test_the_end_of_a_log_is_asked_for_again_whatever_happened(begin: Begin) -> None:
    reading = begin("rre")
    reading.takes((0, 0), (0, 1))
    reading.topic.is_strange = True
    assert reading.is_caught_up()
    assert not reading.topic.is_strange


def test_nothing_is_taken_again_when_kafka_was_away(begin: Begin) -> None:
    reading = begin("rre")
    reading.takes((0, 0), (0, 1))
    reading.topic.away = 3
    reading.has_been_silent()
    reading.topic.partitions[0] += "r"
    reading.takes((0, 3))
    with pytest.raises(Empty):
        reading.taken.get_nowait()


def test_a_log_goes_on_in_the_next_partition_behind_the_ends_of_transactions(begin: Begin) -> None:
    reading = begin("reee", "rr")
    reading.takes((0, 0), (1, 0), (1, 1))
    assert reading.is_caught_up()


def test_nobody_waits_for_a_partition_that_has_nothing_yet(begin: Begin) -> None:
    reading = begin("re", "")
    reading.takes((0, 0))
    assert reading.is_caught_up()
    reading.topic.partitions[1] = "r"
    reading.takes((1, 0))


def test_what_was_deleted_before_it_was_read_is_said(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "embermq"):
        reading = begin("-----r", at=2)
        reading.takes((0, 5))
    assert "offsets 2 to 4 were deleted" in caplog.text
