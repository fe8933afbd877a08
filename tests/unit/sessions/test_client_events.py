"""What the broker tells of clients: who came, who left and why, who was refused what."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker

from embermq.access.authorization.rule_set import RuleSet
from embermq.mqtt.wire.packets import Disconnect, Will
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.client_events import ClientEvent, EventKind

CONNECTED, DISCONNECTED, DENIED, REFUSED = (
    EventKind.CONNECTED,
    EventKind.DISCONNECTED,
    EventKind.DENIED,
    EventKind.REFUSED,
)


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


@pytest.fixture
def told(hand: HandDrivenBroker) -> list[ClientEvent]:
    found: list[ClientEvent] = []
    hand.state.tell = found.append
    return found


def test_a_client_comes_and_leaves(hand: HandDrivenBroker, told: list[ClientEvent]) -> None:
    link = hand.connects("c1", user="ann", version=ProtocolVersion.V311, expiry_s=0)
    link.leaves()
    came, left = told
    assert (came.kind, came.client_id, came.user, came.peer) == (CONNECTED, "c1", "ann", "test")
    assert (came.protocol, came.session_present) == ("3.1.1", False)
    assert (left.kind, left.client_id, left.user, left.reason) == (
        DISCONNECTED,
        "c1",
        "ann",
        "the client disconnected",
    )


def test_a_generated_client_id_is_told(hand: HandDrivenBroker, told: list[ClientEvent]) -> None:
    hand.connects("")
    assert told[0].client_id == "given-id"


def test_the_reason_of_an_end_is_the_first_one(hand: HandDrivenBroker, told: list[ClientEvent]) -> None:
    hand.keeps("taken")
    hand.keeps("taken").drops()
    hand.connects("silent", keep_alive_s=1)
    hand.passes(s=2)
    hand.connects("wills").does(Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE))
    hand.connects("wrong").publishes("", b"x")
    hand.settle()
    ends = {(event.client_id, event.reason, event.code) for event in told if event.kind is DISCONNECTED}
    assert ends == {
        ("taken", "session taken over", 0x8E),
        ("taken", "", None),  # the server adds that the network broke
        ("silent", "keep alive timeout", 0x8D),
        ("wills", "the client disconnected: disconnect with will message", 4),
        ("wrong", "topic alias invalid: topic alias None, the maximum is 32", 0x94),
    }
    assert [event.session_present for event in told if event.client_id == "taken" and event.protocol] == [
        False,
        True,
    ]


def test_what_the_rules_do_not_allow(told: list[ClientEvent], hand: HandDrivenBroker) -> None:
    hand.broker.authorize(RuleSet((), no_match_allows=False))
    link = hand.connects("c1", user="ann")
    link.publishes("secret/topic", b"x", qos=0)
    link.subscribes("secret/#")
    refused = hand.connects("c2", user="ann", will=Will("secret/will", b"", 0, False, None))
    assert refused.ended
    denials = [(event.client_id, event.user, event.topic) for event in told if event.kind is DENIED]
    assert denials == [("c1", "ann", "secret/topic"), ("c1", "ann", "secret/#"), ("c2", "ann", "")]


def test_a_refused_connect_is_one_event(hand: HandDrivenBroker, told: list[ClientEvent]) -> None:
    hand.connects("", version=ProtocolVersion.V31)
    (event,) = told
    assert (event.kind, event.reason, event.code) == (
        REFUSED,
        "client identifier not valid: the client id is empty",
        0x85,
    )
