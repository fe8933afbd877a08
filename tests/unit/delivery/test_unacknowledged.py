"""What an application was owed and has not acknowledged is written down; the rest is counted."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch, numbered

from embermq.delivery.application import log_tail
from embermq.delivery.application.settings import ApplicationSettings
from embermq.model.client_type import ClientType
from embermq.model.unacknowledged import FIRST_SENT, WhyUnacknowledged
from embermq.mqtt.wire.packets import Puback, Publish, Pubrec, Subscribe, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode

Why = WhyUnacknowledged
SKIP = ApplicationSettings(max_poll_records=10, ack_strategy="skip-all")
PARK = ApplicationSettings(max_poll_records=10, retries=1)


def comes(hand: HandDrivenBroker, **options: object) -> HandLink:
    application = hand.keeps("app", client_type=ClientType.APPLICATION, **options)
    if not hand.state.sessions["app"].subscriptions:
        application.subscribes("t")
    return application


def published(hand: HandDrivenBroker, *payloads: bytes, qos: int = 1, first_id: int = 1) -> None:
    hand.connects("p").publishes("t", *payloads, qos=qos, first_id=first_id)
    hand.settle()
    dispatch(hand)


def told(hand: HandDrivenBroker) -> tuple[int, int, dict[int, Why]]:
    """Below which offset all is settled, how many of these were sent, and what was not acknowledged."""
    (position,) = hand.store.positions.values()
    why = {offset: reason for _, offset, reason in hand.store.unacknowledged}
    return position.positions.committed_offset, position.settled, why


@pytest.mark.promise("pipeline-12")
@pytest.mark.parametrize("tail", [True, False])
def test_below_the_floor_all_was_sent_or_is_written_down(tail: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tail and without, over crashes, acknowledged out of order."""
    if not tail:
        monkeypatch.setattr(log_tail, "BYTES_MAX", 0)
    hand = HandDrivenBroker(application=PARK)
    application = comes(hand, acknowledges=False)
    expiry = Properties(message_expiry_interval=10)
    hand.connects("p").does(Publish("t", b"0", 1, 1), Publish("t", b"1", 1, 2, properties=expiry))
    hand.settle()
    if tail:
        dispatch(hand)
    else:
        application.drops()
        hand.passes(s=11)
        dispatch(hand)
        application = comes(hand, acknowledges=False)
    published(hand, *numbered(3, 2), first_id=10)
    published(hand, b"5", qos=2, first_id=20)
    ids = {int(message.payload): message.packet_id for message in application.messages}
    application.does(Puback(ids[3], ReasonCode.QUOTA_EXCEEDED), Puback(ids[4]))
    application.does(Pubrec(ids[5], ReasonCode.UNSPECIFIED_ERROR))
    hand.settle()
    hand = hand.restarted()
    application = comes(hand)
    hand.settle()
    published(hand, *numbered(2, 6), first_id=30)
    floor, sent, why = told(hand)
    expected = {3: Why.REFUSED, 5: Why.REFUSED} | ({} if tail else {1: Why.EXPIRED})
    assert (floor, why) == (8, expected)
    assert sent + sum(reason < FIRST_SENT for reason in why.values()) == 8
    hand = hand.restarted()
    published(hand, b"8")
    comes(hand)
    hand.settle()
    assert told(hand)[:2] == (9, sent + 1)


@pytest.mark.parametrize(("settings", "reason"), [(SKIP, Why.SKIPPED), (PARK, Why.PARKED)])
def test_what_was_given_up(settings: ApplicationSettings, reason: Why) -> None:
    hand = HandDrivenBroker(application=settings)
    application = comes(hand)
    published(hand, b"0")
    application.acknowledges = False
    published(hand, b"1", first_id=2)
    application.forgets()
    application.in_flight.clear()
    for _ in range(3):
        hand.passes(s=21)
        application.in_flight.clear()
        if not application.ended:
            continue
        application = comes(hand, acknowledges=False)
    assert told(hand) == (2, 2, {1: reason})


def test_what_was_sent_and_nobody_has_any_more() -> None:
    """Its client was killed with the broker, and the log has let go of it meanwhile."""
    hand = HandDrivenBroker()
    application = comes(hand, acknowledges=False)
    for number, payload in enumerate((b"0", b"1")):
        published(hand, payload, first_id=number + 1)
    assert application.payloads == [b"0", b"1"]
    hand.log.trim(1)
    for _ in range(2):  # the same again when it comes once more
        hand = hand.restarted()
        application = comes(hand, acknowledges=False)
        hand.settle()
        assert application.payloads == [b"1"]
    hand = hand.restarted()
    comes(hand)
    published(hand, b"2", first_id=3)
    assert told(hand) == (3, 2, {0: Why.UNREADABLE})


def test_what_was_granted_qos_0_is_owed_to_nobody() -> None:
    hand = HandDrivenBroker()
    application = hand.keeps("app", client_type=ClientType.APPLICATION)
    application.does(Subscribe(1, (Subscription("t", 0),)))
    published(hand, b"0")
    hand.passes(s=3)
    dispatch(hand)
    published(hand, b"1", first_id=2)
    assert application.payloads == [b"0", b"1"]
    assert not hand.application_log.entries
    assert told(hand)[1:] == (0, {})


def test_what_nobody_has_any_more_and_what_is_too_large() -> None:
    hand = HandDrivenBroker()
    comes(hand).drops()
    for number, payload in enumerate((b"0", b"1" * 400, b"2")):
        published(hand, payload, first_id=number + 1)
    hand.log.trim(1)
    application = comes(hand, properties=Properties(maximum_packet_size=200))
    hand.settle()
    assert application.payloads == [b"2"]
    assert told(hand) == (3, 2, {0: Why.UNREADABLE, 1: Why.TOO_LARGE})
