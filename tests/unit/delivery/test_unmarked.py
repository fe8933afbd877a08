"""Deliveries of QoS 1 do not wait until their packet ids are in store; those of QoS 2 do."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch, numbered
from tests.support.hand_kafka import HandKafka

from embermq.delivery.application import lane
from embermq.delivery.application.lane import UNMARKED_MAX, Unmarked, behind_unmarked
from embermq.model.application_positions import ReaderPosition, StoredPositions
from embermq.model.client_type import ClientType
from embermq.model.session_writes import QueueState
from embermq.model.tick_writes import ApplicationMark, TickWrites
from embermq.mqtt.wire.packets import Puback, Publish
from embermq.sessions.session import PACKET_IDS


@pytest.fixture(params=["embedded", "servers"])
def hand(request: pytest.FixtureRequest) -> HandDrivenBroker:
    return HandDrivenBroker(kafka=HandKafka() if request.param == "servers" else None)


def comes(hand: HandDrivenBroker, **options: object) -> HandLink:
    link = hand.keeps("app", client_type=ClientType.APPLICATION, **options)
    if not hand.state.sessions["app"].subscriptions:
        link.subscribes("t/#")
    return link


def while_commits_are_held(hand: HandDrivenBroker, *messages: tuple[bytes, int]) -> None:
    """What is published is committed and dispatched; what comes of it is not."""
    publisher = hand.connects("p")
    publisher.releases = True
    for number, (payload, qos) in enumerate(messages, 1):
        publisher.publishes("t/1", payload, qos=qos, first_id=number)
    hand.held = True
    hand.settle()
    hand.finish_commit()
    hand.settle()
    dispatch(hand)


def goes_on(hand: HandDrivenBroker) -> None:
    hand.held = False
    if hand.store.busy:
        hand.finish_commit()
    hand.settle()


def came(link: HandLink) -> list[tuple[bytes, int, bool]]:
    return [(one.payload, one.packet_id, one.dup) for one in link.messages]


@pytest.mark.promise("application-5")
def test_qos_1_leaves_before_its_mark_is_stored_and_nothing_overtakes(hand: HandDrivenBroker) -> None:
    link = comes(hand)
    while_commits_are_held(hand, (b"1", 1), (b"2", 1), (b"3", 2), (b"4", 1))
    assert link.payloads == [b"1", b"2"]
    goes_on(hand)
    assert link.payloads == [b"1", b"2", b"3", b"4"]
    hand.passes(s=2)
    assert hand.store.marks == {}
    assert len(hand.parking.sender.unmarked) == 0


@pytest.mark.promise("application-8")
@pytest.mark.parametrize("acknowledges", [False, True])
def test_what_was_sent_and_is_not_marked_comes_again_as_new(
    hand: HandDrivenBroker, acknowledges: bool
) -> None:
    """Its packet id may be with the client: a late answer to it is not one to another message."""
    link = comes(hand, acknowledges=acknowledges)
    while_commits_are_held(hand, (b"1", 1), (b"2", 1))
    before = came(link)
    assert [payload for payload, _, _ in before] == [b"1", b"2"]
    hand = hand.restarted()
    again = comes(hand, acknowledges=False)
    dispatch(hand)
    ids = [packet_id for _, packet_id, _ in before]
    assert came(again) == [(b"%d" % one, UNMARKED_MAX + one, False) for one in (1, 2)]
    again.does(*(Puback(packet_id) for packet_id in ids))
    hand.settle()
    hand = hand.restarted()
    assert came(comes(hand)) == [(b"%d" % one, UNMARKED_MAX + one, True) for one in (1, 2)]


@pytest.mark.promise("application-8")
def test_no_more_are_sent_than_ids_are_passed_over(
    hand: HandDrivenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast the client answers. It goes on by itself when the store does."""
    monkeypatch.setattr(lane, "UNMARKED_MAX", 5)
    link = comes(hand)
    while_commits_are_held(hand, *((payload, 1) for payload in numbered(12)))
    assert link.payloads == numbered(5)
    goes_on(hand)
    assert link.payloads == numbered(12)


@pytest.mark.promise("application-8")
def test_who_returns_while_its_marks_are_being_stored_gets_the_same_ids(hand: HandDrivenBroker) -> None:
    link = comes(hand, acknowledges=False)
    while_commits_are_held(hand, (b"1", 1), (b"2", 1))
    link.drops()
    again = hand.keeps("app", client_type=ClientType.APPLICATION, acknowledges=False)
    assert not again.received
    goes_on(hand)
    assert came(again) == [(payload, packet_id, True) for payload, packet_id, _ in came(link)]
    assert all(isinstance(one, Publish) for one in again.messages)


def test_a_session_has_its_own_room() -> None:
    hand = HandDrivenBroker()
    one, other = hand.keeps("one").session, hand.keeps("other").session
    assert one is not None
    assert other is not None
    counts = Unmarked()
    counts.add(one, UNMARKED_MAX - 1)
    counts.add(one, 1)
    counts.add(other, 1)
    assert (counts.room(one), counts.room(other)) == (0, UNMARKED_MAX - 1)
    assert counts.stored(one, 1)
    assert counts.room(one) == 1
    assert not counts.stored(one, UNMARKED_MAX - 1)
    assert not counts.stored(other, 1)
    assert len(counts) == 0


@pytest.mark.parametrize(
    ("known", "next_one"),
    [
        (0, UNMARKED_MAX),
        (7, UNMARKED_MAX + 7),
        (PACKET_IDS, UNMARKED_MAX),
        (PACKET_IDS - UNMARKED_MAX, PACKET_IDS),
    ],
)
def test_the_sequence_goes_on_behind_them(known: int, next_one: int) -> None:
    assert behind_unmarked(known) == next_one


def test_who_answers_within_a_tick_costs_no_mark() -> None:
    """What waits for a commit that takes long is settled in the same tick as it is sent."""
    writes = TickWrites()
    place = StoredPositions(5, 5)
    writes.application_positions[1] = ReaderPosition("", 9, place)
    marks = [ApplicationMark(owner, offset, 7, QueueState.SENT) for owner in (1, 2) for offset in (4, 5)]
    writes.application_marks += marks
    assert writes.marks_left() == marks[1:]
