"""The topics below $SYS/events: who gets what happens at the door."""

from __future__ import annotations

from functools import partial

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules_file import read_rules
from embermq.mqtt.wire.packets import Suback
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.client_events import ClientEvent

ALL = '[[rule]]\nallow = "all"\n'
NAMED = '[[rule]]\nallow = "read"\nuser = "ops"\ntopics = "$SYS/events/#"\n'


def rules(text: str, *, otherwise: bool = False) -> RuleSet:
    return RuleSet(read_rules(text, "rules.toml"), no_match_allows=otherwise)


@pytest.fixture
def hand() -> HandDrivenBroker:
    """Tells its events at once, without a rate."""
    hand = HandDrivenBroker()
    hand.state.tell = partial(_tell, hand)
    return hand


def _tell(hand: HandDrivenBroker, event: ClientEvent) -> None:
    if hand.broker.events.is_wanted(event.kind.value):
        hand.broker.events.tell(event.kind.value, event.client_id.encode())


def told(link: HandLink) -> list[tuple[str, bytes, int, bool]]:
    return [(one.topic, one.payload, one.qos, one.retain) for one in link.messages]


def test_who_is_named_gets_them_and_they_stay_nowhere(hand: HandDrivenBroker) -> None:
    hand.broker.authorize(rules(NAMED + ALL))
    ops = hand.connects("ops", user="ops")
    ops.subscribes("$SYS/events/#", qos=2)
    assert ops.last(Suback).reason_codes == (2,)
    hand.connects("c1").leaves()
    hand.settle()
    assert told(ops) == [
        ("$SYS/events/connected", b"c1", 0, False),
        ("$SYS/events/disconnected", b"c1", 0, False),
    ]
    ops.leaves()
    later = hand.connects("ops", user="ops")
    later.subscribes("$SYS/events/#")
    hand.settle()
    assert told(later) == []


@pytest.mark.parametrize("text", [ALL, ALL + '[[rule]]\nallow = "read"\ntopics = ["#", "$SYS/#"]\n', ""])
@pytest.mark.parametrize(
    "topic_filter", ["$SYS/#", "$SYS/events/#", "$SYS/+/connected", "$share/g/$SYS/events/+"]
)
def test_nothing_but_a_name_gives_the_right(hand: HandDrivenBroker, text: str, topic_filter: str) -> None:
    hand.broker.authorize(rules(text, otherwise=True))
    watcher = hand.connects("w", user="ops")
    watcher.subscribes(topic_filter)
    hand.connects("c1")
    hand.settle()
    assert told(watcher) == []


@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
def test_without_rules_nobody_has_the_right(hand: HandDrivenBroker, version: ProtocolVersion) -> None:
    watcher = hand.connects("w", version=version)
    watcher.subscribes("$SYS/events/#", "$share/g/$SYS/events/connected", "$SYS/#")
    denied = ReasonCode.NOT_AUTHORIZED if version is ProtocolVersion.V5 else 0x80
    assert watcher.last(Suback).reason_codes[:2] == (denied, denied)
    hand.connects("c1")
    hand.settle()
    assert [one for one in told(watcher) if one[0].startswith("$SYS/events")] == []


def test_wildcards_in_front_do_not_match_them(hand: HandDrivenBroker) -> None:
    hand.broker.authorize(rules(NAMED + ALL))
    ops = hand.connects("ops", user="ops")
    ops.subscribes("#", "+/events/#")
    hand.connects("c1")
    hand.settle()
    assert told(ops) == []


def test_nobody_publishes_there(hand: HandDrivenBroker) -> None:
    hand.broker.authorize(rules('[[rule]]\nallow = "all"\ntopics = "$SYS/events/#"\n' + ALL))
    ops = hand.connects("ops", user="ops")
    ops.subscribes("$SYS/events/#")
    other = hand.connects("c1")
    hand.settle()
    ops.forgets()
    other.publishes("$SYS/events/connected", b"forged", qos=1)
    hand.settle()
    assert b"forged" not in [payload for _, payload, _, _ in told(ops)]


def test_a_right_that_is_taken_is_gone_at_once(hand: HandDrivenBroker) -> None:
    hand.broker.authorize(rules(NAMED + ALL))
    ops = hand.connects("ops", user="ops")
    ops.subscribes("$SYS/events/#")
    hand.broker.authorize(rules(ALL))
    hand.connects("c1")
    hand.settle()
    assert told(ops) == []
