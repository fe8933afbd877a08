"""Connections last as long as what their clients entered with."""

from __future__ import annotations

from tests.support.hand_driven import HandDrivenBroker, HandLink

from embermq.access.authentication.identity import Identity
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Disconnect
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion


def identity(username: str = "ann", *, expires_ms: int = 0, version: int = 0) -> Identity:
    return Identity(username, ClientType.DEVICE, "x", expires_ms, version)


def enters(hand: HandDrivenBroker, link: HandLink, who: Identity) -> None:
    hand.broker.connecting.credentials.hold(link, who)


def test_a_proof_that_ends_ends_its_connection() -> None:
    hand = HandDrivenBroker()
    link = hand.connects("c")
    enters(hand, link, identity(expires_ms=hand.now_ms + 5_000))
    hand.passes(ms=4_999)
    assert link in hand.links
    hand.passes(ms=1)
    assert link.last(Disconnect).reason_code == ReasonCode.NOT_AUTHORIZED
    assert link.ended
    assert hand.state.counters.credentials_expired == 1


def test_mqtt_3_is_just_closed() -> None:
    hand = HandDrivenBroker()
    link = hand.connects("c", version=ProtocolVersion.V311)
    enters(hand, link, identity(expires_ms=hand.now_ms + 5_000))
    hand.passes(ms=5_000)
    assert link.ended
    assert link.all(Disconnect) == []


def test_a_newer_proof_takes_the_place_of_the_older() -> None:
    hand = HandDrivenBroker()
    link = hand.connects("c")
    enters(hand, link, identity(expires_ms=hand.now_ms + 5_000))
    enters(hand, link, identity(expires_ms=hand.now_ms + 60_000))
    hand.passes(ms=59_999)
    assert link in hand.links
    hand.passes(ms=1)
    assert link.ended


def test_a_connection_that_ends_leaves_no_timer() -> None:
    hand = HandDrivenBroker()
    before = len(hand.state.timers)
    link = hand.connects("c")
    enters(hand, link, identity(expires_ms=hand.now_ms + 86_400_000))
    link.leaves()
    hand.settle()
    assert len(hand.state.timers) == before


def test_only_who_is_unwelcome_is_expelled() -> None:
    hand = HandDrivenBroker()
    links = {name: hand.connects(name) for name in ("ann", "bob")}
    for name, link in links.items():
        enters(hand, link, identity(name))
    kept = hand.keeps("away")
    enters(hand, kept, identity("ann"))
    kept.drops()
    hand.settle()
    assert hand.broker.connecting.credentials.expel(lambda who: who.username == "ann") == 1
    hand.settle()
    assert links["ann"].last(Disconnect).reason_code == ReasonCode.NOT_AUTHORIZED
    assert not links["bob"].ended
    assert hand.state.counters.credentials_withdrawn == 1
    assert "away" in hand.state.sessions
