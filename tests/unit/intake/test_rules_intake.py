"""Messages of rules: each number once, whatever is asked for again, refused or lost."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.hand_driven import HandDrivenBroker
from tests.support.stand_in_store import StandInQueueStore

from embermq.admin.errors import OperationRefused, RequestRefused
from embermq.admin.replay_desk import RuleFeedDesk
from embermq.admin.values import RuleFeedRequest, RuleFeedTaken, RuleMessage
from embermq.formats.log_record import FIELD_RULES, decode_record, encode_record, iter_frames
from embermq.model.message import Message
from embermq.ports.errors import StoreFull
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.settings import BrokerQueueSettings
from embermq.sessions.settings import MqttSettings

RULE = "hot"


def message(number: int, topic: str = "t", chain: bytes = b"cold,hot") -> RuleMessage:
    made = Message(topic, b"%d" % number, 1, False, "rule:hot", 5, 0)
    return RuleMessage(number=number, record=encode_record(made, unknown_fields=((FIELD_RULES, chain),)))


def asked(hand: HandDrivenBroker, **words: Any) -> RuleFeedTaken:
    ticks: Any = SimpleNamespace(look_at_clock=lambda: None, wake=lambda: None)
    desk = RuleFeedDesk(hand.broker, ticks)

    async def answer() -> RuleFeedTaken:
        found = asyncio.ensure_future(desk.take(RuleFeedRequest(rule=RULE, **words)))
        while not found.done():
            await asyncio.sleep(0)
            hand.run()
        return await found

    return asyncio.run(answer())


def stored(hand: HandDrivenBroker) -> list[tuple[bytes, list[bytes]]]:
    records = [
        decode_record(frame)
        for _, records, _ in hand.store.batches
        for frame in iter_frames(b"".join(records))
    ]
    return [
        (one.message.payload, [value for tag, value in one.unknown_fields if tag == FIELD_RULES])
        for one in records
    ]


@pytest.mark.promise("pipeline-2")
def test_each_number_is_taken_once_also_by_the_next_broker() -> None:
    hand = HandDrivenBroker()
    assert asked(hand) == RuleFeedTaken(next={})
    assert asked(hand, begin={0: 100}) == RuleFeedTaken(next={0: 100})
    assert asked(hand, begin={0: 7}) == RuleFeedTaken(next={0: 100}), "it has begun"
    piece = (message(90), message(101), message(105))
    assert asked(hand, messages=piece, end=106) == RuleFeedTaken(next={0: 106})
    assert asked(hand, messages=piece, end=106) == RuleFeedTaken(next={0: 106})
    assert asked(hand, end=200) == RuleFeedTaken(next={0: 200})
    marked = [b"cold,hot"]
    assert stored(hand) == [(b"101", marked), (b"105", marked)]
    assert hand.state.counters.messages_of_rules == 2
    hand = hand.restarted()
    assert asked(hand) == RuleFeedTaken(next={0: 200})
    assert asked(hand, messages=(message(199), message(200)), end=201) == RuleFeedTaken(next={0: 201})
    assert [payload for payload, _ in stored(hand)] == [b"101", b"105", b"200"]


@pytest.mark.promise("pipeline-2")
def test_each_partition_of_the_log_has_a_number_of_its_own() -> None:
    hand = HandDrivenBroker()
    assert asked(hand, begin={0: 100, 1: 5}) == RuleFeedTaken(next={0: 100, 1: 5})
    assert asked(hand, messages=(message(100),), end=101) == RuleFeedTaken(next={0: 101, 1: 5})
    other = (message(4), message(5), message(6))
    assert asked(hand, partition=1, messages=other, end=7) == RuleFeedTaken(next={0: 101, 1: 7})
    with pytest.raises(OperationRefused, match="has not begun in partition 2"):
        asked(hand, partition=2, end=3)
    assert asked(hand, begin={0: 0, 1: 0, 2: 0}) == RuleFeedTaken(next={0: 101, 1: 7, 2: 0})
    hand = hand.restarted()
    assert asked(hand, partition=1, messages=other, end=7) == RuleFeedTaken(next={0: 101, 1: 7, 2: 0})
    assert [payload for payload, _ in stored(hand)] == [b"100", b"5", b"6"]


def test_what_is_refused_or_not_stored_is_not_counted() -> None:
    hand = HandDrivenBroker()
    asked(hand, begin={0: 0})
    hand.failures = [StoreFull("no room")]
    piece = (message(1), message(2))
    lost = asked(hand, messages=piece, end=3)
    assert (lost.next, lost.passes) == ({0: 1}, True) and not stored(hand)
    assert asked(hand, messages=piece, end=3) == RuleFeedTaken(next={0: 3})
    never = asked(hand, messages=(message(4), message(5, topic="$SYS/x"), message(6)), end=7)
    assert (never.next, never.passes) == ({0: 5}, False) and "$SYS" in never.refused
    assert asked(hand, messages=(message(6),), end=7) == RuleFeedTaken(next={0: 7})
    assert [payload for payload, _ in stored(hand)] == [b"1", b"2", b"4", b"6"]


def test_what_is_no_message_of_the_rule_is_refused() -> None:
    hand = HandDrivenBroker()
    with pytest.raises(OperationRefused, match="has not begun"):
        asked(hand, end=3)
    asked(hand, begin={0: 0})
    for bad, why in (
        ((message(2), message(2)), "number 2 is not behind 2"),
        ((RuleMessage(number=1, record=b"none"),), "messages: "),
        ((message(1, chain=b"cold"),), "does not say that it comes of hot"),
    ):
        with pytest.raises(RequestRefused, match=why):
            asked(hand, messages=bad, end=9)
    assert not stored(hand)


def test_limits_of_the_settings_hold_for_rules() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(payload_bytes_max=1))
    asked(hand, begin={0: 0})
    found = asked(hand, messages=(message(1), message(22)), end=23)
    assert (found.next, found.passes, found.is_of_queue) == ({0: 22}, False, False)
    assert "a payload of 2 bytes, the largest allowed is 1" in found.refused
    hand = HandDrivenBroker(mqtt=MqttSettings(max_qos=0))
    asked(hand, begin={0: 0})
    assert "QoS 1, the maximum is 0" in asked(hand, messages=(message(1),), end=2).refused


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (BrokerQueueSettings(enabled=False), "durable queues are switched off"),
        (BrokerQueueSettings(auto_create=False), "there is no queue 'kept', and none is made by being used"),
    ],
)
def test_a_queue_that_takes_nothing_is_told_from_a_message_that_is_wrong(
    settings: BrokerQueueSettings, why: str
) -> None:
    hand = HandDrivenBroker()
    hand.state.queues = MqttQueues(
        hand.state, settings, StandInQueueStore(hand.store), lambda _ms, then: then(0)
    )
    asked(hand, begin={0: 0})
    found = asked(hand, messages=(message(1, topic="$queue/kept"),), end=2)
    assert (found.next, found.is_of_queue) == ({0: 1}, True) and why in found.refused
    assert not stored(hand)
