"""Topic names and filters: what is valid, what is shared, what matches."""

from __future__ import annotations

import pytest

from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import (
    SharedFilter,
    first_level,
    has_wildcard,
    matches,
    parse_shared,
    validate_filter,
    validate_topic,
)


@pytest.mark.parametrize(
    "topic",
    ["a", "/", "//", "a/b", "/a", "a/", " ", "$SYS/a", "\ufeff", "é" * 32_767, "/" * 65_535, "$share/a"],
)
def test_valid_topics(topic: str) -> None:
    validate_topic(topic)


@pytest.mark.parametrize(
    ("topic", "clause"),
    [
        ("", "MQTT-4.7.3-1"),
        ("a\0", "MQTT-4.7.3-2"),
        ("x" * 65_536, "MQTT-4.7.3-3"),
        ("é" * 32_768, "MQTT-4.7.3-3"),
        ("\ud800", "MQTT-1.5.4-1"),
        ("a/+", "MQTT-3.3.2-2"),
        ("a#", "MQTT-3.3.2-2"),
    ],
)
def test_invalid_topics(topic: str, clause: str) -> None:
    with pytest.raises(TopicError) as caught:
        validate_topic(topic)
    assert caught.value.clause == clause
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "topic_filter",
    ["#", "+", "+/+", "a/+/b", "a/#", "/#", "/+", "+/#", "$SYS/#", "a", "$share", "$share/g/#", "$share/g//"],
)
def test_valid_filters(topic_filter: str) -> None:
    validate_filter(topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "clause"),
    [
        ("", "MQTT-4.7.3-1"),
        ("#/a", "MQTT-4.7.1-1"),
        ("a/#/b", "MQTT-4.7.1-1"),
        ("a#", "MQTT-4.7.1-1"),
        ("##", "MQTT-4.7.1-1"),
        ("a+", "MQTT-4.7.1-2"),
        ("a/+b/c", "MQTT-4.7.1-2"),
        ("++", "MQTT-4.7.1-2"),
        ("$share/", "MQTT-4.8.2-1"),
        ("$share//a", "MQTT-4.8.2-1"),
        ("$share/g", "MQTT-4.8.2-2"),
        ("$share/g/", "MQTT-4.8.2-2"),
        ("$share/g+/a", "MQTT-4.8.2-2"),
        ("$share/#", "MQTT-4.8.2-2"),
        ("$share/g/a#", "MQTT-4.7.1-1"),
    ],
)
def test_invalid_filters(topic_filter: str, clause: str) -> None:
    with pytest.raises(TopicError) as caught:
        validate_filter(topic_filter)
    assert caught.value.clause == clause


def test_limits() -> None:
    validate_topic("a/b/c", bytes_max=5, levels_max=3)
    with pytest.raises(TopicError, match="5 bytes, the limit is 4"):
        validate_topic("a/b/c", bytes_max=4)
    with pytest.raises(TopicError, match="3 levels, the limit is 2"):
        validate_topic("a/b/c", levels_max=2)
    with pytest.raises(TopicError, match="3 levels, the limit is 2"):
        validate_filter("a/+/#", levels_max=2)


def test_parse_shared() -> None:
    assert parse_shared("$share/g/a/#") == SharedFilter("g", "a/#")
    assert parse_shared("$share/g//a") == SharedFilter("g", "/a")
    assert parse_shared("$share/g/$queue/tasks") == SharedFilter("g", "$queue/tasks")
    assert parse_shared("a/b") is None
    assert parse_shared("$share") is None


def test_first_level() -> None:
    assert first_level("a/b") == "a"
    assert first_level("a") == "a"
    assert first_level("/a") == ""


def test_has_wildcard() -> None:
    assert has_wildcard("a/+")
    assert has_wildcard("#")
    assert not has_wildcard("a/b")


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("a", "a", True),
        ("a", "a/", False),
        ("a/#", "a", True),
        ("a/#", "a/", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "/", True),
        ("+", "a", True),
        ("+", "/a", False),
        ("+/+", "/a", True),
        ("/+", "/a", True),
        ("a/+", "a/", True),
        ("a/+", "a", False),
        ("a/+/#", "a", False),
        ("#", "$SYS/a", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/#", "$SYS/a", True),
        ("$SYS/+", "$SYS/a", True),
        ("a/#", "a/$b", True),
        ("+/+", "a/$b", True),
    ],
)
def test_matches(topic_filter: str, topic: str, expected: bool) -> None:
    assert matches(topic_filter, topic) is expected
