"""Nothing can be stored: who would have to be is told at once, known sessions read and acknowledge what is there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch, numbered

from embermq.model.client_type import ClientType
from embermq.model.session_writes import QueueRow
from embermq.mqtt.wire.packets import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Will
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError, StoreFull, StoreUnavailable

QUOTA, UNAVAILABLE = ReasonCode.QUOTA_EXCEEDED, ReasonCode.SERVER_UNAVAILABLE
FULL = StoreFull("no room")
APPLICATION = ClientType.APPLICATION


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


def fills(hand: HandDrivenBroker, error: StoreError = FULL) -> None:
    """The disk is full, and a publisher has found out."""
    hand.full = error
    publisher = hand.connects("finds-out")
    publisher.publishes("elsewhere", b"x")
    hand.settle()
    assert publisher.last(Puback).reason_code >= 0x80
    publisher.leaves()


def empties(hand: HandDrivenBroker) -> None:
    hand.full = None
    hand.settle()


def stores(hand: HandDrivenBroker, *payloads: bytes, qos: int = 1, client_id: str = "s") -> None:
    """A session of an absent client with messages."""
    link = hand.keeps(client_id)
    link.subscribes("t", qos=2)
    link.drops()
    hand.settle()
    publisher = hand.connects("p")
    publisher.publishes("t", *payloads, qos=qos)
    hand.settle()
    publisher.leaves()


def refusal(link: HandLink) -> int:
    assert [type(packet) for packet in link.received] == [Connack]
    return link.last(Connack).reason_code


@pytest.mark.parametrize(("error", "code"), [(FULL, QUOTA), (StoreUnavailable("busy"), UNAVAILABLE)])
@pytest.mark.parametrize("known", [False, True])
def test_what_must_be_stored_is_refused_at_once(
    hand: HandDrivenBroker, error: StoreError, code: int, known: bool
) -> None:
    if known:
        fills(hand, error)
    else:
        hand.full = error  # the first to find out
    will = Will("w", b"", 1, False, None)
    assert refusal(hand.keeps("new")) == code
    assert refusal(hand.connects("willing", will=will)) == code
    assert refusal(hand.keeps("old", version=ProtocolVersion.V311)) == 3
    assert hand.connects("plain").last(Connack).reason_code == 0
    assert set(hand.state.sessions) == {"plain"}
    empties(hand)
    assert hand.store.sessions == {}
    assert hand.store.wills == {}
    assert not hand.keeps("new").last(Connack).session_present


def test_a_known_session_reads_and_acknowledges(hand: HandDrivenBroker) -> None:
    stores(hand, *numbered(500))
    fills(hand)
    link = hand.keeps("s")
    assert link.last(Connack).session_present
    assert link.payloads == numbered(500)
    assert hand.state.sessions["s"].queued == 0
    again = hand.keeps("s", receive_maximum=10)
    assert again.payloads == []
    empties(hand)
    hand.counts_queues()
    assert hand.restarted().keeps("s").payloads == []


def test_it_returns_again_and_is_shown_the_store_as_it_will_be(hand: HandDrivenBroker) -> None:
    stores(hand, *numbered(100))
    fills(hand)
    first = hand.keeps("s", receive_maximum=10, acknowledges=False)
    assert first.payloads == numbered(10)
    ids = [message.packet_id for message in first.messages]
    first.does(Puback(ids[0]), Puback(ids[2]))
    hand.settle()
    first.drops()
    hand.settle()
    second = hand.keeps("s", acknowledges=False, receive_maximum=20)
    left = [b"0001", *numbered(9, 3)]
    assert second.payloads[:10] == left
    assert [message.packet_id for message in second.messages[:7]] == [ids[1], *ids[3:9]]
    assert [message.dup for message in second.messages] == [True] * 8 + [False] * 12
    second.drops()
    hand.settle()
    third = hand.keeps("s")
    assert third.payloads == [b"0001", *numbered(97, 3)]
    empties(hand)
    hand.counts_queues()
    assert hand.restarted().keeps("s").payloads == []


def test_a_crash_meanwhile_brings_them_again(hand: HandDrivenBroker) -> None:
    stores(hand, *numbered(20))
    fills(hand)
    assert hand.keeps("s").payloads == numbered(20)
    assert hand.restarted().keeps("s").payloads == numbered(20)


def test_qos_2_waits_for_the_store_and_what_is_behind_it_too(hand: HandDrivenBroker) -> None:
    stores(hand, b"1")
    publisher = hand.connects("p")
    publisher.publishes("t", b"2", qos=2)
    hand.settle()
    publisher.does(Pubrel(1))
    publisher.publishes("t", b"3", first_id=2)
    hand.settle()
    fills(hand)
    first = hand.keeps("s")
    assert first.payloads == [b"1"]
    first.drops()
    hand.settle()
    second = hand.keeps("s")
    assert second.payloads == []
    empties(hand)
    assert second.payloads == [b"2", b"3"]
    assert second.all(Pubrel)
    hand.counts_queues()
    assert hand.restarted().keeps("s").payloads == []


def test_qos_2_in_flight_goes_on_no_further_than_is_stored(hand: HandDrivenBroker) -> None:
    stores(hand, b"1", qos=2)
    link = hand.keeps("s", acknowledges=False)
    (message,) = link.messages
    link.drops()
    hand.settle()
    fills(hand)
    link = hand.keeps("s", acknowledges=False)
    assert link.messages == [Publish("t", b"1", 2, message.packet_id, False, True)]
    link.does(Pubrec(message.packet_id))
    hand.settle()
    assert not link.all(Pubrel)
    again = hand.keeps("s", acknowledges=False)
    assert [(one.packet_id, one.dup) for one in again.messages] == [(message.packet_id, True)]
    again.does(Pubrec(message.packet_id))
    hand.settle()
    empties(hand)
    assert {pubrel.packet_id for pubrel in again.all(Pubrel)} == {message.packet_id}
    again.does(Pubcomp(message.packet_id))
    hand.settle()
    hand.counts_queues()
    assert hand.restarted().keeps("s").messages == []


def test_what_is_in_memory_alone_is_told_from_there(hand: HandDrivenBroker) -> None:
    """In flight and not written yet; and accepted, but not queued yet for the one who was away."""
    link = hand.keeps("s", acknowledges=False)
    stores(hand, client_id="away")
    link.subscribes("t", qos=1)
    hand.held = True
    hand.connects("p").publishes("t", *numbered(3))
    hand.settle()
    hand.finish_commit()
    hand.held = False
    fills(hand)
    assert link.payloads == numbered(3)
    link.does(Puback(link.messages[1].packet_id))
    link.drops()
    hand.settle()
    again = hand.keeps("s")
    assert [(one.payload, one.dup) for one in again.messages] == [(b"0000", True), (b"0002", True)]
    away = hand.keeps("away", acknowledges=False)
    assert away.payloads == numbered(3)
    away.drops()
    hand.settle()
    away = hand.keeps("away")
    assert [(one.payload, one.dup) for one in away.messages] == [(text, True) for text in numbered(3)]
    empties(hand)
    hand.counts_queues()
    hand.passes(s=1)  # what was acknowledged at once is known to be
    after = hand.restarted()
    assert after.keeps("s").payloads == after.keeps("away").payloads == []


def test_a_packet_id_on_its_way_to_the_store_keeps_its_client_waiting(hand: HandDrivenBroker) -> None:
    link = hand.keeps("s")
    link.subscribes("t", qos=2)
    publisher = hand.connects("p")
    hand.held = True
    publisher.publishes("t", b"x", qos=2)
    hand.settle()
    hand.finish_commit()
    hand.held = False
    fills(hand)
    assert link.payloads == []
    link.drops()
    hand.settle()
    assert refusal(hand.keeps("s")) == QUOTA
    empties(hand)
    assert hand.keeps("s").payloads == [b"x"]


def test_new_subscriptions_are_refused_and_sessions_that_come_and_go_take_no_memory(
    hand: HandDrivenBroker,
) -> None:
    stores(hand)
    fills(hand)
    for _ in range(20):
        link = hand.keeps("s")
        assert link.subscribes("t", "new") == (2, QUOTA)
        said = link.last(Suback).properties
        assert said is not None
        assert said.reason_string == "sessions cannot be stored now"
        link.drops()
        hand.connects("p").publishes("elsewhere", b"x")
        hand.settle()
    assert len(hand.state.tick.session_writes.sessions) <= 2
    empties(hand)
    assert hand.keeps("s").subscribes("new") == (2,)


def test_an_application_reads_and_acknowledges(hand: HandDrivenBroker) -> None:
    link = hand.keeps("app", client_type=APPLICATION)
    link.subscribes("t", qos=2)
    link.drops()
    publisher = hand.connects("p")
    publisher.publishes("t", *numbered(50))
    hand.settle()
    publisher.publishes("t", b"exactly once", qos=2, first_id=100)
    hand.settle()
    dispatch(hand)
    fills(hand)
    link = hand.keeps("app", client_type=APPLICATION, acknowledges=False)
    hand.passes(ms=10)
    assert link.payloads == numbered(50)
    link.does(*(Puback(message.packet_id) for message in link.messages))
    hand.passes(ms=10)
    empties(hand)
    hand.passes(s=1)
    assert link.payloads == [*numbered(50), b"exactly once"]
    link.drops()
    hand.settle()
    again = hand.keeps("app", client_type=APPLICATION)
    assert again.payloads == [b"exactly once"]


def test_an_application_is_not_shown_what_it_has_acknowledged(hand: HandDrivenBroker) -> None:
    link = hand.keeps("app", client_type=APPLICATION, acknowledges=False)
    link.subscribes("t", qos=1)
    hand.connects("p").publishes("t", *numbered(3))
    hand.settle()
    dispatch(hand)
    hand.applications.poll()
    hand.settle()
    fills(hand)
    link.does(*(Puback(message.packet_id) for message in link.messages[:2]))
    hand.settle()
    link.drops()
    hand.settle()
    again = hand.keeps("app", client_type=APPLICATION)
    assert again.payloads == [b"0002"]
    empties(hand)
    assert hand.restarted().keeps("app", client_type=APPLICATION).payloads == []


def test_retained_messages_wait_for_room_and_take_no_memory_until_then(hand: HandDrivenBroker) -> None:
    stores(hand)
    publisher = hand.connects("p")
    for number in range(20):
        publisher.publishes(f"r/{number}", b"x", retain=True)
        hand.settle()
    first = hand.keeps("s")
    first.subscribes("r/#", qos=1)
    assert len(first.messages) == 20
    first.leaves()
    fills(hand)
    for _ in range(20):
        link = hand.keeps("s", acknowledges=False)
        assert link.subscribes("r/#", qos=1) == (1,)
        link.drops()
        hand.passes(ms=100)
    assert hand.state.tick.session_writes.queue_rows == []
    link = hand.keeps("s")
    assert link.subscribes("r/#", qos=1) == (1,)
    empties(hand)
    hand.passes(ms=100)
    assert len(link.messages) == 20
    hand.counts_queues()


@pytest.mark.parametrize("is_late", [False, True])
def test_a_commit_that_the_broker_has_not_heard_of(
    hand: HandDrivenBroker, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """The store has what waits before the client is told, or while it is asked: nothing comes twice or is left out."""
    if is_late:  # stored, and sent from there
        stores(hand, *numbered(3))
        fills(hand)
        link = hand.keeps("s", acknowledges=False)
    else:  # sent, and not stored yet
        link = hand.keeps("s", acknowledges=False)
        link.subscribes("t", qos=1)
        hand.held = True
        hand.connects("p").publishes("t", *numbered(3))
        hand.settle()
        hand.finish_commit()
        hand.held = False
        fills(hand)
    assert link.payloads == numbered(3)
    link.drops()
    hand.settle()

    def stores_what_waits() -> None:
        for writes in hand.state.tick.unstored():
            hand.store._apply_to_queue(writes.session)

    if is_late:
        page, in_flight = hand.queue.page, hand.queue.in_flight
        commits = iter([stores_what_waits])

        def commits_then(then: Callable[[list[QueueRow]], None], rows: list[QueueRow]) -> None:
            for commit in commits:
                commit()
            then(rows)

        def ask_page(
            generation: int,
            after_seq: int,
            limit: int,
            then: Callable[[list[QueueRow]], None],
            *,
            bytes_max: int | None = None,
        ) -> None:
            page(generation, after_seq, limit, partial(commits_then, then), bytes_max=bytes_max)

        def ask_in_flight(generation: int, then: Callable[[list[QueueRow]], None]) -> None:
            in_flight(generation, partial(commits_then, then))

        monkeypatch.setattr(hand.queue, "page", ask_page)
        monkeypatch.setattr(hand.queue, "in_flight", ask_in_flight)
    else:
        stores_what_waits()
    again = hand.keeps("s")
    assert again.payloads == numbered(3)
    assert [one.packet_id for one in again.messages] == [one.packet_id for one in link.messages]
