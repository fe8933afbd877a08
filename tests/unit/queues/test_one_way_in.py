"""What is asked of a message is asked the same, whether it goes to a topic, a queue, or comes from a will."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.stand_in_store import StandInQueueStore

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules import Principal
from embermq.access.authorization.rules_file import read_rules
from embermq.formats.log_record import Origin, decode_record
from embermq.model.message import Message
from embermq.mqtt.wire.packets import (
    Connack,
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    Subscribe,
    Subscription,
    Will,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.settings import BrokerQueueSettings
from embermq.sessions.client_events import ClientEvent, EventKind
from embermq.sessions.settings import MqttSettings
from embermq.sessions.tick import Asked, Own

EVERYTHING = '[[rule]]\nallow = "all"\n'
RESPONSES = "$queue/responses/7"
RECORDED = ("plain", "$queue/work")
PUBLISHED = (*RECORDED, RESPONSES)
EVERYWHERE = (*PUBLISHED, "$queue/work/$ack", "$admin/queue/work/config")


class Hand(HandDrivenBroker):
    """With queues."""

    def __init__(self, mqtt: MqttSettings | None = None, *, rules: str = "") -> None:
        super().__init__(
            mqtt=mqtt or MqttSettings(),
            rules=rules_of(rules) if rules else None,
        )
        self.queues = MqttQueues(
            self.state, BrokerQueueSettings(), StandInQueueStore(self.store), lambda _ms, then: then(0)
        )
        self.state.queues = self.queues

    def run(self) -> None:
        self.queues.run()
        super().run()

    @property
    def records(self) -> list[Message]:
        return [decode_record(record).message for _, batch, _ in self.store.batches for record in batch]

    @property
    def depth(self) -> int:
        queue = self.queues.core.find("work")
        return len(queue.entries) if queue is not None else 0


def rules_of(text: str) -> RuleSet:
    return RuleSet(read_rules(text, "r"), no_match_allows=False)


def codes(link: HandLink) -> list[tuple[int, int]]:
    return [(each.packet_id, each.reason_code) for each in link.received if isinstance(each, Puback | Pubrec)]


def publish(link: HandLink, topic: str, packet_id: int, qos: int = 1, payload: bytes = b"x") -> None:
    link.does(Publish(topic, payload, qos, packet_id if qos else 0))


@pytest.mark.parametrize("topic", EVERYWHERE)
def test_every_publish_counts_for_the_rate(topic: str) -> None:
    hand = Hand(MqttSettings(publish_rate_max=1))
    link = hand.connects("p")
    publish(link, "first", 1)
    publish(link, topic, 2)
    hand.settle()
    assert codes(link)[1] == (2, 0x97) and hand.state.counters.refused_publish_rate == 1


@pytest.mark.parametrize("topic", EVERYWHERE)
def test_every_publish_counts_for_the_receive_maximum_and_a_packet_id_in_use_is_refused(topic: str) -> None:
    hand = Hand(MqttSettings(receive_maximum=3))
    link = hand.connects("p")
    publish(link, "first", 1, qos=2)
    hand.settle()
    publish(link, topic, 1)
    hand.settle()
    assert codes(link)[1] == (1, 0x91)
    hand.held = True
    for packet_id in (2, 3, 4):
        publish(link, topic, packet_id)
    hand.settle()
    assert link.last(Disconnect).reason_code == 0x93


@pytest.mark.parametrize("topic", EVERYWHERE)
def test_what_repeats_a_held_message_is_acknowledged_whatever_holds_by_now(topic: str) -> None:
    hand = Hand(MqttSettings(publish_rate_max=1, payload_bytes_max=5), rules=EVERYTHING)
    link = hand.connects("p")
    publish(link, "plain", 1, qos=2)
    hand.settle()
    hand.broker.authorize(RuleSet((), no_match_allows=False))
    link.does(Publish(topic, b"another", 2, 1, False, True))
    hand.settle()
    assert codes(link)[1] == (1, 0) and not link.closing
    assert hand.state.counters.messages_received == 1


@pytest.mark.parametrize("topic", PUBLISHED)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_rights_are_asked_everywhere(topic: str, qos: int) -> None:
    hand = Hand(rules=EVERYTHING)
    told: list[ClientEvent] = []
    link = hand.connects("p")
    hand.state.tell = told.append
    hand.broker.authorize(RuleSet((), no_match_allows=False))
    publish(link, topic, 1, qos)
    hand.settle()
    assert codes(link) == ([(1, 0x87)] if qos else [])
    assert [(event.kind, event.topic) for event in told] == [(EventKind.DENIED, topic)]
    counters = hand.state.counters
    assert (counters.publishes_denied, counters.publishes_refused, hand.records) == (1, 1, [])


def test_settings_that_are_not_allowed_are_an_event_like_a_publish_that_is_not() -> None:
    hand = Hand(rules=EVERYTHING)
    told: list[ClientEvent] = []
    link = hand.connects("p")
    hand.state.tell = told.append
    publish(link, "$admin/queue/work/config", 1, payload=b"{}")
    hand.settle()
    assert codes(link) == [(1, 0x87)]
    assert [(event.kind, event.topic) for event in told] == [(EventKind.DENIED, "$admin/queue/work/config")]
    assert hand.state.counters.publishes_denied == 1


@pytest.mark.parametrize(
    ("topic", "behind"),
    [
        *((topic, "refuse_all") for topic in RECORDED),
        *((topic, "session_store_full") for topic in RECORDED if topic.startswith("$queue/")),
    ],
)
def test_nothing_is_recorded_while_the_log_is_held(topic: str, behind: str) -> None:
    """Settling goes on: it is what lets go of the log. A will goes out: it was taken with its CONNECT."""
    hand = Hand()
    link = hand.connects("p", will=Will(topic, b"will", 1, False))
    setattr(hand.state, behind, True)
    hand.state.is_queue_store_away = lambda _name: True
    publish(link, topic, 1)
    publish(link, topic, 2, qos=2)
    publish(link, "$queue/work/$ack", 3)
    hand.settle()
    assert [code for _, code in codes(link)] == [0x97, 0x97, 0x83]
    assert not hand.records
    link.drops()
    hand.settle()
    assert len(hand.records) == 1 and hand.state.counters.wills_published == 1


def test_queues_whose_own_store_answers_are_not_refused_for_another_one() -> None:
    hand = Hand()
    link = hand.connects("p")
    hand.state.session_store_full = True
    hand.state.is_queue_store_away = lambda name: name == "away"
    publish(link, "$queue/away", 1)
    publish(link, "$queue/work", 2)
    replayed = [
        hand.broker.publishing.accept_operators(Message(f"$queue/{name}", b"x", 1, False, "", 5, 0), Asked())
        for name in ("away", "work")
    ]
    hand.settle()
    assert codes(link) == [(1, 0x97), (2, 0)]
    assert [refusal is None for refusal in replayed] == [False, True]
    assert [message.topic for message in hand.records] == ["$queue/work"] * 2


@pytest.mark.parametrize("topic", RECORDED)
def test_a_log_at_a_stand_ends_the_connection_of_who_publishes(topic: str) -> None:
    hand = Hand()
    link = hand.connects("p")
    hand.state.log_full = True
    publish(link, topic, 1)
    hand.settle()
    assert link.last(Disconnect).reason_code == 0x97 and hand.state.counters.refused_log_full == 1


@pytest.mark.parametrize("topic", RECORDED)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_record_that_the_log_does_not_take_is_refused_with_one_code(topic: str, qos: int) -> None:
    hand = Hand()
    hand.state.record_bytes_sure = 1_000
    hand.state.record_objection = lambda record: "too large" if len(record) > 2_000 else ""
    link = hand.connects("p", will=Will(topic, bytes(5_000), 1, False))
    link.does(Publish(topic, bytes(5_000), qos, 1 if qos else 0, retain=not qos))
    hand.settle()
    assert codes(link) == ([(1, 0x97)] if qos else [])
    link.drops()
    hand.settle()
    assert hand.state.counters.publishes_refused == 2 and not hand.records
    assert hand.state.counters.wills_published == 0


def test_a_will_that_is_tried_again_is_still_its_clients() -> None:
    """What may not be published any more is not found as a retained message, although its first tick failed."""
    hand = Hand(rules=EVERYTHING)
    link = hand.connects("p", user="ann", will=Will("a/will", b"will", 1, True))
    hand.failures = [StoreError("away")]
    link.drops()
    hand.settle()
    assert len(hand.state.retained) == 1
    hand.broker.authorize(rules_of('[[rule]]\ndeny = "publish"\nuser = "ann"\n' + EVERYTHING))
    reader = hand.connects("r", user="bob")
    reader.subscribes("#")
    hand.settle()
    assert reader.payloads == []


@pytest.mark.parametrize(("qos", "retain"), [(0, True), (1, False), (1, True)])
def test_a_will_that_is_tried_again_reaches_who_is_there_once(qos: int, retain: bool) -> None:
    """A disk is full for long, and each tick tries it again."""
    hand = HandDrivenBroker()
    taker = hand.connects("taker")
    taker.subscribes("a/will", qos=1)
    link = hand.connects("p", will=Will("a/will", b"will", qos, retain))
    hand.failures = [StoreError("no room"), StoreError("still no room")]
    link.drops()
    hand.settle()
    assert not hand.failures
    assert taker.payloads == [b"will"]
    assert len(hand.state.retained) == retain


def test_a_will_that_is_tried_again_is_asked_for_rights_again() -> None:
    hand = Hand(rules=EVERYTHING)
    link = hand.connects("p", user="ann", will=Will("$queue/work", b"will", 1, False))
    hand.held = True
    link.drops()
    hand.settle()
    hand.broker.authorize(rules_of('[[rule]]\ndeny = "publish"\nuser = "ann"\n' + EVERYTHING))
    hand.failures = [StoreError("away")]
    hand.finish_commit()
    hand.held = False
    hand.settle()
    assert hand.depth == 0 and hand.state.counters.publishes_denied == 1


@pytest.mark.parametrize("by_will", [False, True])
def test_a_response_carries_no_reserved_properties(by_will: bool) -> None:
    """[queues-3]"""
    hand = Hand()
    asks = hand.connects("asks")
    asks.does(Subscribe(1, (Subscription(RESPONSES, 1),)))
    hand.settle()
    said = Properties(user_properties=(("message-id", "mine"), ("colour", "red"), ("dlq-queue", "mine")))
    answers = hand.connects("answers", will=Will(RESPONSES, b"x", 1, False, said) if by_will else None)
    if by_will:
        answers.drops()
    else:
        answers.does(Publish(RESPONSES, b"x", 1, 1, properties=said))
    hand.settle()
    (message,) = asks.messages
    assert message.properties is not None
    assert message.properties.user_properties == (("colour", "red"),)


@pytest.mark.parametrize("topic", ["$queue/work/$ack", "$admin/queue/work/config", "$queue//x"])
def test_a_will_is_a_message_and_no_word_to_a_queue(topic: str) -> None:
    """At CONNECT, and when one comes from a store that has it nevertheless."""
    hand = Hand()
    refused = hand.connects("p", will=Will(topic, b"{}", 1, False))
    assert refused.ended and refused.last(Connack).reason_code == 0x90
    stored = Message(topic, b"{}", 1, False, "p", 5, 0)
    assert not hand.broker.publishing.accept_own(stored, Own(Origin(1, 0), Principal("", "p")))
    hand.settle()
    assert not hand.records and hand.state.counters.publishes_refused == 1


@pytest.mark.parametrize("topic", RECORDED)
@pytest.mark.parametrize("by_will", [False, True])
def test_message_expiry_counts_from_the_moment_of_publishing(topic: str, by_will: bool) -> None:
    hand = Hand()
    said = Properties(message_expiry_interval=60)
    link = hand.connects("p", will=Will(topic, b"x", 1, False, said))
    hand.passes(s=30)
    if by_will:
        link.drops()
    else:
        link.does(Publish(topic, b"x", 1, 1, properties=said))
    hand.settle()
    (expires_ms,) = [message.expires_ms for message in hand.records]
    assert expires_ms == hand.state.tick.now_ms + 60_000


@pytest.mark.parametrize("version", [ProtocolVersion.V31, ProtocolVersion.V311])
@pytest.mark.parametrize("topic", RECORDED)
def test_an_old_client_loses_its_connection_where_a_new_one_is_told(
    topic: str, version: ProtocolVersion
) -> None:
    hand = Hand(MqttSettings(payload_bytes_max=10))
    link = hand.connects("p", version=version)
    publish(link, topic, 1, payload=bytes(11))
    hand.settle()
    assert link.ended and not codes(link)
