"""Records of several partitions in one order: how much of one may wait for another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import pytest

from embermq.adapters.kafka import reading
from embermq.adapters.kafka.reading import Merge, PartitionReader
from embermq.formats.kafka_record import Header, KafkaEncoder
from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.mqtt.wire.version import ProtocolVersion


class Found:
    """What a consumer gives."""

    def __init__(self, partition: int, offset: int, number: int, payload: bytes) -> None:
        message = Message("a", payload, 1, False, "c", ProtocolVersion.V5, 1, 0, None)
        self._outgoing = KafkaEncoder().encode(encode_record(message, b""), number)
        self._place = (partition, offset)

    def error(self) -> None:
        return None

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

    def headers(self) -> list[Header]:
        return self._outgoing.headers


class Partitions:
    """A reader of two partitions that gives one record at a time, the second partition only when the first is
    paused or at its end."""

    def __init__(self, first: list[Found], second: list[Found]) -> None:
        self._left = [first, second]
        self.paused: set[int] = set()
        self.given = 0

    def at(self, offsets: Mapping[int, int]) -> None:
        assert not any(offsets.values())

    def pause(self, partition: int) -> None:
        self.paused.add(partition)

    def resume(self, partition: int) -> None:
        self.paused.remove(partition)

    def consume(self, _count: int) -> Iterator[Found]:
        partition = next(one for one in (0, 1) if self._left[one] and one not in self.paused)
        self.given += 1
        yield self._left[partition].pop(0)


@pytest.mark.parametrize("payload_bytes", [1, 4_000])
def test_what_waits_for_another_partition_is_bounded_in_records_and_in_bytes(
    monkeypatch: pytest.MonkeyPatch, payload_bytes: int
) -> None:
    monkeypatch.setattr(reading, "HELD_MAX", 50)
    monkeypatch.setattr(reading, "HELD_BYTES_MAX", 40_000)
    payload = bytes(payload_bytes)
    first = [Found(0, offset, offset, payload) for offset in range(100)]
    partitions = Partitions(first, [Found(1, 0, 100, b"last")])
    merge = Merge(cast(PartitionReader, partitions), {0: 0, 1: 0}, 0)
    records = merge.take({0: 100, 1: 1}, 101)
    assert next(records).number == 0
    assert partitions.given <= (52 if payload_bytes == 1 else 12)
    assert partitions.paused == {0}
    assert [record.number for record in records] == list(range(1, 101))
    assert partitions.paused == set()
