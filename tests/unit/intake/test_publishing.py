"""Accepting: acknowledgements only from a commit and in publish order, QoS 2 once, refusals."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered

from embermq.mqtt.wire.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Will,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError, StoreFull
from embermq.sessions.settings import MqttSettings

V5, V311, V31 = ProtocolVersion.V5, ProtocolVersion.V311, ProtocolVersion.V31


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


def acks(link: HandLink) -> list[tuple[str, int]]:
    kinds = (Puback, Pubrec, Pubcomp)
    return [(type(p).__name__, p.packet_id) for p in link.received if isinstance(p, kinds)]


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_nothing_is_acknowledged_before_its_commit(hand: HandDrivenBroker, version: ProtocolVersion) -> None:
    publisher = hand.connects("p", version=version)
    hand.held = True
    publisher.publishes("t", b"1", b"2", qos=1)
    publisher.publishes("t", b"3", qos=2, first_id=3)
    hand.settle()
    assert acks(publisher) == []
    publisher.publishes("t", b"4", qos=1, first_id=4)
    hand.settle()
    assert acks(publisher) == []
    hand.finish_commit()
    hand.run()
    assert acks(publisher) == [("Puback", 1), ("Puback", 2), ("Pubrec", 3)]
    hand.held = False
    hand.settle()
    assert acks(publisher)[3:] == [("Puback", 4)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_record_that_the_log_does_not_take_is_refused_alone(hand: HandDrivenBroker, qos: int) -> None:
    """Not with the tick in which it came; of QoS 2 its packet id is free again."""
    hand.state.record_bytes_sure = 200
    hand.state.record_objection = lambda record: "no" if len(record) > 500 else ""
    subscriber = hand.keeps("s")
    subscriber.subscribes("t", qos=qos)
    publisher, other = hand.connects("p"), hand.connects("o")
    publisher.publishes("t", b"1", b"2" * 600, b"3" * 300, qos=qos)
    other.publishes("t", b"4", qos=qos)
    hand.settle()
    answers = [
        (one.packet_id, one.reason_code) for one in publisher.received if isinstance(one, Puback | Pubrec)
    ]
    assert answers == [(1, 0), (2, 0x97), (3, 0)]
    publisher.publishes("t", b"5", qos=qos, first_id=2)
    hand.settle()
    assert subscriber.payloads == [b"1", b"3" * 300, b"4", b"5"]
    assert (hand.state.counters.publishes_refused, hand.state.counters.commits_failed) == (1, 0)


def test_a_will_that_the_log_does_not_take_holds_up_nothing(hand: HandDrivenBroker) -> None:
    hand.state.record_bytes_sure = 100
    hand.state.record_objection = lambda _record: "no"
    subscriber = hand.keeps("s")
    subscriber.subscribes("t", qos=1)
    hand.connects("p", will=Will("t", b"x" * 200, 1, False)).drops()
    hand.settle()
    hand.connects("o").publishes("t", b"1", qos=1)
    hand.settle()
    assert (subscriber.payloads, hand.state.counters.publishes_refused) == ([b"1"], 1)


def test_a_message_without_subscribers_is_acknowledged_with_10(hand: HandDrivenBroker) -> None:
    new, old = hand.connects("new"), hand.connects("old", version=V311)
    for publisher in (new, old):
        publisher.publishes("nobody", b"x", qos=1)
        publisher.publishes("nobody", b"x", qos=2, first_id=2)
    hand.settle()
    assert [new.last(Puback).reason_code, new.last(Pubrec).reason_code] == [0x10, 0x10]
    assert acks(old) == [("Puback", 1), ("Pubrec", 2)]


def test_qos_0_waits_for_no_commit(hand: HandDrivenBroker) -> None:
    subscriber, publisher = hand.connects("s"), hand.connects("p")
    kept = hand.keeps("k")
    subscriber.subscribes("t")
    kept.subscribes("t")
    publisher.publishes("t", b"x", qos=0)
    hand.held = True
    hand.run()
    assert subscriber.payloads == kept.payloads == [b"x"]
    assert not hand.store.busy


@pytest.mark.promise("repositories-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_store_refuses_by_97(hand: HandDrivenBroker, qos: int) -> None:
    subscriber, publisher = hand.keeps("s"), hand.keeps("p")
    subscriber.subscribes("t")
    hand.failures = [StoreFull("no room")]
    publisher.publishes("t", b"refused", qos=qos)
    hand.settle()
    answers = publisher.all(Puback) if qos == 1 else publisher.all(Pubrec)
    assert [answer.reason_code for answer in answers] == [0x97]
    assert subscriber.messages == []
    publisher.publishes("t", b"taken", qos=qos)
    hand.settle()
    assert subscriber.payloads == [b"taken"]
    assert hand.store.log_end == 1


@pytest.mark.clause("MQTT-4.8.0-2", version="3.1.1")
def test_another_failure_is_83_and_ends_a_3x_connection(hand: HandDrivenBroker) -> None:
    new, old = hand.connects("new"), hand.connects("old", version=V311)
    hand.failures = [StoreError("broken")]
    new.publishes("t", b"x")
    old.publishes("t", b"x")
    hand.settle()
    assert new.last(Puback).reason_code == 0x83
    assert acks(old) == []
    assert old.ended


def test_a_refused_batch_keeps_what_was_not_published(hand: HandDrivenBroker) -> None:
    publisher = hand.connects("p")
    subscriber = hand.keeps("s")
    hand.failures = [StoreFull("no room"), StoreFull("no room")]
    publisher.publishes("t", b"x")
    assert subscriber.subscribes("t", qos=1) == (1,)
    subscriber.drops()
    publisher.publishes("t", b"y", first_id=2)
    hand.settle()
    assert hand.restarted().keeps("s").payloads == [b"y"]


@pytest.mark.promise("repositories-1")
def test_a_repeated_qos_2_publish_is_stored_once(hand: HandDrivenBroker) -> None:
    subscriber, publisher = hand.keeps("s"), hand.keeps("p")
    subscriber.subscribes("t")
    publisher.publishes("t", b"x", qos=2)
    hand.settle()
    publisher.drops()
    publisher = hand.keeps("p")
    publisher.does(Publish("t", b"x", 2, 1, False, True))
    hand.settle()
    assert acks(publisher) == [("Pubrec", 1)]
    publisher.does(Pubrel(1))
    hand.settle()
    assert acks(publisher) == [("Pubrec", 1), ("Pubcomp", 1)]
    publisher.does(Publish("t", b"another", 2, 1))
    hand.settle()
    assert subscriber.payloads == [b"x", b"another"]


@pytest.mark.promise("repositories-1")
def test_a_repeat_after_a_crash_is_known(hand: HandDrivenBroker) -> None:
    subscriber, publisher = hand.keeps("s"), hand.keeps("p")
    subscriber.subscribes("t")
    publisher.publishes("t", b"x", b"y", qos=2)
    hand.settle()
    publisher.does(Pubrel(2))
    hand.settle()
    again = hand.restarted()
    subscriber, publisher = again.keeps("s"), again.keeps("p")
    publisher.does(Publish("t", b"x", 2, 1, False, True), Publish("t", b"z", 2, 2))
    again.settle()
    assert [payload for payload in subscriber.payloads if payload != b"y"][-1:] == [b"z"]
    assert again.store.log_end == 3


def test_a_repeat_in_the_same_tick_is_acknowledged_twice_and_stored_once(hand: HandDrivenBroker) -> None:
    publisher = hand.keeps("p")
    publisher.does(Publish("t", b"x", 2, 1), Publish("t", b"x", 2, 1, False, True))
    hand.settle()
    assert acks(publisher) == [("Pubrec", 1), ("Pubrec", 1)]
    assert hand.store.log_end == 1


def test_a_refused_qos_2_publish_may_come_again(hand: HandDrivenBroker) -> None:
    """The client leaves before it hears of the refusal: its repeat must not be taken for known."""
    subscriber, publisher = hand.keeps("s"), hand.keeps("p", version=V311)
    subscriber.subscribes("t")
    hand.held = True
    publisher.publishes("t", b"x", qos=2)
    hand.run()
    publisher.drops()
    hand.failures = [StoreFull("no room")]
    hand.held = False
    hand.settle()
    publisher = hand.keeps("p", version=V311)
    publisher.does(Publish("t", b"x", 2, 1, False, True))
    hand.settle()
    assert acks(publisher) == [("Pubrec", 1)]
    assert subscriber.payloads == [b"x"]


def test_a_repeat_of_what_is_refused_meanwhile_ends_the_connection(hand: HandDrivenBroker) -> None:
    publisher = hand.connects("p")
    hand.held = True
    publisher.publishes("t", b"x", qos=2)
    hand.run()
    publisher.does(Publish("t", b"x", 2, 1, False, True))
    hand.run()
    hand.failures = [StoreFull("no room")]
    hand.held = False
    hand.settle()
    assert [answer.reason_code for answer in publisher.all(Pubrec)] == [0x97]
    assert publisher.ended


def test_a_repeat_of_a_stored_publish_is_acknowledged_also_when_the_store_fails(
    hand: HandDrivenBroker,
) -> None:
    publisher = hand.keeps("p")
    publisher.publishes("t", b"x", qos=2)
    hand.settle()
    hand.failures = [StoreFull("no room")]
    publisher.does(Publish("t", b"y", 1, 9), Publish("t", b"x", 2, 1, False, True))
    hand.settle()
    assert publisher.last(Puback).reason_code == 0x97
    assert [answer.reason_code for answer in publisher.all(Pubrec)][1:] == [0]


def test_a_pinned_log_refuses_the_new_and_acknowledges_the_known(hand: HandDrivenBroker) -> None:
    publisher = hand.keeps("p")
    publisher.publishes("t", b"x", qos=2)
    hand.settle()
    hand.state.refuse_all = True
    publisher.forgets()
    publisher.does(
        Publish("t", b"x", 2, 1, False, True), Publish("t", b"new", 1, 2), Publish("t", b"new", 2, 3)
    )
    hand.settle()
    assert [(type(p).__name__, p.reason_code) for p in publisher.received[1:]] == [  # type: ignore[union-attr]
        ("Pubrec", 0),
        ("Puback", 0x97),
        ("Pubrec", 0x97),
    ]
    hand.state.refuse_all = False
    publisher.does(Publish("t", b"new", 2, 3))
    hand.settle()
    assert hand.store.log_end == 2


def test_qos_2_reaches_a_live_receiver_once_when_the_first_try_was_refused(hand: HandDrivenBroker) -> None:
    subscriber, publisher = hand.connects("s"), hand.keeps("p")
    publisher.releases = True
    subscriber.subscribes("t")
    hand.failures = [StoreFull("no room")]
    publisher.publishes("t", b"x", qos=2)
    hand.settle()
    publisher.publishes("t", b"x", qos=2)
    hand.settle()
    assert subscriber.payloads == [b"x"]


def test_pubrel_completes_when_it_is_durable(hand: HandDrivenBroker) -> None:
    publisher = hand.keeps("p")
    publisher.publishes("t", b"x", qos=2)
    hand.settle()
    hand.failures = [StoreFull("no room")]
    hand.held = True
    publisher.does(Pubrel(1))
    hand.run()
    assert acks(publisher) == [("Pubrec", 1)]
    hand.finish_commit()
    hand.run()
    assert acks(publisher) == [("Pubrec", 1)]
    hand.held = False
    hand.settle()
    assert acks(publisher) == [("Pubrec", 1), ("Pubcomp", 1)]
    assert hand.store.receiving == set()


def test_pubrel_before_pubrec_harms_nobody(hand: HandDrivenBroker) -> None:
    subscriber, publisher = hand.keeps("s"), hand.keeps("p")
    subscriber.subscribes("t")
    publisher.does(Publish("t", b"x", 2, 1), Pubrel(1))
    hand.settle()
    assert sorted(acks(publisher)) == [("Pubcomp", 1), ("Pubrec", 1)]
    publisher.does(Publish("t", b"y", 2, 1))
    hand.settle()
    publisher.does(Pubrel(1))
    hand.settle()
    assert subscriber.payloads == [b"x", b"y"]
    assert hand.store.receiving == set()


def test_an_unknown_pubrel_is_completed(hand: HandDrivenBroker) -> None:
    new, old = hand.connects("new"), hand.connects("old", version=V311)
    for publisher in (new, old):
        publisher.does(Pubrel(77))
    hand.settle()
    assert new.last(Pubcomp).reason_code == 0x92
    assert acks(old) == [("Pubcomp", 77)]


@pytest.mark.parametrize("topic", ["$SYS", "$SYS/x", "a" * 5_000, "/".join("a" * 200)])
def test_a_topic_that_is_not_accepted_is_refused_in_its_place(hand: HandDrivenBroker, topic: str) -> None:
    """And nothing else of the connection."""
    other, publisher = hand.connects("s"), hand.connects("p")
    other.subscribes("#", "$SYS/#")
    publisher.does(
        Publish("before", b"1", 1, 1),
        Publish(topic, b"x", 1, 2),
        Publish("t", b"2", 1, 3),
        Publish(topic, b"x", 0, 0),
        Publish(topic, b"x", 2, 4, True),
        Publish("after", b"3", 2, 5),
    )
    hand.settle()
    answers = [
        (type(p), p.packet_id, p.reason_code) for p in publisher.received if isinstance(p, Puback | Pubrec)
    ]
    assert answers == [(Puback, 1, 0), (Puback, 2, 0x90), (Puback, 3, 0), (Pubrec, 4, 0x90), (Pubrec, 5, 0)]
    assert other.payloads == [b"1", b"2"]
    assert hand.state.counters.publishes_refused == 3
    assert publisher.session is not None and publisher.session.receiving == {5}
    assert publisher.unanswered == 1
    publisher.does(Pubrel(5))
    hand.settle()
    assert other.payloads == [b"1", b"2", b"3"]


@pytest.mark.parametrize("version", [V31, V311])
def test_3x_cannot_signal_it(hand: HandDrivenBroker, version: ProtocolVersion) -> None:
    """Below $SYS it is as where rules deny it."""
    subscriber, publisher = hand.keeps("s"), hand.connects("p", version=version)
    subscriber.subscribes("t", "$SYS/#")
    publisher.does(Publish("$SYS/x", b"", 0), Publish("t", b"x", 1, 1), Publish("$SYS/x", b"", 1, 2))
    hand.settle()
    assert subscriber.payloads == [b"x"]
    assert acks(publisher) == [("Puback", 1), ("Puback", 2)]
    assert not publisher.ended


@pytest.mark.parametrize("version", [V31, V311])
def test_in_3x_a_topic_past_the_limits_ends_the_connection(
    hand: HandDrivenBroker, version: ProtocolVersion
) -> None:
    """What came before counts, and no acknowledgement is given that would not be true."""
    subscriber, publisher = hand.keeps("s"), hand.connects("p", version=version)
    subscriber.subscribes("t")
    publisher.does(Publish("t", b"x", 1, 1), Publish("a" * 5_000, b"", 1, 2), Publish("t", b"y", 1, 3))
    hand.settle()
    assert acks(publisher) == [("Puback", 1)]
    assert publisher.ended


def test_refusals_count_for_the_receive_maximum() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(receive_maximum=2))
    publisher = hand.connects("p")
    publisher.publishes("$SYS/x", b"1", b"2")
    hand.settle()
    publisher.publishes("$SYS/x", b"3", b"4", b"5")
    hand.settle()
    assert publisher.last(Disconnect).reason_code == 0x93


def test_the_id_of_an_open_qos_2_message_is_in_use(hand: HandDrivenBroker) -> None:
    subscriber, publisher = hand.connects("s"), hand.connects("p")
    subscriber.subscribes("t")
    publisher.does(Publish("t", b"1", 2, 7), Publish("t", b"2", 1, 7), Publish("t", b"3", 1, 8))
    hand.settle()
    assert [(p.packet_id, p.reason_code) for p in publisher.all(Puback)] == [(7, 0x91), (8, 0)]
    assert subscriber.payloads == [b"3"]
    publisher.does(Pubrel(7), Publish("t", b"4", 1, 7))
    hand.settle()
    assert acks(publisher)[-2:] == [("Pubcomp", 7), ("Puback", 7)]
    assert publisher.last(Puback).reason_code == 0
    assert sorted(subscriber.payloads) == [b"1", b"3", b"4"]
    assert publisher.unanswered == 0


@pytest.mark.parametrize("version", [V31, V311])
def test_in_3x_it_is_a_message_like_any_other(hand: HandDrivenBroker, version: ProtocolVersion) -> None:
    subscriber, publisher = hand.connects("s"), hand.connects("p", version=version)
    subscriber.subscribes("t")
    publisher.does(Publish("t", b"1", 2, 7), Publish("t", b"2", 1, 7), Pubrel(7))
    hand.settle()
    assert sorted(subscriber.payloads) == [b"1", b"2"]
    assert sorted(acks(publisher)) == [("Puback", 7), ("Pubcomp", 7), ("Pubrec", 7)]


def test_a_qos_1_message_holds_no_id(hand: HandDrivenBroker) -> None:
    """It is owned at once, so a QoS 2 message with its id is another message and nothing is mixed up."""
    subscriber, publisher = hand.connects("s"), hand.connects("p")
    subscriber.subscribes("t")
    publisher.does(Publish("t", b"1", 1, 7), Publish("t", b"2", 2, 7))
    hand.settle()
    publisher.does(Pubrel(7))
    hand.settle()
    assert acks(publisher) == [("Puback", 7), ("Pubrec", 7), ("Pubcomp", 7)]
    assert sorted(subscriber.payloads) == [b"1", b"2"]


def test_aliases_belong_to_the_connection() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(topic_alias_maximum=2))
    subscriber, publisher = hand.connects("s"), hand.connects("p")
    subscriber.subscribes("#")
    set_up = Properties(topic_alias=2, content_type="c")
    publisher.does(Publish("t", b"1", 1, 1, properties=set_up), Publish("", b"2", 1, 2, properties=set_up))
    hand.settle()
    assert [(message.topic, message.payload) for message in subscriber.messages] == [("t", b"1"), ("t", b"2")]
    assert {message.properties for message in subscriber.messages} == {Properties(content_type="c")}
    other = hand.connects("q")
    other.does(Publish("", b"3", 1, 1, properties=Properties(topic_alias=2)))
    hand.settle()
    assert other.last(Disconnect).reason_code == 0x82
    publisher.does(Publish("t", b"3", 1, 3, properties=Properties(topic_alias=3)))
    hand.settle()
    assert publisher.last(Disconnect).reason_code == 0x94


def test_an_alias_is_refused_where_none_was_offered() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(topic_alias_maximum=0))
    publisher = hand.connects("p")
    publisher.does(Publish("t", b"x", 0, 0, properties=Properties(topic_alias=1)))
    hand.settle()
    assert publisher.last(Disconnect).reason_code == 0x94


def test_the_maximum_qos_is_told_and_kept() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(max_qos=1))
    publisher = hand.connects("p")
    properties = publisher.received[0].properties  # type: ignore[union-attr]
    assert properties is not None and properties.maximum_qos == 1
    assert publisher.subscribes("t", qos=2) == (1,)
    publisher.does(Publish("t", b"x", 2, 1))
    hand.settle()
    assert publisher.last(Disconnect).reason_code == 0x9B


def test_properties_reach_v5_receivers_and_only_them(hand: HandDrivenBroker) -> None:
    new, old, publisher = hand.connects("new"), hand.connects("old", version=V31), hand.connects("p")
    for subscriber in (new, old):
        subscriber.subscribes("t", qos=1)
    properties = Properties(
        payload_format_indicator=1,
        content_type="c",
        response_topic="r",
        correlation_data=b"\x00",
        user_properties=(("k", "1"), ("k", "2")),
    )
    publisher.does(Publish("t", b"x", 1, 1, properties=properties))
    hand.settle()
    assert new.messages[0].properties == properties
    assert old.messages[0].properties is None


@pytest.mark.promise("device-7")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_expiry_of_0_reaches_nobody(hand: HandDrivenBroker, qos: int) -> None:
    direct, kept, publisher = hand.connects("d"), hand.keeps("k"), hand.connects("p")
    for subscriber in (direct, kept):
        subscriber.subscribes("t")
    publisher.does(Publish("t", b"x", qos, 1 if qos else 0, properties=Properties(message_expiry_interval=0)))
    hand.settle()
    hand.passes(s=1)
    assert direct.messages == kept.messages == []


def test_order_is_kept_over_many_ticks_and_commits_under_way(hand: HandDrivenBroker) -> None:
    subscribers = [hand.connects("d"), hand.keeps("k"), hand.keeps("slow", receive_maximum=1)]
    for subscriber in subscribers:
        subscriber.subscribes("t")
    publisher = hand.connects("p")
    publisher.releases = True
    for qos in (1, 2):
        for start in range(0, 60, 20):
            hand.held = True
            publisher.publishes("t", *numbered(20, start), qos=qos, first_id=qos * 1_000 + start)
            hand.run()
            publisher.publishes("t", *numbered(0), qos=qos)
            hand.held = False
        hand.settle()
        for subscriber in subscribers:
            assert [m.payload for m in subscriber.messages if m.qos == qos] == numbered(60)
