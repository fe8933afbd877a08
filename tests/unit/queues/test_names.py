"""Topics, filters and names of queues."""

import pytest

from embermq.mqtt.topics.names import matches
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.queues.errors import NameRefused
from embermq.queues.names import (
    QueueFilter,
    QueueKind,
    QueueTopic,
    Verb,
    default_group,
    is_queue_filter,
    kind_of,
    parse_filter,
    parse_topic,
)

LONGEST = "n" * 255


@pytest.mark.parametrize(
    ("topic", "name", "verb"),
    [
        ("$queue/tasks", "tasks", None),
        ("$queue/tasks/image-processing", "tasks/image-processing", None),
        ("$queue/a/b/c/d", "a/b/c/d", None),
        ("$queue/dlq", "dlq", None),
        ("$queue/responses/17", "responses/17", None),
        ("$queue/a b/ü", "a b/ü", None),
        ("$queue/ack", "ack", None),
        (f"$queue/{LONGEST}", LONGEST, None),
        ("$queue/tasks/$ack", "tasks", Verb.ACK),
        ("$queue/a/b/$nack", "a/b", Verb.NACK),
        ("$queue/a/$reject", "a", Verb.REJECT),
        ("$queue/a/$extend", "a", Verb.EXTEND),
        ("$queue/dlq/a/b/$ack", "dlq/a/b", Verb.ACK),
    ],
)
def test_a_topic_is_a_queue_or_a_control_topic(topic: str, name: str, verb: Verb | None) -> None:
    assert parse_topic(topic) == QueueTopic(name, verb)


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("$queue/", "queue name '' has an empty level"),
        ("$queue//a", "queue name '/a' has an empty level"),
        ("$queue/a/", "queue name 'a/' has an empty level"),
        ("$queue/$ack", "topic '$queue/$ack' names no queue"),
        (
            "$queue/a/$ack/b",
            "queue name 'a/$ack/b': level '$ack' starts with '$'; behind a name stand $ack, $nack,",
        ),
        ("$queue/a/$other", "queue name 'a/$other': level '$other' starts with '$'"),
        ("$queue/a/$ack/$ack", "queue name 'a/$ack': level '$ack' starts with '$'"),
        (f"$queue/{LONGEST}n", "has 256 bytes, the limit is 255"),
        ("$queue/" + "ü" * 128, "has 256 bytes, the limit is 255"),
        ("$queue/dlq/a", "topic '$queue/dlq/a': dead letters are written by the broker alone"),
        ("$queue/dlq/dlq/a/$ack", "dead letters have no dead letters"),
    ],
)
def test_a_topic_is_refused(topic: str, told: str) -> None:
    with pytest.raises(NameRefused) as refused:
        parse_topic(topic)
    assert told in refused.value.message
    assert refused.value.reason_code is ReasonCode.TOPIC_NAME_INVALID


@pytest.mark.parametrize(
    ("topic_filter", "found"),
    [
        ("$queue/a/b", QueueFilter("a/b", "")),
        ("$share/g/$queue/a/b", QueueFilter("a/b", "g")),
        ("$queue/dlq/a/b", QueueFilter("dlq/a/b", "")),
    ],
)
def test_a_filter_names_a_queue_and_a_group(topic_filter: str, found: QueueFilter) -> None:
    assert is_queue_filter(topic_filter)
    assert parse_filter(topic_filter) == found


@pytest.mark.parametrize(
    "topic_filter",
    ["$queue/#", "$queue/+/a", "$queue/a/#", "$share/g/$queue/#", "$queue/a/$ack", "$share/+/$queue/a"],
)
def test_a_filter_is_refused(topic_filter: str) -> None:
    with pytest.raises(NameRefused) as refused:
        parse_filter(topic_filter)
    assert refused.value.reason_code is ReasonCode.TOPIC_FILTER_INVALID


def test_what_is_beside_queues_stays_what_it_is() -> None:
    for topic_filter in ("#", "+/a", "$queue", "$share/g/a", "$share/$queue/a", "$share/g"):
        assert not is_queue_filter(topic_filter)
    for wide in ("#", "+/tasks", "+/#"):
        assert not matches(wide, "$queue/tasks")


def test_prefixes_are_kinds() -> None:
    assert kind_of("a/b") is kind_of("dlq") is QueueKind.ORDINARY
    assert kind_of("dlq/a") is QueueKind.DEAD_LETTERS
    assert kind_of("responses/7") is QueueKind.RESPONSES


@pytest.mark.parametrize(
    ("client_id", "group"), [("billing-1-x", "billing"), ("billing", "billing"), ("-7", "-7"), ("a-", "a")]
)
def test_a_client_id_names_the_group(client_id: str, group: str) -> None:
    assert default_group(client_id) == group
