"""Size and trimming of a log in Kafka whose numbers have gaps: a start after a crash leaves out a million."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import KafkaError, TopicPartition
from tests.support.stand_in_store import StandInParked

from embermq.adapters.kafka import message_log
from embermq.adapters.kafka.address import parse_address
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.message_log import DEFAULT_RECORD_BYTES, LEAP, KafkaMessageLog, find_end
from embermq.adapters.kafka.positions import LogPositions
from embermq.adapters.kafka.settings import KafkaSettings
from embermq.durability.log_apart.retention import NoEntries, PublishedReaders
from embermq.durability.retention import Retention, RetentionLimits
from embermq.formats.kafka_record import KafkaEncoder
from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.ports.log_state import KnownLog
from embermq.ports.pipeline_progress import PipelineProgress

PARTITIONS = 2
RECORD_BYTES = 1_000


class Found:
    """What a consumer gives: a record, or with number -1 the end of a partition."""

    def __init__(self, partition: int, offset: int, number: int) -> None:
        self._place = (partition, offset)
        self._outgoing = KafkaEncoder().encode(
            encode_record(Message("a", b"", 1, False, "c", 5, 1)), max(0, number)
        )
        self._is_end = number < 0

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self._is_end else None

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def topic(self) -> str:
        return "t"

    def key(self) -> bytes:
        return self._outgoing.key

    def value(self) -> bytes:
        return self._outgoing.value

    def headers(self) -> object:
        return self._outgoing.headers


class Topic:
    """Kafka's side: of each partition the numbers of its records, accepted at the second that is their number."""

    def __init__(self) -> None:
        self.numbers: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.lows = [0] * PARTITIONS
        self.asked = 0
        """Records that were looked at."""

    def left(self) -> list[int]:
        """All numbers that are still there."""
        return sorted(number for one, low in enumerate(self.lows) for number in self.numbers[one][low:])

    def delete_records(self, wanted: list[TopicPartition], **_: object) -> None:
        for each in wanted:
            assert self.lows[each.partition] < each.offset <= len(self.numbers[each.partition])
            self.lows[each.partition] = each.offset


class HandReader:
    """A `PartitionReader` of a Topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._next: dict[int, int] = {}

    def offsets(self, _partitions: int) -> tuple[dict[int, int], dict[int, int]]:
        topic = self._topic
        return dict(enumerate(topic.lows)), {one: len(found) for one, found in enumerate(topic.numbers)}

    def offsets_at(self, time_ms: int, _partitions: int) -> dict[int, int]:
        topic = self._topic
        young = {
            one: next(
                (
                    at
                    for at, number in enumerate(found)
                    if at >= topic.lows[one] and number * 1_000 >= time_ms
                ),
                -1,
            )
            for one, found in enumerate(topic.numbers)
        }
        return {one: offset for one, offset in young.items() if offset >= 0}

    def at(self, offsets: Mapping[int, int]) -> None:
        self._next = dict(offsets)

    def consume(self, _count: int) -> Iterator[Found]:
        for partition, offset in list(self._next.items()):
            numbers = self._topic.numbers[partition]
            self._next[partition] = offset + 1
            self._topic.asked += 1
            yield Found(partition, offset, numbers[offset] if offset < len(numbers) else -1)

    def close(self) -> None:
        pass


class House:
    """A log, and what its broker does and asks for."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        client = SimpleNamespace(delete_records=topic.delete_records)
        admin = SimpleNamespace(
            address=parse_address("kafka://127.0.0.1:9"),
            settings=KafkaSettings(partitions=PARTITIONS),
            client=client,
            ask=lambda _doing, request: request(),
        )
        self.admin = cast(WatchedAdmin, admin)
        self.start(known(0, 0))

    def start(self, before: KnownLog) -> None:
        self.found = find_end(self.admin, "t", before)
        self.positions: LogPositions = self.found.positions
        self.log = KafkaMessageLog(self.admin, "t", self.positions)

    def crash(self) -> None:
        """And start again: numbers are left out."""
        end = self.positions.end().number
        self.start(known(end, self.positions.last_number() + 1))
        assert self.positions.end().number == end + LEAP

    def restart(self) -> None:
        """In order."""
        end = self.positions.end().number
        self.start(known(end, self.positions.last_number() + 1, closed_end=end))
        assert self.positions.end().number == end

    def write(self, count: int) -> None:
        """Records that go to the partitions in turn, one a tick."""
        for _ in range(count):
            number = self.positions.end().number
            numbers = self.topic.numbers[number % PARTITIONS]
            numbers.append(number)
            self.positions.advance(number + 1, {number % PARTITIONS: len(numbers) - 1}, RECORD_BYTES)


def known(end: int, records_end: int, *, closed_end: int = -1) -> KnownLog:
    return KnownLog(is_any=True, identity="one", end=end, records_end=records_end, closed_end=closed_end)


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    topic = Topic()
    monkeypatch.setattr(message_log, "PartitionReader", lambda *_, **__: HandReader(topic))
    return House(topic)


def test_numbers_that_a_start_left_out_have_no_bytes(house: House) -> None:
    house.write(300)
    house.crash()
    statistics = house.log.statistics()
    assert (statistics.start_offset, statistics.end_offset) == (0, 300 + LEAP)
    assert statistics.body_bytes == 300 * DEFAULT_RECORD_BYTES
    house.write(100)
    assert house.log.statistics().body_bytes == 400 * RECORD_BYTES
    house.crash()
    assert house.log.statistics().body_bytes == 400 * DEFAULT_RECORD_BYTES, "two gaps"
    house.write(100)
    house.log.trim(300 + LEAP + 50)
    assert house.log.statistics().body_bytes == 150 * RECORD_BYTES


@pytest.mark.parametrize("leave", [House.crash, House.restart])
@pytest.mark.parametrize("below", [1, 77, 299])
def test_what_earlier_runs_wrote_is_trimmed_to_the_record(
    house: House, leave: Callable[[House], None], below: int
) -> None:
    house.write(300)
    leave(house)
    house.log.trim(below)
    assert house.topic.left() == list(range(below, 300))
    assert house.log.statistics().start_offset == below


@pytest.mark.parametrize("below", [300, 301, 300 + LEAP // 2, 299 + LEAP, 300 + LEAP, 400 + LEAP])
def test_the_last_record_stays_whatever_number_comes_next(
    house: House, below: int, caplog: pytest.LogCaptureFixture
) -> None:
    house.write(300)
    house.crash()
    house.log.trim(below)
    assert house.topic.left() == [299]
    assert house.log.statistics().start_offset == 299
    house.crash()
    assert caplog.text == ""
    house.write(1)
    house.log.trim(below + LEAP)
    assert house.topic.left() == [300 + 2 * LEAP]


@pytest.mark.parametrize("below", [300, 301, 299 + LEAP, 300 + LEAP])
def test_trimming_below_numbers_that_were_left_out_ends_where_this_run_began(
    house: House, below: int
) -> None:
    house.write(300)
    house.crash()
    house.write(20)
    house.log.trim(below)
    assert house.topic.left() == list(range(300 + LEAP, 320 + LEAP))


@pytest.mark.parametrize("kept", [310, 299 + LEAP, *range(300 + LEAP, 320 + LEAP)])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_dead_broker_sent_in_between_deletes_no_record_that_is_needed(
    house: House, monkeypatch: pytest.MonkeyPatch, kept: int, restarts: bool
) -> None:
    monkeypatch.setattr(message_log, "LATE_RECORDS", 9)
    house.write(300)
    house.crash()
    house.write(16)
    for numbers in house.topic.numbers:
        numbers.extend(range(301, 309))
    for partition in range(PARTITIONS):  # as the appender hears it: its next record lies behind them
        house.positions._ends[partition] += 8
    house.write(4)
    if restarts:
        house.restart()
    house.log.trim(kept)
    left = [number for number in house.topic.left() if number >= 300 + LEAP]
    assert left == list(range(max(kept, 300 + LEAP), 320 + LEAP))


class Said(PipelineProgress):
    """One query."""

    failing = ""
    found: Mapping[int, int] = {}

    def positions(self, query: str) -> Mapping[int, int]:
        return self.found


def retention(house: House, said: Said, **limits: object) -> Retention:
    chosen = {
        "age_ms": 3_600,
        "kept_bytes": 10**9,
        "pin_bytes": 10**9,
        "budget_bytes": 10**9,
        "policy": "refuse",
    }
    readers = PublishedReaders(said, house.log, ("dispatch",))
    made = RetentionLimits(**(chosen | limits))  # type: ignore[arg-type]
    return Retention(house.log, readers, NoEntries(), StandInParked(), made)


@pytest.mark.parametrize("leave", [House.crash, House.restart])
def test_a_log_that_gets_nothing_more_is_trimmed_after_a_start(
    house: House, leave: Callable[[House], None]
) -> None:
    house.write(300)
    leave(house)
    said, end = Said(), house.positions.end().number
    said.found = {0: 100, 1: 150}
    rounds = retention(house, said)
    rounds.run(end, ["dispatch"], 10**12)
    assert house.topic.left() == list(range(200, 300)), "somebody still needs these"
    rounds.run(end, ["dispatch"], 250_000)
    assert house.topic.left() == list(range(200, 300))
    said.found = {0: 150, 1: 150}
    rounds.run(end, ["dispatch"], 283_600)
    assert house.topic.left() == list(range(280, 300)), "the others are not old enough"
    state = rounds.run(end, ["dispatch"], 10**12)
    assert [pin.next_offset for pin in state.pins] == [end, end]
    asked = house.topic.asked
    state = rounds.run(end, ["dispatch"], 10**12)
    assert (house.topic.left(), state.start_offset) == ([299], 299)
    assert house.topic.asked - asked <= 4, "nothing is looked for any more"


def test_no_publish_is_refused_for_numbers_that_were_left_out(house: House) -> None:
    house.write(300)
    house.crash()
    state = retention(house, Said(), pin_bytes=10**8).run(0, ["dispatch"], 10**12)
    assert (state.over_limit, state.refuse_all) == (False, False)


@pytest.mark.parametrize("written", [50, 150, 400])
def test_so_many_bytes_are_kept_on_both_sides_of_a_gap(house: House, written: int) -> None:
    house.write(300)
    house.crash()
    house.write(written)
    said = Said()
    said.found = {one: len(numbers) for one, numbers in enumerate(house.topic.numbers)}
    rounds = retention(house, said, age_ms=10**15, kept_bytes=200 * RECORD_BYTES)
    for _ in range(3):
        rounds.run(house.positions.end().number, ["dispatch"], 10**12)
    assert len(house.topic.left()) == pytest.approx(200, abs=3)
    assert house.log.offset_keeping(10**9) == house.topic.left()[0]
