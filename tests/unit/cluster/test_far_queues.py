"""Durable queues of another slot: what their clients see is what they would see on one broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.hand_driven import HandLink
from tests.support.two_nodes import HERE, SLOTS, THERE, TwoNodes, queue_of

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules_file import read_rules
from embermq.cluster.far_member import UNSENT_BYTES_MAX, WAITING_BYTES_MAX
from embermq.cluster.members import RETRY_MS, TRIES, Members
from embermq.formats.log_record import FIELD_RULES, replayed_in, slot_in
from embermq.intake.replaying import Replaying
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.mqtt.wire.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.queues.errors import SettingsRefused
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.settings import BrokerQueueSettings, operator_settings

FAR, NEAR = queue_of(THERE), queue_of(HERE)
TOPIC = f"$queue/{FAR}"
V5, V311 = ProtocolVersion.V5, ProtocolVersion.V311
JOINED_MS = 2_000
"""Consumers that come wait for others to come."""
FULL = ReasonCode.QUOTA_EXCEEDED
FAILED = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


def told(link: HandLink) -> list[tuple[type, int, int]]:
    """The answers that publishers get."""
    answers = (each for each in link.received if isinstance(each, Puback | Pubrec | Pubcomp))
    return [(type(each), each.packet_id, each.reason_code) for each in answers]


def user_properties(packet: Publish) -> dict[str, str]:
    assert packet.properties is not None
    return dict(packet.properties.user_properties)


def consumes(nodes: TwoNodes, link: HandLink, topic: str = TOPIC, *said: tuple[str, str]) -> Suback:
    link.does(Subscribe(5, (Subscription(topic, 1),), Properties(user_properties=said) if said else None))
    nodes.settle()
    nodes.passes(ms=JOINED_MS)
    return link.last(Suback)


def settles(link: HandLink, verb: str, message: Publish, packet_id: int, *said: tuple[str, str]) -> None:
    named = ("message-id", user_properties(message)["message-id"])
    link.does(
        Publish(f"{TOPIC}/{verb}", b"", 1, packet_id, properties=Properties(user_properties=(named, *said)))
    )


def depth(nodes: TwoNodes) -> int:
    return nodes.there.durable_queue(FAR).depth()


def test_the_acknowledgement_comes_when_the_slot_of_the_queue_has_the_message() -> None:
    nodes = TwoNodes()
    client = nodes.here.connects("p")
    nodes.there.held = True
    said = Properties(user_properties=(("partition-key", "k"), ("x", "y")), message_expiry_interval=60)
    client.does(Publish(TOPIC, b"1", 1, 7, properties=said))
    nodes.settle()
    assert not told(client)
    nodes.there.held = False
    nodes.there.finish_commit()
    nodes.settle()
    assert told(client) == [(Puback, 7, 0)]
    (record,) = nodes.there.recorded()
    message = record.message
    assert (message.topic, message.payload, message.publisher) == (TOPIC, b"1", "p")
    assert message.properties is not None and ("x", "y") in message.properties.user_properties
    assert not nodes.here.recorded() and client.unanswered == 0
    assert FAR not in nodes.here.queues.core and depth(nodes) == 1


def test_qos_2_is_exact_also_over_connections() -> None:
    nodes = TwoNodes()
    client = nodes.here.keeps("p")
    client.does(Publish(TOPIC, b"1", 2, 7), Publish(TOPIC, b"2", 2, 8))
    nodes.settle()
    assert told(client) == [(Pubrec, 7, 0), (Pubrec, 8, 0)]
    client.does(Pubrel(7))
    nodes.settle()
    assert told(client)[2:] == [(Pubcomp, 7, 0)] and client.unanswered == 1
    client.drops()
    again = nodes.here.keeps("p")
    again.does(Publish(TOPIC, b"2", 2, 8, dup=True))
    nodes.settle()
    again.does(Pubrel(8))
    nodes.settle()
    assert told(again) == [(Pubrec, 8, 0), (Pubcomp, 8, 0)] and again.unanswered == 0
    again.does(Publish(TOPIC, b"3", 2, 8))
    nodes.settle()
    again.drops()
    last = nodes.here.keeps("p")
    last.does(Pubrel(8))
    nodes.settle()
    assert told(last) == [(Pubcomp, 8, 0)], "no slot holds it any more"
    for packet in (Pubrel(8), Publish(TOPIC, b"4", 2, 8)):
        last.does(packet)
        nodes.settle()
    assert told(last)[1:] == [(Pubcomp, 8, 0x92), (Pubrec, 8, 0)]
    assert [record.message.payload for record in nodes.there.recorded()] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("version", [V5, V311])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_queue_refuses_is_told_as_its_client_can_hear_it(version: ProtocolVersion, qos: int) -> None:
    nodes = TwoNodes()
    nodes.there.queues.core.configure(operator_settings(FAR, {"limits": {"max_queue_depth": 1}}))
    client = nodes.here.connects("p", version=version)
    client.does(Publish(TOPIC, b"1", qos, 1), Publish(TOPIC, b"2", qos, 2))
    nodes.settle()
    kind = Puback if qos == 1 else Pubrec
    if version is V311:
        assert told(client) == [(kind, 1, 0)] and client.ended
        return
    assert told(client) == [(kind, 1, 0), (kind, 2, FULL)]
    answer = client.last(kind)
    assert isinstance(answer, Puback | Pubrec)
    assert answer.properties is not None and FAR in (answer.properties.reason_string or "")
    assert client.unanswered == qos - 1 and not client.ended


@pytest.mark.parametrize("version", [V5, V311])
def test_while_the_slot_has_no_node_messages_for_its_queues_are_refused(version: ProtocolVersion) -> None:
    nodes = TwoNodes()
    nodes.has_node = False
    client = nodes.here.connects("p", version=version)
    client.does(Publish(TOPIC, b"1", 1, 1))
    for _ in range(TRIES - 1):
        nodes.settle()
        assert not told(client) and not client.ended
        nodes.passes(ms=RETRY_MS)
    if version is V311:
        assert client.ended
        return
    assert told(client) == [(Puback, 1, FULL)] and client.unanswered == 0
    client.does(Publish(TOPIC, b"2", 1, 2))
    nodes.has_node = True
    nodes.passes(ms=RETRY_MS)
    assert told(client)[1:] == [(Puback, 2, 0)]


def test_a_message_that_may_have_been_stored_ends_the_connection_with_the_link() -> None:
    nodes = TwoNodes()
    client, idle = nodes.here.keeps("p"), nodes.here.keeps("i")
    for link in (client, idle):
        link.does(Publish(TOPIC, b"1", 1, 1))
    nodes.settle()
    nodes.there.held = True
    client.does(Publish(TOPIC, b"2", 1, 2))
    nodes.settle()
    for entry in list(nodes.links):
        nodes.cut(entry)
    nodes.settle()
    assert client.last(Disconnect).reason_code == FAILED and told(client) == [(Puback, 1, 0)]
    assert not idle.ended


def test_what_waits_for_a_node_has_a_limit() -> None:
    nodes = TwoNodes()
    client = nodes.here.connects("p")
    payload = bytes(UNSENT_BYTES_MAX // 2 + 1)
    client.does(*(Publish(TOPIC, payload, 1, packet_id) for packet_id in (1, 2, 3)))
    nodes.here.settle()
    assert told(client) == [(Puback, 3, FULL)]


def test_what_a_client_has_no_room_for_is_not_read_without_end() -> None:
    nodes = TwoNodes()
    client = nodes.here.connects("w", receive_maximum=3, acknowledges=False)
    consumes(nodes, client)
    ((link, side, _),) = nodes.links
    client.paused = True
    payload = bytes(WAITING_BYTES_MAX // 2)
    nodes.there.connects("p").publishes(TOPIC, payload, payload)
    nodes.settle()
    assert (side.is_paused, client.messages) == (True, [])
    assert link.member.waiting_bytes > WAITING_BYTES_MAX
    client.paused = False
    nodes.here.members.writable(client)
    nodes.settle()
    assert (side.is_paused, len(client.messages), link.member.waiting_bytes) == (False, 2, 0)


def test_what_came_before_this_node_stood_still_waits_until_it_is_sure_of_its_slot() -> None:
    """Another node may have its slot, and the queue has given the message to somebody else."""
    nodes = TwoNodes()
    asked: list[Callable[[], None]] = []
    nodes.here.members = Members(nodes.here.state, HERE, SLOTS, nodes.here.calls.append, asked.append)
    nodes.here.state.share.members = nodes.here.members
    client = nodes.here.connects("w")
    consumes(nodes, client)
    nodes.here.state.stood_still()
    nodes.there.connects("p").publishes(TOPIC, b"1")
    nodes.settle()
    assert not client.messages
    (sure,) = asked
    sure()
    nodes.settle()
    assert client.payloads == [b"1"]


def test_rights_are_those_of_the_client() -> None:
    text = """
    [[rule]]
    user = ["may"]
    allow = ["publish", "subscribe", "create"]
    [[rule]]
    user = ["makes-none"]
    allow = ["publish", "subscribe"]
    """
    nodes = TwoNodes(RuleSet(read_rules(text, "r"), no_match_allows=False))
    denied, makes_none, may = (
        nodes.here.connects(name, user=name) for name in ("denied", "makes-none", "may")
    )
    for link in (denied, makes_none, may, makes_none):
        link.does(Publish(TOPIC, b"x", 1, 1), Publish(TOPIC, b"0", 0))
        nodes.settle()
        nodes.read_logs()
    refused = (Puback, 1, ReasonCode.NOT_AUTHORIZED)
    assert told(denied) == [refused]
    assert told(makes_none) == [refused, (Puback, 1, 0)]
    assert told(may) == [(Puback, 1, 0)]
    assert depth(nodes) == 4, "with QoS 0 no more than with QoS 1"


def test_qos_0_and_wills_go_by_the_log_and_once() -> None:
    nodes = TwoNodes()
    client = nodes.here.connects("p", will=Will(TOPIC, b"will", 1, True))
    client.does(Publish(TOPIC, b"0"), Publish(f"$queue/{NEAR}", b"near", 1, 1))
    nodes.settle()
    client.drops()
    nodes.settle()
    for _ in range(2):
        nodes.read_logs()
    assert sorted(record.message.payload for record in nodes.there.recorded()) == [b"0", b"will"]
    assert depth(nodes) == 2 and nodes.here.durable_queue(NEAR).depth() == 1
    assert NEAR not in nodes.there.queues.core
    assert not nodes.there.inflow.refused


def test_what_comes_by_the_log_for_a_queue_is_counted_where_queues_are_off() -> None:
    nodes = TwoNodes()
    nodes.there.state.queues = MqttQueues(
        nodes.there.state,
        BrokerQueueSettings(enabled=False),
        nodes.there.bodies_read,
        lambda _, then: then(0),
    )
    client = nodes.here.connects("p")
    client.does(Publish(TOPIC, b"sample", 0), Publish(f"$queue/{NEAR}", b"own", 0))
    nodes.settle()
    nodes.read_logs()
    assert nodes.there.state.counters.publishes_refused == 1, "the other queue is not of this slot"


@pytest.mark.promise("cluster-21")
def test_what_a_rule_makes_for_a_queue_of_another_slot_goes_by_the_log_and_once() -> None:
    """The rule of that slot does not see it as a message of its own log."""
    nodes = TwoNodes()
    rules = Replaying(nodes.here.state, nodes.here.broker.publishing)
    rules.begin_rule("hot", {0: 0})
    made = [
        (number, ((FIELD_RULES, b"hot"),), Message(topic, b"%d" % number, 1, False, "rule:hot", 5, 0))
        for number, topic in enumerate((TOPIC, f"$queue/{NEAR}", TOPIC))
    ]
    for _ in range(2):  # asked for again
        assert rules.take_of_rule("hot", 0, made, 3) is None
        nodes.settle()
        nodes.read_logs()
    assert rules.places_of_rule("hot") == {0: 3}
    (first, second) = nodes.there.recorded()
    assert [first.message.payload, second.message.payload] == [b"0", b"2"]
    assert slot_in(first) == (HERE, 0) and depth(nodes) == 2
    assert (FIELD_RULES, b"hot") in first.unknown_fields and replayed_in(first) is None
    assert nodes.here.durable_queue(NEAR).depth() == 1 and NEAR not in nodes.there.queues.core


def test_a_will_cannot_go_to_responses_of_another_slot() -> None:
    nodes = TwoNodes()
    client = nodes.here.connects("p", will=Will(f"$queue/{queue_of(THERE, 'responses/x')}", b"w"))
    nodes.settle()
    assert client.ended


@pytest.mark.parametrize("name", [FAR, f"dlq/{FAR}"])
def test_a_consumer_is_one_of_the_queues_slot(name: str) -> None:
    nodes = TwoNodes()
    client = nodes.here.keeps("worker-1")
    suback = consumes(nodes, client, f"$queue/{name}", ("prefetch", "500"))
    assert suback.reason_codes == (1,)
    assert suback.properties is not None and "500" in (suback.properties.reason_string or "")
    assert name not in nodes.here.queues.core
    assert list(nodes.there.durable_queue(name).groups) == ["worker"], "by the client's id"
    client.does(Unsubscribe(6, (f"$queue/{name}",)))
    nodes.settle()
    assert client.last(Unsuback).reason_codes == (0,)


@pytest.mark.parametrize("kind", ClientType)
def test_it_settles_and_gets_again_what_it_has_not_done(kind: ClientType) -> None:
    nodes = TwoNodes()
    client = nodes.here.keeps("worker-1", client_type=kind)
    consumes(nodes, client, f"$share/g/{TOPIC}")
    nodes.there.connects("p").publishes(TOPIC, b"1", b"2")
    nodes.settle()
    first, second = client.messages
    assert [first.payload, second.payload] == [b"1", b"2"]
    assert user_properties(first)["group-id"] == "g" and user_properties(first)["delivery-count"] == "1"
    assert all(message.packet_id % 2 == THERE for message in client.messages)
    settles(client, "$ack", first, 21)
    settles(client, "$nack", second, 22)
    nodes.settle()
    assert told(client) == [(Puback, 21, 0), (Puback, 22, 0)]
    assert depth(nodes) == 1
    again = client.messages[-1]
    assert (again.payload, user_properties(again)["delivery-count"], again.dup) == (b"2", "2", False)
    client.drops()
    nodes.settle()
    back = nodes.here.keeps("worker-1")
    nodes.passes(ms=10)
    settles(back, "$ack", again, 23)
    nodes.settle()
    assert told(back) == [(Puback, 23, 0)] and depth(nodes) == 0


def test_one_of_mqtt_3_settles_by_its_acknowledgement() -> None:
    nodes = TwoNodes()
    client = nodes.here.connects("w", version=V311, acknowledges=False)
    assert consumes(nodes, client).reason_codes == (1,)
    nodes.here.connects("p").publishes(TOPIC, b"1")
    nodes.settle()
    (message,) = client.messages
    assert message.properties is None and depth(nodes) == 1
    client.does(Puback(message.packet_id))
    nodes.settle()
    assert depth(nodes) == 0


def test_responses_find_who_asked_and_a_lost_link_ends_the_connection() -> None:
    nodes = TwoNodes()
    topic = f"$queue/{queue_of(THERE, 'responses/x')}"
    client = nodes.here.keeps("asks")
    assert consumes(nodes, client, topic).reason_codes == (1,)
    for hand in nodes.hands:
        hand.connects("answers").does(Publish(topic, b"r", 1, 1))
    nodes.settle()
    assert client.payloads == [b"r", b"r"]
    client.drops()
    nodes.settle()
    other = nodes.here.connects("asks")
    assert consumes(nodes, other, topic).reason_codes == (1,), "it is the same client"
    for entry in list(nodes.links):
        nodes.cut(entry)
    nodes.settle()
    assert other.last(Disconnect).reason_code == FAILED


def test_what_a_group_starts_at_is_found_in_the_log_of_its_slot() -> None:
    nodes = TwoNodes()
    nodes.there.connects("p").publishes(TOPIC, b"1")
    nodes.settle()
    client = nodes.here.connects("w")
    suback = consumes(nodes, client, TOPIC, ("start-position", "2020-01-01T00:00:00Z"))
    assert suback.reason_codes == (1,) and client.payloads == [b"1"]


def test_settings_of_a_queue_are_changed_at_its_slot_and_dead_letters_stay_there() -> None:
    nodes = TwoNodes()
    core = nodes.here.queues.core
    with pytest.raises(SettingsRefused, match="belongs to another slot"):
        core.configure(operator_settings(FAR, {}))
    with pytest.raises(SettingsRefused, match=f"dlq_config.topic: dlq/{FAR} belongs to another slot"):
        core.configure(operator_settings(NEAR, {"dlq_config": {"topic": f"$queue/dlq/{FAR}"}}))
    core.configure(operator_settings(NEAR, {}))
    assert NEAR in core and FAR not in core
