"""What an MQTT 5 client goes on counting against its Receive Maximum does not hold up the rest."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch, numbered
from tests.support.hand_kafka import HandKafka

from embermq.delivery.application.settings import ApplicationSettings
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

pytestmark = pytest.mark.promise("application-6")
SKIP = ApplicationSettings(ack_strategy="skip-all")


@pytest.fixture(params=["embedded", "kafka"])
def place(request: pytest.FixtureRequest) -> HandKafka | None:
    return HandKafka() if request.param == "kafka" else None


def published(hand: HandDrivenBroker, *payloads: bytes, first_id: int = 1, qos: int = 1) -> None:
    hand.connects("p").publishes("t", *payloads, qos=qos, first_id=first_id)
    hand.settle()
    dispatch(hand)


def test_most_of_the_window_may_be_given_up(place: HandKafka | None) -> None:
    """There is room for one message at a time, and what comes goes through it."""
    hand = HandDrivenBroker(application=SKIP, kafka=place)
    link = hand.keeps("app", client_type=ClientType.APPLICATION, receive_maximum=4, acknowledges=False)
    link.subscribes("t")
    published(hand, *numbered(3))
    given_up = [message.packet_id for message in link.messages]
    hand.passes(s=SKIP.pack_timeout_s + 1)
    assert hand.state.counters.application_skipped == 3 and not link.closing
    link.acknowledges = True
    published(hand, *numbered(10, 3), first_id=20)
    assert link.payloads == numbered(13)
    session = hand.state.sessions["app"]
    link.does(*map(Puback, given_up))
    hand.settle()
    assert (session.window, session.given_up) == ({}, set())


@pytest.mark.parametrize("qos", [1, 2])
def test_a_redriven_message_that_is_too_large_now_leaves_its_room(place: HandKafka | None, qos: int) -> None:
    settings = ApplicationSettings(retries=1)
    hand = HandDrivenBroker(application=settings, kafka=place)
    options = {"client_type": ClientType.APPLICATION, "version": ProtocolVersion.V311}
    link = hand.keeps("app", acknowledges=False, **options)
    link.in_flight = type("Any", (set,), {"__contains__": lambda *_: False})()
    link.subscribes("t")
    hand.connects("p").does(Publish("t", bytes(2_000), qos, 1))
    hand.settle()
    dispatch(hand)
    hand.passes(s=2 * settings.pack_timeout_s + 1)
    link.drops()
    published(hand, b"small", first_id=7)
    assert hand.parking.redrive(hand.state.sessions["app"], None) == 1
    hand.settle()
    again = hand.connects(
        "app",
        clean_start=False,
        client_type=ClientType.APPLICATION,
        properties=Properties(session_expiry_interval=86_400, receive_maximum=1, maximum_packet_size=500),
    )
    assert (again.payloads, len(hand.parking)) == ([b"small"], 0)


@pytest.mark.parametrize("is_received", [False, True])
def test_the_packet_id_of_a_deleted_qos_2_message_stays_taken_until_the_client_answers(
    place: HandKafka | None, is_received: bool
) -> None:
    """It may have the message: another one under this id would be taken for that, and lost."""
    settings = ApplicationSettings(retries=1)
    hand = HandDrivenBroker(application=settings, kafka=place)

    def comes() -> HandLink:
        options = {"client_type": ClientType.APPLICATION, "version": ProtocolVersion.V311}
        return hand.keeps("app", acknowledges=False, **options)

    application = comes()
    application.in_flight = type("Any", (set,), {"__contains__": lambda *_: False})()
    application.subscribes("t")
    published(hand, b"old", qos=2)
    hand.passes(s=2 * settings.pack_timeout_s + 1)
    packet_id = application.messages[0].packet_id
    assert hand.parking.delete(hand.state.sessions["app"], None) == 1
    hand.settle()
    assert (len(hand.parking), hand.parking.clients()) == (0, [])
    assert hand.parking.delete(hand.state.sessions["app"], None) == 0
    application.drops()
    hand = hand.restarted()
    application = comes()
    hand.state.sessions["app"].last_packet_id = packet_id - 1
    published(hand, b"new", first_id=50, qos=2)
    assert [(one.payload, one.packet_id) for one in application.messages] == [(b"new", packet_id + 1)]
    if is_received:
        application.does(Pubrec(packet_id))
        hand.settle()
        assert application.last(Pubrel).packet_id == packet_id
        application.drops()
        hand = hand.restarted()
        application = comes()
        assert packet_id in [one.packet_id for one in application.received if isinstance(one, Pubrel)]
        assert len(hand.parking) == 0
        application.does(Pubcomp(packet_id))
        hand.settle()
        assert hand.store.parked == {}
