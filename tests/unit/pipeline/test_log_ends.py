"""How many offsets at the end of a log in Kafka have no record, while several threads look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.sources.kafka_positions import KafkaPositions

FIRSTS = {0: 0, 1: 0}


class Record:
    def __init__(self, partition: int, offset: int) -> None:
        self._at = partition, offset

    def partition(self) -> int:
        return self._at[0]

    def offset(self) -> int:
        return self._at[1]

    def error(self) -> None:
        return None


@pytest.mark.promise("pipeline-14")
def test_a_look_of_another_thread_hides_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """One looks when partition 0 ends with a record, the other one when the end of its transaction is there too."""
    positions = KafkaPositions(KafkaLog(bootstrap="127.0.0.1:1", prefix="e"))
    there = [Record(0, 9), Record(1, 3)]
    looks: list[Mapping[int, int]] = []

    def read(_: str, ends: Mapping[int, int], begin: Mapping[int, int]) -> list[Any]:
        if ends == {1: 5} and not looks:  # the first look goes on for this one
            looks.append({})
            looks[0] = positions._unused(FIRSTS, {0: 11, 1: 5})
        return [
            one for one in there if begin.get(one.partition(), 99) <= one.offset() < ends[one.partition()]
        ]

    monkeypatch.setattr(positions, "_read_all", read)
    assert positions._unused(FIRSTS, {0: 10, 1: 5}) == {0: 0, 1: 1}
    assert looks == [{0: 1, 1: 1}]
