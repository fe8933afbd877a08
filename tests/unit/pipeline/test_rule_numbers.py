"""Messages of a rule have the same numbers whenever the same rows are made."""

from __future__ import annotations

from collections import Counter

from pyspark.sql import Row

from embermq.formats.log_record import decode_record
from embermq.mqtt.topics.names import SERVED_BYTES_MAX
from embermq.pipeline.rules.live import ROWS_MAX, RulePart
from embermq.pipeline.rules.settings import RuleSettings


def row(offset: int, topic: str) -> Row:
    return Row(offset=offset, topic=topic, payload=b"", chain=None)


def test_a_topic_that_no_record_can_hold_is_passed_over_and_has_its_number() -> None:
    part = RulePart.__new__(RulePart)  # what it needs besides is Spark and a broker
    part._rule_name, part._rule = "hot", RuleSettings(sql="")
    part._next, part._counts = None, Counter()
    rows = [
        row(5, "a"),
        row(6, "x" * (SERVED_BYTES_MAX + 1)),
        row(6, "é" * SERVED_BYTES_MAX),
        row(6, "b"),
        row(7, "c"),
    ]
    found = part._numbered(rows)
    topics = {number - 5 * ROWS_MAX: decode_record(record).message.topic for number, record in found}
    assert sorted(topics.values()) == ["a", "b", "c"]
    assert part._counts["refused"] == 2
    part._next = 7 * ROWS_MAX
    assert part._numbered(rows) == found
    assert part._counts["refused"] == 2, "what was passed over before is not counted again"
