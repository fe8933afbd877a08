"""Which application logs a record names."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker

from embermq.formats.log_record import LogRecord, decode_record, iter_frames
from embermq.model.client_type import ClientType


def records(hand: HandDrivenBroker) -> list[LogRecord]:
    batches = hand.log.read(0, records_max=100, bytes_max=1_000_000)
    return [decode_record(frame) for batch in batches for frame in iter_frames(batch.body)]


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


def test_a_record_names_the_applications_that_match_it(hand: HandDrivenBroker) -> None:
    hand.keeps("billing", client_type=ClientType.APPLICATION).subscribes("orders/#", qos=1, identifier=7)
    hand.keeps("vehicle").subscribes("orders/#")
    hand.connects("p").publishes("orders/1", b"x", qos=2)
    hand.settle()
    (record,) = records(hand)
    assert [(stamp.log, stamp.qos, stamp.subscription_identifiers) for stamp in record.stamps] == [
        ("billing", 1, (7,))
    ]


def test_a_retained_message_of_qos_0_is_stored_and_names_none(hand: HandDrivenBroker) -> None:
    """It has reached the application directly; by way of the log it would come again, with a packet id."""
    application = hand.keeps("billing", client_type=ClientType.APPLICATION)
    application.subscribes("orders/#", qos=1)
    hand.connects("p").publishes("orders/1", b"x", qos=0, retain=True)
    hand.settle()
    (record,) = records(hand)
    assert record.stamps == ()
    assert application.payloads == [b"x"]
