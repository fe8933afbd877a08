"""What a SUBSCRIBE to a queue asks for."""

import pytest

from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.queues.errors import QueueRefusal
from embermq.queues.mqtt.subscription import (
    AckMode,
    Asker,
    QueueSubscription,
    Start,
    read_subscription,
    restored,
)

V5 = Asker("worker-7", ProtocolVersion.V5, allows_none=False)
V3 = Asker("worker-7", ProtocolVersion.V311, allows_none=False)


def read(
    topic_filter: str = "$queue/a/b", qos: int = 1, asker: Asker = V5, **properties: str
) -> QueueSubscription:
    given = tuple((name.replace("_", "-"), value) for name, value in properties.items())
    return read_subscription(topic_filter, qos, 0, given, asker)[0]


def test_the_group_comes_from_property_filter_or_client_id() -> None:
    assert read().place == ("a/b", "worker")
    assert read(consumer_group="billing").group == "billing"
    assert read("$share/g/$queue/a/b").place == ("a/b", "g")
    assert read("$share/g/$queue/a/b", consumer_group="g").group == "g"
    with pytest.raises(QueueRefusal, match="is not consumer-group"):
        read("$share/g/$queue/a/b", consumer_group="other")


def test_no_group_has_a_longer_name_than_another() -> None:
    """It stands in each of its rows, and in the address by which an operator removes it."""
    longest = "g" * 255
    assert read(f"$share/{longest}/$queue/a").group == longest
    assert read(asker=Asker(f"{longest}-1", ProtocolVersion.V311, allows_none=False)).group == longest
    with pytest.raises(QueueRefusal, match="group of the filter has 256 bytes"):
        read(f"$share/{longest}g/$queue/a")
    with pytest.raises(QueueRefusal, match="group of the client id has 256 bytes"):
        read(asker=Asker("é" * 128, ProtocolVersion.V311, allows_none=False))
    assert (
        read(asker=Asker("x" * 1_000, ProtocolVersion.V5, allows_none=False), consumer_group="g").group == "g"
    )


def test_what_settles_depends_on_version_and_wish() -> None:
    assert read().ack_mode is AckMode.EXPLICIT
    assert read(ack_mode="puback").ack_mode is AckMode.PUBACK
    assert read(asker=V3).ack_mode is AckMode.PUBACK
    allowing = Asker("c", ProtocolVersion.V5, allows_none=True)
    assert read(qos=1, ack_mode="none", asker=allowing).ack_mode is AckMode.NONE
    assert read(qos=0, asker=Asker("c", ProtocolVersion.V311, allows_none=True)).ack_mode is AckMode.NONE
    with pytest.raises(QueueRefusal, match="QoS 1 or 2"):
        read(qos=0, asker=allowing)
    with pytest.raises(QueueRefusal, match="allow_ack_mode_none"):
        read(ack_mode="none")


@pytest.mark.parametrize("asker", [V5, V3])
def test_qos_0_is_refused(asker: Asker) -> None:
    with pytest.raises(QueueRefusal, match="QoS 1 or 2") as refused:
        read(qos=0, asker=asker)
    assert refused.value.reason_code is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


@pytest.mark.parametrize(
    "topic_filter", ["$queue/#", "$queue/a/+", "$share/g/$queue/+", "$queue/", "$queue/a//b"]
)
def test_names_and_wildcards_are_refused(topic_filter: str) -> None:
    with pytest.raises(QueueRefusal) as refused:
        read(topic_filter)
    assert refused.value.reason_code is ReasonCode.TOPIC_FILTER_INVALID


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prefetch", "0"),
        ("prefetch", "65536"),
        ("prefetch", "-1"),
        ("prefetch", "many"),
        ("prefetch", "٣"),
        ("ack_mode", "later"),
        ("consumer_group", ""),
        ("consumer_group", "g" * 256),
        ("start_position", "yesterday"),
        ("start_position", "2030-01-31T12:00:00"),
    ],
)
def test_impossible_wishes_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(QueueRefusal, match=name.replace("_", "-")) as refused:
        read_subscription("$queue/a", 1, 0, ((name.replace("_", "-"), value),), V5)
    assert refused.value.reason_code is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


def test_a_wish_that_stands_there_twice_is_refused() -> None:
    twice = (("prefetch", "1"), ("prefetch", "2"))
    with pytest.raises(QueueRefusal, match="more than once"):
        read_subscription("$queue/a", 1, 0, twice, V5)


def test_where_a_group_starts() -> None:
    def start(text: str) -> Start:
        return read_subscription("$queue/a", 1, 0, (("start-position", text),), V5)[1]

    assert start("earliest") == Start() == read_subscription("$queue/a", 1, 0, (), V5)[1]
    assert start("latest") == Start(is_latest=True)
    assert start("17") == Start(sequence=17)
    assert start("1970-01-01T00:00:01+00:00") == Start(time_ms=1_000)


def test_what_is_stored_is_read_again() -> None:
    for subscription in (
        read(),
        read("$share/g/$queue/a", 2, prefetch="7", ack_mode="puback"),
        read(consumer_group='"{}\x01'),
    ):
        again = restored(subscription.topic_filter, subscription.qos, 0, subscription.stored)
        assert again == subscription
    with pytest.raises(ValueError, match=r"malformed|truncated"):
        restored("$queue/a", 1, 0, "")
