"""A rule that Spark's Java dies of is paused; those that were only there are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from embermq.pipeline.errors import BrokerAway, RuleError
from embermq.pipeline.paused import pause_reason, paused_queries, resume_query
from embermq.pipeline.places import Places
from embermq.pipeline.rules.live import DEATHS_MAX, Care


def dies(care: Care, rule: str, position: str) -> None:
    with pytest.raises(ConnectionRefusedError), care.at_work(rule, position):
        raise ConnectionRefusedError("Java is gone")


def test_it_is_paused_when_java_died_of_the_same_messages_again_and_again(tmp_path: Path) -> None:
    places = Places(tmp_path)
    first = Care(places)
    dies(first, "cold", "0:7")
    for _ in range(DEATHS_MAX):
        dies(first, "hot", "0:7")
        first = Care(places)
    with first.at_work("cold", "0:7"):
        assert not paused_queries(tmp_path)
    with (
        pytest.raises(RuleError, match="ended 3 times while it read from message 0:7 on"),
        first.at_work("hot", "0:7"),
    ):
        raise AssertionError("it is not begun")
    assert paused_queries(tmp_path) == {"rule:hot"}
    assert "ended 3 times" in pause_reason(tmp_path, "rule:hot")
    assert resume_query(tmp_path, "rule:hot")
    with Care(places).at_work("hot", "0:7"):
        """It may try again."""


def test_who_gets_on_and_who_fails_otherwise_is_not_blamed(tmp_path: Path) -> None:
    places = Places(tmp_path)
    for position in range(2 * DEATHS_MAX):
        dies(Care(places), "hot", f"0:{position}")
    care = Care(places)
    for _ in range(2 * DEATHS_MAX):
        with pytest.raises(BrokerAway), care.at_work("hot", "0:99"):
            raise BrokerAway("the broker does not answer")
    with Care(places).at_work("hot", "0:99"):
        assert not paused_queries(tmp_path)
