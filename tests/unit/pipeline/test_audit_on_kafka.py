"""When an audit of a log in Kafka compares what sessions have counted with what it has read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from embermq.pipeline.jobs import kafka_audit
from embermq.pipeline.jobs.kafka_audit import KafkaAudit
from embermq.pipeline.jobs.past_range import PartitionRange, PastRange

Ranges = Sequence[tuple[int, int]]
"""First position and the one behind the last, of each partition."""
Compares = Callable[[Ranges, tuple[int, int], PastRange], bool]


@pytest.fixture
def compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compares:
    """With so many positions that have a record, and so many records that can be read."""

    def asked(ranges: Ranges, found: tuple[int, int], wanted: PastRange) -> bool:
        records, readable = found
        kept = Mock()
        kept.keep.return_value = tuple(
            PartitionRange(partition=number, start=start, end=end)
            for number, (start, end) in enumerate(ranges)
        )
        kept.read.return_value.count.return_value = records
        for name, made in (("KafkaPositions", Mock()), ("KafkaPastMessages", Mock()), ("has_lake", False)):
            monkeypatch.setattr(kafka_audit, name, Mock(return_value=made))
        monkeypatch.setattr(kafka_audit, "KafkaKeptRecords", lambda *_, **__: kept)
        audit = KafkaAudit(Mock(), Mock(), Mock(), wanted, kafka=Mock(), work=tmp_path, copy=Mock())
        start, end, _ = audit._keep()
        return audit._is_whole({"good": readable}, start, end)

    return asked


@pytest.mark.parametrize(
    ("ranges", "found", "wanted", "is_compared"),
    [
        ([(0, 5), (0, 3)], (8, 8), PastRange(), True),
        ([(2, 5), (0, 3)], (6, 6), PastRange(start=2), True),
        ([(0, 5), (0, 3), (4, 4)], (8, 8), PastRange(), True),
        ([(0, 5), (1, 3)], (7, 7), PastRange(), False),
        ([(0, 5), (0, 3)], (8, 7), PastRange(), False),
        ([(0, 5), (0, 3)], (7, 7), PastRange(), False),
        ([(0, 5)], (5, 5), PastRange(end=5), False),
    ],
    ids=[
        "all",
        "from a later one on",
        "an empty partition",
        "a later partition that was trimmed",
        "a record that cannot be read",
        "a position without a record",
        "not up to now",
    ],
)
def test_counts_are_compared_where_every_position_was_read(
    compares: Compares, ranges: Ranges, found: tuple[int, int], wanted: PastRange, is_compared: bool
) -> None:
    assert compares(ranges, found, wanted) is is_compared
