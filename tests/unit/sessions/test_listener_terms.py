"""What a listener allows its clients, and the largest payload."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink

from embermq.access.authentication.identity import Identity
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Connack, Connect, Disconnect, Puback, Pubrec, Will
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.listener_terms import Terms
from embermq.sessions.settings import MqttSettings

V5, V311 = ProtocolVersion.V5, ProtocolVersion.V311
LOW = Terms(1, ("5.0",), allow_empty_client_id=False)


def enters(hand: HandDrivenBroker, terms: Terms, client_id: str = "c", will: Will | None = None) -> HandLink:
    """By a listener with these terms."""
    link = HandLink(hand, V5, None)
    link.terms = terms
    link.inbox = []
    hand.broker.connect(
        link,
        Connect(client_id, V5, True, 0, None, None, will, None),
        Identity("", ClientType.DEVICE, "given-id"),
    )
    hand.settle()
    return link


def test_each_listener_has_a_highest_qos() -> None:
    hand = HandDrivenBroker()
    low, high = enters(hand, LOW), hand.connects("d")
    told = low.last(Connack).properties, high.last(Connack).properties
    assert [said and said.maximum_qos for said in told] == [1, None]
    assert (low.subscribes("t"), high.subscribes("t")) == ((1,), (2,))
    high.releases = True
    high.publishes("t", b"x", qos=2)
    hand.settle()
    assert low.messages[0].qos == 1
    low.publishes("t", b"x", qos=2)
    hand.settle()
    assert low.last(Disconnect).reason_code == ReasonCode.QOS_NOT_SUPPORTED
    refused = enters(hand, LOW, "e", Will("t", b"", 2, False))
    assert refused.last(Connack).reason_code == ReasonCode.QOS_NOT_SUPPORTED
    higher = enters(HandDrivenBroker(mqtt=MqttSettings(max_qos=0)), Terms(2, ("5.0",), True))
    assert higher.subscribes("t") == (2,)


def test_each_listener_says_whether_client_ids_may_be_empty() -> None:
    hand = HandDrivenBroker()
    assert enters(hand, LOW, "").last(Connack).reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    strict = HandDrivenBroker(mqtt=MqttSettings(unavailable=("empty-client-ids",)))
    assert enters(strict, Terms(2, ("5.0",), True), "").last(Connack).reason_code == 0


def test_versions_that_are_not_spoken_are_named() -> None:
    terms = Terms(2, ("3.1.1", "5.0"), True)
    assert terms.objection_to_version(V5) == ""
    told = "MQTT 3.1 is not accepted here, only 3.1.1, 5.0"
    assert terms.objection_to_version(ProtocolVersion.V31) == told


@pytest.mark.parametrize("version", [V5, V311])
def test_a_payload_over_the_limit(version: ProtocolVersion) -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(payload_bytes_max=10))
    listener = hand.connects("l")
    listener.subscribes("#")
    for qos in (0, 1, 2):
        link = hand.connects(f"c{qos}", version=version)
        link.publishes("t", b"x" * 10, qos=qos)
        link.publishes("t", b"x" * 11, qos=qos, first_id=2)
        hand.settle()
        if version is V5 and qos:
            refusal: Puback | Pubrec = link.last(Puback) if qos == 1 else link.last(Pubrec)
            assert (refusal.packet_id, refusal.reason_code) == (2, ReasonCode.QUOTA_EXCEEDED)
            assert refusal.properties is not None
            assert refusal.properties.reason_string == "a payload of 11 bytes, the largest allowed is 10"
        assert link.ended is (version is V311 and qos > 0)
        if not link.ended:
            link.drops()
    hand.settle()
    assert {len(message.payload) for message in listener.messages} == {10}
    refused = hand.connects("w", version=version, will=Will("t", b"x" * 11, 1, False))
    assert refused.last(Connack).reason_code == (ReasonCode.QUOTA_EXCEEDED if version is V5 else 3)
