"""Stores of applications that answer later: nobody is let in, before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch
from tests.support.hand_kafka import HandKafka
from tests.support.stand_in_shared import HandFeeds, HandLogs
from tests.support.stand_in_store import StandInParkedMessages

from embermq.delivery.application.fed_readers import FedReaders
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Connack, Pubrec, Pubrel, Subscribe, Subscription
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreUnavailable
from embermq.ports.parked_messages import ParkedFound

Asked = list[Callable[[], None]]


def held(store: object, name: str) -> Asked:
    """Questions of this kind wait here until a test lets them be asked."""
    asked: Asked = []
    method: Callable[..., None] = getattr(store, name)

    def hold(*arguments: Any) -> None:
        asked.append(partial(method, *arguments))

    setattr(store, name, hold)
    return asked


def connects(hand: HandDrivenBroker) -> HandLink:
    return hand.keeps(
        "app", client_type=ClientType.APPLICATION, version=ProtocolVersion.V311, acknowledges=False
    )


@pytest.mark.promise("application-8")
def test_a_client_is_let_in_when_its_position_is_read() -> None:
    hand = HandDrivenBroker(kafka=HandKafka())
    asked = held(hand.applications._place.store, "load")  # type: ignore[attr-defined]
    link = connects(hand)
    assert not link.all(Connack)
    asked.pop()()
    hand.settle()
    assert link.all(Connack)


@pytest.mark.promise("application-11")
@pytest.mark.parametrize("comes_again", [False, True])
def test_a_client_is_let_in_when_what_it_has_of_shared_logs_is_read(comes_again: bool) -> None:
    hand = HandDrivenBroker(logs=HandLogs(), feeds=HandFeeds())
    assert hand.feeds is not None and hand.logs is not None
    link = connects(hand)
    link.does(Subscribe(1, (Subscription("$share/g/t/#", 2),)))
    hand.settle()
    (member,) = hand.feeds.members
    hand.feeds.give(member, 0)
    hand.connects("p").publishes("t/0", b"x", qos=2)
    hand.settle()
    hand.feeds.dispatch(hand.log, hand.logs.names)
    hand.settle()
    (message,) = link.messages
    link.does(Pubrec(message.packet_id))
    link.drops()
    hand.settle()
    asked = held(hand.store.shared, "in_flight")
    back = connects(hand)
    assert not back.all(Connack)
    if comes_again:
        back.drops()
        hand.settle()
        back = connects(hand)
    while asked:
        asked.pop(0)()
    hand.settle()
    assert len(back.all(Connack)) == 1
    assert [packet.packet_id for packet in back.all(Pubrel)] == [message.packet_id]


@pytest.mark.promise("application-6")
@pytest.mark.parametrize("fails", [False, True])
def test_a_parked_message_is_sent_when_it_is_read(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """The store may answer later, and that it cannot."""
    hand = HandDrivenBroker()
    application = connects(hand)
    application.subscribes("t")
    hand.connects("p").publishes("t", b"x", qos=1)
    hand.settle()
    dispatch(hand)
    session = hand.state.sessions["app"]
    (delivery,) = session.window.values()
    readers = hand.applications
    assert isinstance(readers, FedReaders)
    readers._window.give_up(readers._readers[session], [delivery], keep=True)
    application.drops()
    hand.settle()
    application = connects(hand)
    read = StandInParkedMessages.read
    asked: list[Callable[[], None]] = []
    thens: list[ParkedFound] = []

    def holds(
        store: StandInParkedMessages, generation: int, numbers: Sequence[int], size: int, then: ParkedFound
    ) -> None:
        asked.append(partial(read, store, generation, numbers, size, then))
        thens.append(then)

    monkeypatch.setattr(StandInParkedMessages, "read", holds)
    hand.parking.redrive(session, None)
    hand.settle()
    hand.passes(s=1)
    assert (len(asked), application.payloads) == (1, [])
    if fails:
        asked.clear()
        thens[0](StoreUnavailable("away"))
        assert "away" in hand.notices[-1]
        hand.applications.pump(session)
        assert len(asked) == 1
    asked.pop()()
    hand.settle()
    assert application.payloads == [b"x"]
    assert not asked
