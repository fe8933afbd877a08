"""Clients of a broker whose session data is in a store of its own."""

from __future__ import annotations

from tests.support.hand_driven import HandDrivenBroker, HandLink


def subscriber(hand: HandDrivenBroker, *, qos: int = 2, name: str = "s", **options: object) -> HandLink:
    link = hand.keeps(name, **options)
    link.subscribes("t", qos=qos)
    return link


def generation(hand: HandDrivenBroker, name: str) -> int:
    return hand.state.sessions[name].generation
