"""Messages of a rule have the same numbers whenever the same rows are made."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Row

from embermq.formats.log_record import decode_record
from embermq.mqtt.topics.names import SERVED_BYTES_MAX
from embermq.pipeline.places import Places
from embermq.pipeline.rules.set_aside import ROWS_MAX, SetAside, set_aside_of
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.rules.targets import BrokerTarget, RuleDoor, numbered


def row(offset: int, topic: str) -> Row:
    return Row(partition=0, offset=offset, topic=topic, payload=b"", chain=None)


def test_a_topic_that_no_record_can_hold_is_passed_over_and_has_its_number(tmp_path: Path) -> None:
    aside = SetAside(tmp_path / "rules.db", "hot")
    target = BrokerTarget("hot", RuleSettings(sql=""), RuleDoor(Places(tmp_path), "hot"), aside)
    rows = [
        row(5, "a"),
        row(6, "x" * (SERVED_BYTES_MAX + 1)),
        row(6, "é" * SERVED_BYTES_MAX),
        row(6, "b"),
        row(7, "c"),
    ]
    found = target._records(0, numbered(rows))
    topics = {number - 5 * ROWS_MAX: decode_record(record).message.topic for number, record in found}
    assert topics == {0: "a", ROWS_MAX: "b", 2 * ROWS_MAX: "c"}
    assert aside.totals == {"refused": 2}
    assert {(one.offset, one.what) for one in set_aside_of(tmp_path / "rules.db", "hot", 10)} == {
        (6, "refused")
    }
    assert target._records(0, numbered(rows)) == found
    assert aside.totals == {"refused": 2}, "what was passed over before is not counted again"
    aside.close()


def test_a_message_says_of_which_slot_the_one_is_that_it_comes_of(tmp_path: Path) -> None:
    aside = SetAside(tmp_path / "rules.db", "hot")
    for slot, said in ((None, "0:5"), (1, "1:0:5")):
        rule, door = RuleSettings(sql=""), RuleDoor(Places(tmp_path), "hot")
        target = BrokerTarget("hot", rule, door, aside, slot=slot)
        [(_, record)] = target._records(0, numbered([row(5, "a")]))
        properties = decode_record(record).message.properties
        assert properties is not None and dict(properties.user_properties)["rule-of"] == said
    aside.close()
