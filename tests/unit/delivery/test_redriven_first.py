"""What is redriven for a client that was away leaves before its log is read on."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker
from tests.support.hand_kafka import HandKafka
from tests.unit.delivery.test_parking import RETRY, TIMEOUT_S, V5, comes, published, published_by

from embermq.ports.errors import StoreFull


def redriven_while_away(hand: HandDrivenBroker) -> None:
    published_by(hand, 1)
    for _ in range(RETRY.retries + 1):
        comes(hand, V5)
        hand.passes(s=TIMEOUT_S + 1)
    assert hand.parking.redrive(hand.state.sessions["app"], [1]) == 1
    published(hand, b"next")


@pytest.mark.parametrize("kafka", [None, HandKafka()], ids=["embedded", "servers"])
def test_what_is_redriven_leaves_before_the_log_is_read_on(kafka: HandKafka | None) -> None:
    hand = HandDrivenBroker(application=RETRY, kafka=kafka)
    redriven_while_away(hand)
    assert comes(hand, acknowledges=True).payloads == [b"0000", b"next"]


def test_what_is_redriven_holds_up_nothing_while_nothing_can_be_stored() -> None:
    hand = HandDrivenBroker(application=RETRY)
    redriven_while_away(hand)
    hand.full = StoreFull("no room")
    hand.connects("p").publishes("elsewhere", b"x")
    hand.settle()
    link = comes(hand, acknowledges=True)
    hand.passes(ms=10)
    assert link.payloads == [b"next"]
    hand.full = None
    hand.passes(s=1)
    assert link.payloads == [b"next", b"0000"]
