"""What a session has of queues, over connections: what is sent once, what is sent again, what is settled."""

from __future__ import annotations

from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.stand_in_store import StandInQueueStore

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules_file import read_rules
from embermq.mqtt.wire.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from embermq.mqtt.wire.properties import Properties
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.settings import BrokerQueueSettings, parse_settings

TOPIC = "$queue/work"


class Hand(HandDrivenBroker):
    """With queues."""

    def __init__(self, settings: BrokerQueueSettings | None = None) -> None:
        super().__init__()
        self.queues = MqttQueues(
            self.state,
            settings or BrokerQueueSettings(),
            StandInQueueStore(self.store),
            lambda _ms, then: then(0),
        )
        self.state.queues = self.queues

    def run(self) -> None:
        self.queues.run()
        super().run()

    def rests(self) -> None:
        for _ in range(3):
            self.settle()

    def publishes(self, topic: str, *payloads: bytes, qos: int = 1) -> None:
        self.connects("p").publishes(topic, *payloads, qos=qos)
        self.rests()


def consumes(link: HandLink, topic: str, qos: int = 1, **said: str) -> None:
    pairs = tuple((name.replace("_", "-"), value) for name, value in said.items())
    link.does(Subscribe(9, (Subscription(topic, qos),), Properties(user_properties=pairs) if pairs else None))
    link.hand.settle()
    assert link.last(Suback).reason_codes == (qos,)


def test_what_is_handed_out_again_before_it_was_sent_is_sent_once() -> None:
    hand = Hand()
    link = hand.connects("c", receive_maximum=1, acknowledges=False)
    link.subscribes("plain")
    consumes(link, TOPIC)
    consumes(link, "$queue/other")
    hand.publishes("plain", b"plain")
    hand.publishes(TOPIC, b"work")
    link.unsubscribes(TOPIC)
    consumes(link, TOPIC)
    hand.rests()
    for _ in range(3):
        link.does(Puback(link.messages[-1].packet_id))
        hand.rests()
    assert link.payloads == [b"plain", b"work"]


def test_what_was_sent_with_qos_0_and_never_left_is_sent_again() -> None:
    hand = Hand(BrokerQueueSettings(allow_ack_mode_none=True))
    link = hand.keeps("c")
    consumes(link, TOPIC, 0, ack_mode="none")
    link.dropped = True
    hand.publishes(TOPIC, b"work")
    link.drops()
    hand.rests()
    again = hand.keeps("c")
    hand.rests()
    assert again.payloads == [b"work"]


def test_a_pubcomp_settles_after_whatever_number_of_connections() -> None:
    hand = Hand()
    link = hand.keeps("c", acknowledges=False)
    consumes(link, TOPIC, 2, ack_mode="puback")
    hand.publishes(TOPIC, b"work", qos=2)
    (message,) = link.messages
    link.does(Pubrec(message.packet_id))
    hand.rests()
    for _ in range(2):
        link.drops()
        hand.rests()
        link = hand.keeps("c", acknowledges=False)
        hand.rests()
        assert link.last(Pubrel).packet_id == message.packet_id and not link.messages
    link.does(Pubcomp(message.packet_id))
    hand.rests()
    queue = hand.queues.core.find("work")
    assert queue is not None and queue.counts.acked == 1 and not queue.entries


def test_who_comes_back_makes_no_queue_that_it_may_not_make() -> None:
    hand = Hand(BrokerQueueSettings(auto_create=False))
    hand.queues.core.configure(parse_settings("work", b"{}"))
    link = hand.keeps("c")
    consumes(link, TOPIC)
    link.drops()
    hand.rests()
    hand.queues.core.leave("work", "c", "c", hand.now_ms)
    assert hand.queues.core.delete("work")
    hand.rests()
    again = hand.keeps("c")
    hand.rests()
    assert hand.queues.core.find("work") is None and not again.ended
    hand.queues.core.configure(parse_settings("work", b"{}"))
    hand.publishes(TOPIC, b"work")
    assert again.payloads == [b"work"], "it has been subscribed all the time"


def test_who_has_left_is_not_waited_for_when_a_queue_is_made_again() -> None:
    hand = Hand(BrokerQueueSettings(auto_create=False))
    for leaves in ("unsubscribes", "drops"):
        hand.queues.core.configure(parse_settings("work", b"{}"))
        link = hand.keeps("c")
        consumes(link, TOPIC)
        link.drops()
        hand.rests()
        hand.queues.core.leave("work", "c", "c", hand.now_ms)
        assert hand.queues.core.delete("work")
        hand.rests()
        again = hand.keeps("c")
        hand.rests()
        if leaves == "drops":
            again.drops()
        else:
            again.unsubscribes(TOPIC)
        assert not hand.queues.subscriptions._homeless
        hand.queues.core.configure(parse_settings("work", b"{}"))
        hand.rests()
        queue = hand.queues.core.find("work")
        assert queue is not None and not queue.groups
        assert hand.queues.core.delete("work")
        again.drops()
        hand.rests()


def test_who_may_receive_again_is_a_consumer_again() -> None:
    hand = Hand()
    link = hand.connects("c", user="u")
    consumes(link, TOPIC)
    text = '[[rule]]\ndeny = "receive"\nuser = "u"\ntopics = "$queue/#"\n'
    hand.broker.authorize(RuleSet(read_rules(text, "r.toml"), no_match_allows=True))
    hand.publishes(TOPIC, b"1")
    assert not link.payloads and hand.state.counters.deliveries_denied == 1
    hand.broker.authorize(RuleSet(read_rules(text, "r.toml"), no_match_allows=True))
    hand.rests()
    assert hand.state.counters.deliveries_denied == 1, "it takes no part"
    hand.broker.authorize(RuleSet(read_rules("", "r.toml"), no_match_allows=True))
    hand.rests()
    assert link.payloads == [b"1"]


def test_the_end_of_the_broker_is_no_failure_of_its_consumers() -> None:
    hand = Hand()
    link, kept = hand.connects("c"), hand.keeps("k")
    for each in (link, kept):
        consumes(each, TOPIC)
    hand.publishes(TOPIC, b"work")
    assert link.payloads == kept.payloads == [b"work"]
    hand.queues.stop()
    assert hand.queues.next_due_ms() is None
    for each in (link, kept):
        each.drops()
    hand.rests()
    hand.passes(s=60)
    queue = hand.queues.core.find("work")
    assert queue is not None
    for group in queue.groups.values():
        assert group.attempts_of(1).failures == 0
    assert not hand.store.queues.marks


def test_a_late_error_is_of_its_own_delivery_alone() -> None:
    hand = Hand()
    hand.queues.core.configure(parse_settings("work", b'{"retry_policy": {"initial_backoff": "0s"}}'))
    link = hand.connects("c", acknowledges=False)
    consumes(link, TOPIC, ack_mode="puback")
    hand.publishes(TOPIC, b"work")
    hand.passes(s=31)
    hand.rests()
    first, second = link.messages
    link.does(Puback(first.packet_id, 0x99))
    hand.rests()
    assert hand.queues.core.find("dlq/work") is None and len(link.messages) == 2
    link.does(Puback(second.packet_id, 0x99))
    hand.rests()
    assert hand.queues.core.find("dlq/work") is not None


def test_what_waits_for_room_in_a_window_is_given_back_after_a_lease() -> None:
    hand = Hand()
    full = hand.connects("g-1", receive_maximum=1, acknowledges=False)
    full.subscribes("plain")
    hand.publishes("plain", b"plain")
    consumes(full, TOPIC)
    hand.publishes(TOPIC, b"work")
    hand.passes(s=31)
    hand.rests()
    assert hand.state.counters.queue_consumers_stalled == 1
    other = hand.connects("g-2")
    consumes(other, TOPIC)
    hand.rests()
    assert (other.payloads, full.payloads) == ([b"work"], [b"plain"])
    full.does(Puback(full.messages[0].packet_id))
    hand.rests()
    hand.passes(s=1)
    hand.publishes(TOPIC, *(b"%d" % number for number in range(10)))
    assert len(full.payloads) == 2, "it takes part again"


def test_a_record_that_the_log_does_not_take_is_refused_alone() -> None:
    hand = Hand()
    hand.state.record_bytes_sure = 1_000
    hand.state.record_objection = lambda record: "too large" if len(record) > 2_000 else ""
    link = hand.connects("p", will=Will(TOPIC, bytes(5_000), 1, False, None))
    link.does(Publish(TOPIC, bytes(5_000), 1, 1, False), Publish(TOPIC, b"small", 1, 2, False))
    hand.rests()
    assert [(each.packet_id, each.reason_code) for each in link.all(Puback)] == [(1, 0x97), (2, 0)]
    link.drops()
    hand.rests()
    queue = hand.queues.core.find("work")
    assert queue is not None and len(queue.entries) == 1
    assert hand.state.counters.publishes_refused == 2


def test_a_queue_has_no_more_groups_than_it_may() -> None:
    hand = Hand(BrokerQueueSettings(groups_max=2))
    for client in ("a", "b"):
        consumes(hand.connects(client), TOPIC)
    late = hand.connects("c")
    assert late.subscribes(TOPIC) == (0x97,)
    told = late.last(Suback).properties
    assert told is not None and "(queues.groups_max); 'c' would be one more" in (told.reason_string or "")
    consumes(late, TOPIC, consumer_group="a")
    queue = hand.queues.core.find("work")
    assert queue is not None and sorted(queue.groups) == ["a", "b"]
