"""Broker time for what is due, dates for stamps, when the two are apart."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import START_MS, HandDrivenBroker

from embermq.access.authentication.identity import Identity
from embermq.formats.log_record import decode_record, iter_frames
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Disconnect, Publish, Will
from embermq.mqtt.wire.properties import Properties

AHEAD_MS = 9 * 86_400_000
EXPIRES = Properties(message_expiry_interval=60)


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


def stamps(hand: HandDrivenBroker) -> list[tuple[int, int]]:
    """Accept time and deadline of every record."""
    batches = hand.log.read(0, records_max=10**6, bytes_max=2**30)
    messages = [decode_record(frame).message for batch in batches for frame in iter_frames(batch.body)]
    return [(message.accepted_ms, message.expires_ms) for message in messages]


@pytest.mark.parametrize(("offset_ms", "stamp_ms"), [(AHEAD_MS, START_MS + AHEAD_MS), (None, 0)])
def test_records_have_dates_and_deadlines_in_broker_time(
    hand: HandDrivenBroker, offset_ms: int | None, stamp_ms: int
) -> None:
    hand.state.tick.offset_ms = offset_ms
    hand.connects("p").does(Publish("t", b"x", 1, 1, properties=EXPIRES))
    hand.connects("w", will=Will("t", b"will", 1, False, EXPIRES)).drops()
    hand.settle()
    assert stamps(hand) == [(stamp_ms, START_MS + 60_000)] * 2


def test_the_interval_that_is_forwarded_does_not_mind_the_offset(hand: HandDrivenBroker) -> None:
    hand.state.tick.offset_ms = AHEAD_MS
    taker, kept = hand.connects("taker"), hand.keeps("kept")
    taker.subscribes("t")
    kept.subscribes("t")
    publisher = hand.connects("p")
    publisher.does(Publish("t", b"1", 1, 1, properties=EXPIRES))
    hand.settle()
    publisher.does(Publish("t", b"2", 2, 2, properties=EXPIRES))
    hand.settle()
    hand.passes(s=20)
    publisher.drops()  # what waits for PUBREL goes on, with what is left of its interval
    hand.settle()
    intervals = {
        link: [
            packet.properties and packet.properties.message_expiry_interval for packet in link.all(Publish)
        ]
        for link in (taker, kept)
    }
    assert intervals == {taker: [60, 40], kept: [60, 60]}


def test_a_proof_ends_at_its_date(hand: HandDrivenBroker) -> None:
    hand.state.tick.offset_ms = AHEAD_MS
    link = hand.connects("c")
    ends_ms = START_MS + AHEAD_MS + 5_000
    hand.broker.connecting.credentials.hold(link, Identity("ann", ClientType.DEVICE, "c", expires_ms=ends_ms))
    hand.passes(s=4)
    assert not link.ended
    hand.passes(s=2)
    assert link.last(Disconnect).reason_code == 0x87
