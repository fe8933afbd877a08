"""Size, trimming and reading of a log in Kafka whose partitions follow one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import KafkaError, TopicPartition
from tests.support.stand_in_store import StandInParked

from embermq.adapters.kafka import log_topic, message_log
from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.log_topic import LogTopic
from embermq.adapters.kafka.message_log import DEFAULT_RECORD_BYTES, KafkaMessageLog
from embermq.adapters.kafka.positions import LogPositions
from embermq.durability.retention import NoEntries, PublishedReaders, Retention, RetentionLimits
from embermq.formats.kafka_record import KafkaEncoder
from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.model.position import position_of
from embermq.ports.pipeline_progress import PipelineProgress

RECORD_BYTES = 1_000
OUTGOING = KafkaEncoder().encode(encode_record(Message("a", b"", 1, False, "c", 5, 1)))


class Found:
    """What a consumer gives: a record, something else, or the end of a partition."""

    def __init__(self, partition: int, offset: int, what: str) -> None:
        self._place = (partition, offset)
        self._what = what

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self._what == "end" else None

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def key(self) -> bytes:
        return OUTGOING.key

    def value(self) -> bytes:
        return OUTGOING.value

    def headers(self) -> object:
        return OUTGOING.headers if self._what == "record" else []


class Topic:
    """Kafka's side: of each partition the first offset and the end. The record at an offset is accepted at that second,
    that of a later partition an hour later. At `strange` offsets stands no record."""

    def __init__(self) -> None:
        self.lows, self.ends = [0], [0]
        self.strange: set[tuple[int, int]] = set()
        self.seeks = 0

    def left(self) -> list[int]:
        """All positions that are still there."""
        pairs = enumerate(zip(self.lows, self.ends, strict=True))
        return [position_of(one, offset) for one, (low, end) in pairs for offset in range(low, end)]

    def delete_records(self, wanted: list[TopicPartition], **_: object) -> None:
        for each in wanted:
            assert self.lows[each.partition] < each.offset <= self.ends[each.partition]
            self.lows[each.partition] = each.offset


class HandReader:
    """A `PartitionReader` of a Topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._at = (0, 0)

    def offsets(self, partitions: int) -> tuple[dict[int, int], dict[int, int]]:
        topic = self._topic
        numbers = range(partitions)
        return {one: topic.lows[one] for one in numbers}, {one: topic.ends[one] for one in numbers}

    def offsets_at(self, time_ms: int, partitions: int) -> dict[int, int]:
        topic, found = self._topic, {}
        for one in range(partitions):
            wanted = max(topic.lows[one], -(-time_ms // 1_000) - one * 3_600)
            if wanted < topic.ends[one]:
                found[one] = wanted
        return found

    def at(self, offsets: Mapping[int, int]) -> None:
        self._topic.seeks += 1
        ((partition, offset),) = offsets.items()
        self._at = (partition, max(offset, self._topic.lows[partition]))

    def consume(self, count: int) -> Iterator[Found]:
        for _ in range(min(count, 7)):
            partition, offset = self._at
            if offset >= self._topic.ends[partition]:
                yield Found(partition, offset, "end")
                return
            self._at = (partition, offset + 1)
            yield Found(partition, offset, "strange" if self._at_strange(offset) else "record")

    def _at_strange(self, offset: int) -> bool:
        return (self._at[0], offset) in self._topic.strange

    def close(self) -> None:
        pass


class House:
    """A log, and what its broker does and asks for."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        client = SimpleNamespace(delete_records=topic.delete_records)
        admin = SimpleNamespace(
            address=parse_address("kafka://127.0.0.1:9"),
            settings=KafkaSettings(),
            client=client,
            ask=lambda _doing, request: request(),
        )
        self.admin = cast(WatchedAdmin, admin)
        self.restart()

    def restart(self) -> None:
        topic = cast(LogTopic, SimpleNamespace(name="t", partitions=len(self.topic.ends)))
        self.positions: LogPositions = log_topic.find_ends(self.admin, topic)
        self.log = KafkaMessageLog(self.admin, "t", self.positions)

    def lose_end(self, count: int) -> None:
        """And go on in another partition."""
        self.topic.ends[-1] -= count
        self.topic.lows.append(0)
        self.topic.ends.append(0)
        self.restart()

    def write(self, count: int) -> None:
        """Records, one a tick."""
        for _ in range(count):
            self.topic.ends[-1] += 1
            self.positions.advance(self.positions.end + 1, RECORD_BYTES)

    def read(self, start: int, records_max: int = 10_000) -> list[int]:
        """The positions of what is read from there on, batch by batch."""
        found: list[int] = []
        while batches := self.log.read(start, records_max=records_max, bytes_max=10**9):
            for batch in batches:
                found += range(batch.base_offset, batch.base_offset + batch.record_count)
            start = found[-1] + 1
        return found


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    topic = Topic()
    for module in (message_log, log_topic):
        monkeypatch.setattr(module, "PartitionReader", lambda *_, **__: HandReader(topic))
    return House(topic)


def test_bytes_of_earlier_runs_are_estimated_and_those_of_this_run_known(house: House) -> None:
    house.write(300)
    house.restart()
    statistics = house.log.statistics()
    assert (statistics.start_offset, statistics.end_offset) == (0, 300)
    assert statistics.body_bytes == 300 * DEFAULT_RECORD_BYTES
    house.write(100)
    assert house.log.statistics().body_bytes == 400 * RECORD_BYTES
    house.log.trim(350)
    assert house.log.statistics().body_bytes == 50 * RECORD_BYTES


@pytest.mark.parametrize("below", [0, 1, 77, 270, position_of(1, 0), position_of(1, 15), position_of(1, 30)])
def test_everything_below_a_position_is_trimmed_and_nothing_above_it(house: House, below: int) -> None:
    house.write(300)
    house.lose_end(30)
    house.write(30)
    everything = house.topic.left()
    house.log.trim(below)
    assert house.topic.left() == [one for one in everything if one >= below]
    assert house.log.statistics().start_offset == min(house.topic.left(), default=house.positions.end)
    house.restart()
    assert house.positions.end == position_of(1, 30), "a log without records goes on where it was"


def test_a_floor_among_lost_records_trims_what_is_left(house: House) -> None:
    house.write(300)
    house.lose_end(30)
    house.write(2)
    house.log.trim(290)
    assert house.topic.left() == [position_of(1, 0), position_of(1, 1)]


@pytest.mark.parametrize("records_max", [1, 5, 7, 64, 10_000])
def test_partitions_are_read_one_behind_the_other(house: House, records_max: int) -> None:
    house.write(60)
    house.lose_end(10)
    house.lose_end(0)
    house.write(20)
    house.topic.strange = {(0, 3), (0, 20), (0, 21), (2, 0)}
    wanted = [one for one in house.topic.left() if one not in (3, 20, 21, position_of(2, 0))]
    assert house.read(0, records_max) == wanted
    assert house.read(47, records_max) == wanted[-22:]
    assert house.topic.seeks <= 6, "each partition is gone through in one go"
    assert house.read(house.positions.end) == []


def test_nothing_is_read_behind_what_is_committed(house: House) -> None:
    house.write(10)
    house.topic.ends[-1] += 5  # on their way: nobody was told of them
    assert house.read(4) == list(range(4, 10))
    house.positions.advance(15, 5 * RECORD_BYTES)
    assert house.read(10) == list(range(10, 15))


def test_a_time_leads_to_the_first_record_that_is_not_older(house: House) -> None:
    house.write(100)
    house.lose_end(50)
    house.write(10)
    assert house.log.offset_at(20_000) == 20
    assert house.log.offset_at(60_000) == position_of(1, 0)
    assert house.log.offset_at(3_605_000) == position_of(1, 5)
    assert house.log.offset_at(10**9) == house.positions.end


def test_a_reader_has_passed_what_it_has_read_of_every_partition(house: House) -> None:
    house.write(100)
    house.lose_end(50)
    house.write(10)
    assert house.log.passed({0: 20, 1: 10}) == 20
    assert house.log.passed({0: 90, 1: 4}) == position_of(1, 4), "it had read what was lost"
    assert house.log.passed({0: 50, 1: 10}) == house.positions.end


def test_readers_are_behind_by_records_and_not_by_numbers(house: House) -> None:
    house.write(100)
    house.lose_end(50)
    house.lose_end(0)
    house.write(10)
    end = house.positions.end
    for position, behind in ((0, 60), (20, 40), (77, 10), (position_of(1, 0), 10), (end - 3, 3), (end, 0)):
        assert house.log.count(position, end) == behind
    assert (house.log.count(60, 77), house.log.count(end, 77)) == (17, 0)
    said = Said()
    said.found = {0: 20}
    state = retention(house, said).run(end - 4, ["dispatch"], 0)
    assert [(pin.name, pin.behind) for pin in state.pins] == [("dispatch", 40), ("dispatcher", 4)]


class Said(PipelineProgress):
    """One query."""

    failing = ""
    found: Mapping[int, int] = {}

    def positions(self, query: str) -> Mapping[int, int]:
        return self.found

    def complete(self, query: str) -> Mapping[int, int]:
        return self.found


def retention(house: House, said: Said, **limits: object) -> Retention:
    chosen = {
        "age_ms": 3_600,
        "kept_bytes": 10**9,
        "pin_bytes": 10**9,
        "budget_bytes": 10**9,
        "policy": "refuse",
    }
    readers = PublishedReaders(said, house.log.passed, ("dispatch",))
    made = RetentionLimits(**(chosen | limits))  # type: ignore[arg-type]
    return Retention(house.log, readers, NoEntries(), StandInParked(), made)


def test_a_log_that_gets_nothing_more_is_trimmed_after_a_start(house: House) -> None:
    house.write(300)
    house.restart()
    said, end = Said(), house.positions.end
    said.found = {0: 200}
    rounds = retention(house, said)
    rounds.run(end, ["dispatch"], 10**12)
    assert house.topic.left() == list(range(200, 300)), "somebody still needs these"
    said.found = {0: 300}
    rounds.run(end, ["dispatch"], 283_600)
    assert house.topic.left() == list(range(280, 300)), "the others are not old enough"
    state = rounds.run(end, ["dispatch"], 10**12)
    assert [pin.next_offset for pin in state.pins] == [end, end]
    state = rounds.run(end, ["dispatch"], 10**12)
    assert (house.topic.left(), state.start_offset) == ([], end)


@pytest.mark.parametrize("written", [50, 150, 400])
def test_so_many_bytes_are_kept_on_both_sides_of_a_start(house: House, written: int) -> None:
    house.write(200)
    house.lose_end(50)
    house.topic.ends[-1] = 150
    house.restart()
    house.write(written)
    said = Said()
    said.found = dict(enumerate(house.topic.ends))
    rounds = retention(house, said, age_ms=10**15, kept_bytes=200 * RECORD_BYTES)
    for _ in range(3):
        rounds.run(house.positions.end, ["dispatch"], 10**12)
    assert len(house.topic.left()) == pytest.approx(200, abs=3)
    assert house.log.offset_keeping(10**9) == house.topic.left()[0]
