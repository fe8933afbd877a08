"""Retained messages of publishers who may not publish them any more."""

from __future__ import annotations

from tests.support.hand_driven import HandDrivenBroker

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules_file import read_rules
from embermq.formats.log_record import decode_record, publisher_in
from embermq.mqtt.wire.packets import Will

EVERYTHING = '[[rule]]\nallow = "all"\n'
WITHOUT_ANN = '[[rule]]\ndeny = "publish"\nuser = "ann"\ntopics = "a/#"\n' + EVERYTHING
WITHOUT_CERTIFICATE = '[[rule]]\ndeny = "publish"\ncertificate = "CN=ann"\n' + EVERYTHING


def rules(text: str) -> RuleSet:
    return RuleSet(read_rules(text, "r"), no_match_allows=False)


def with_retained(rule_set: RuleSet | None) -> HandDrivenBroker:
    """ann and bob have retained one message each, and ann one by her will."""
    hand = HandDrivenBroker(rules=rule_set)
    will = Will("a/will", b"will", 1, True)
    ann = hand.connects("c-1", user="ann", certificate="CN=ann", will=will)
    ann.publishes("a/ann", b"ann", qos=1, retain=True)
    hand.connects("c-2", user="bob").publishes("a/bob", b"bob", qos=0, retain=True)
    hand.settle()
    ann.drops()
    hand.settle()
    return hand


def found(hand: HandDrivenBroker, client_id: str) -> list[bytes]:
    reader = hand.connects(client_id, user="reader")
    reader.subscribes("#")
    hand.settle()
    return sorted(reader.payloads)


def test_what_a_publisher_may_not_say_any_more_is_left_out() -> None:
    hand = with_retained(rules(EVERYTHING))
    assert found(hand, "r1") == [b"ann", b"bob", b"will"]
    hand.broker.authorize(rules(WITHOUT_ANN))
    assert found(hand, "r2") == [b"bob"]
    assert hand.state.counters.deliveries_denied == 2
    hand.broker.authorize(rules(WITHOUT_CERTIFICATE))
    assert found(hand, "r3") == [b"bob"]
    hand.broker.authorize(rules(EVERYTHING))
    assert found(hand, "r4") == [b"ann", b"bob", b"will"]


def test_nor_of_a_publisher_whom_nobody_knows() -> None:
    hand = with_retained(None)
    row = hand.state.retained.get("a/ann")
    assert row is not None and publisher_in(decode_record(row.record)) is None, (
        "nothing is stored without rules"
    )
    hand.broker.authorize(rules(WITHOUT_ANN))
    assert found(hand, "r") == [b"ann", b"bob", b"will"]
