"""Where application logs are apart from the message log, who is there is served from its tail: what of it is stored,
what a crash leaves, and what becomes of the copies that come later."""

from __future__ import annotations

import pytest
from tests.support import hand_kafka
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch, numbered
from tests.support.hand_kafka import HandKafka
from tests.unit.delivery.test_fed_readers import APPLICATION, comes, publishes

from embermq.delivery.application import fenced_reader, log_tail
from embermq.model.application_positions import UNCOUNTED, EarlyMark, ReaderPosition
from embermq.model.unacknowledged import WhyUnacknowledged
from embermq.mqtt.wire.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode


@pytest.fixture
def kafka() -> HandKafka:
    return HandKafka()


@pytest.fixture
def hand(kafka: HandKafka) -> HandDrivenBroker:
    return HandDrivenBroker(kafka=kafka)


def stored(hand: HandDrivenBroker) -> ReaderPosition:
    (position,) = hand.store.positions.values()
    return position


def ids(link: HandLink) -> dict[bytes, int]:
    return {one.payload: one.packet_id for one in link.messages}


def returns(hand: HandDrivenBroker, **options: object) -> HandLink:
    return hand.keeps("app", client_type=APPLICATION, **options)


@pytest.mark.promise("application-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_come_before_their_copies_which_cost_nothing(
    hand: HandDrivenBroker, kafka: HandKafka, qos: int
) -> None:
    application = comes(hand)
    publishes(hand, *numbered(5), qos=qos)
    assert application.payloads == numbered(5)
    assert (stored(hand).served, stored(hand).early) == (((0, 5),), {})
    kafka.carry(0, 1, 4)
    kafka.carry(*range(5))
    hand.settle()
    hand.passes(s=2)
    assert application.payloads == numbered(5)
    assert (hand.store.marks, stored(hand).positions.committed_offset) == ({}, 8)


@pytest.mark.promise("application-8")
def test_what_is_not_acknowledged_gets_its_place_by_its_copy(
    hand: HandDrivenBroker, kafka: HandKafka
) -> None:
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(3))
    given = ids(application)
    assert stored(hand).early == {at: EarlyMark(given[b"%04d" % at], 1) for at in range(3)}
    assert hand.store.marks == {}
    kafka.carry(0, 1)
    hand.settle()
    assert list(stored(hand).early) == [2]
    assert [mark.source for mark in hand.store.marks.values()] == [0, 1]
    application.does(Puback(given[b"0001"]), Puback(given[b"0002"]))
    hand.settle()
    kafka.carry(2)
    hand = hand.restarted()
    again = returns(hand)
    assert [(one.payload, one.packet_id, one.dup) for one in again.messages] == [
        (b"0000", given[b"0000"], True)
    ]
    hand.passes(s=2)
    assert (hand.store.marks, stored(hand).positions.committed_offset) == ({}, 3)


@pytest.mark.promise("application-5", "application-8")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("crash", [False, True])
def test_who_returns_gets_the_same_ids_when_the_copies_come(
    hand: HandDrivenBroker, kafka: HandKafka, qos: int, crash: bool
) -> None:
    """In order, what is new behind them; the pipeline may have had nothing to say for long."""
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(3), qos=qos)
    given = ids(application)
    application.drops()
    hand.settle()
    publishes(hand, b"0003", qos=qos)
    if crash:
        hand = hand.restarted()
    again = returns(hand, acknowledges=False)
    publishes(hand, b"0004", qos=qos)
    assert again.messages == []
    dispatch(hand)
    assert again.payloads == numbered(5)
    assert [one.dup for one in again.messages] == [True, True, True, False, False]
    assert {payload: ids(again)[payload] for payload in given} == given
    assert len(set(ids(again).values())) == 5
    hand.passes(s=2)
    publishes(hand, b"0005", qos=qos)
    assert again.payloads == numbered(6), "the tail serves again"


@pytest.mark.promise("application-8")
@pytest.mark.parametrize("crash", [False, True])
def test_a_late_answer_to_what_was_not_sent_again_counts(
    hand: HandDrivenBroker, kafka: HandKafka, crash: bool
) -> None:
    application = comes(hand, acknowledges=False)
    publishes(hand, b"one")
    publishes(hand, b"two", qos=2)
    given = ids(application)
    application.drops()
    hand.settle()
    if crash:
        hand = hand.restarted()
    again = returns(hand)
    again.does(Puback(given[b"one"]), Pubrec(given[b"two"]))
    hand.settle()
    assert [type(one) for one in again.received[1:]] == [Pubrel]
    dispatch(hand)
    hand.passes(s=2)
    assert again.messages == []
    assert (stored(hand).early, hand.store.marks) == ({}, {})


@pytest.mark.promise("application-5")
@pytest.mark.parametrize("copied", [False, True])
def test_a_released_message_is_never_published_again(
    hand: HandDrivenBroker, kafka: HandKafka, copied: bool
) -> None:
    application = comes(hand, acknowledges=False)
    publishes(hand, b"once", qos=2)
    (packet_id,) = ids(application).values()
    application.does(Pubrec(packet_id))
    hand.settle()
    if copied:
        kafka.carry(0)
        hand.settle()
    hand = hand.restarted()
    again = returns(hand, acknowledges=False)
    kafka.carry(0)
    hand.settle()
    assert [type(one) for one in again.received[1:]] == [Pubrel]
    again.does(Pubcomp(packet_id))
    hand.settle()
    kafka.carry(0)
    hand = hand.restarted()
    last = returns(hand)
    hand.passes(s=2)
    assert not [one for one in last.received if isinstance(one, Publish | Pubrel)]
    assert (stored(hand).early, hand.store.marks) == ({}, {})


@pytest.mark.promise("application-5")
def test_qos_2_waits_until_its_id_is_stored(hand: HandDrivenBroker) -> None:
    application = comes(hand)
    publisher = hand.connects("p")
    publisher.releases = True
    publisher.publishes("t/1", b"message", qos=2)
    hand.held = True
    hand.settle()
    hand.finish_commit()
    hand.settle()
    assert application.messages == []
    hand.held = False
    hand.finish_commit()
    hand.settle()
    assert application.payloads == [b"message"]


@pytest.mark.promise("application-3")
@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_tail_without_room_leaves_the_rest_to_the_log(
    hand: HandDrivenBroker, kafka: HandKafka, monkeypatch: pytest.MonkeyPatch, acknowledged: bool
) -> None:
    application = comes(hand, acknowledges=acknowledged, receive_maximum=2)
    monkeypatch.setattr(log_tail, "TOTAL_BYTES_MAX", 1_500)
    publishes(hand, *numbered(2))
    assert application.payloads == numbered(2)
    publishes(hand, *numbered(7, 2))
    publishes(hand, b"0009")
    assert application.payloads == numbered(2)
    dispatch(hand)
    for number in () if acknowledged else range(10):
        application.does(Puback(application.messages[number].packet_id))
        hand.settle()
    assert application.payloads == numbered(10)
    hand.passes(s=3)
    publishes(hand, b"0010")
    assert application.payloads[10:] == [b"0010"][: acknowledged + 1]


@pytest.mark.promise("application-3")
def test_the_tail_waits_until_all_that_was_before_it_is_sent(
    hand: HandDrivenBroker, kafka: HandKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is brought in pieces, and the client takes a while."""
    monkeypatch.setattr(hand_kafka, "BATCH", 1)
    comes(hand).drops()
    publishes(hand, *numbered(9))
    kafka.feeds.unread_bytes_max = 1
    application = returns(hand, acknowledges=False, receive_maximum=2)
    dispatch(hand)
    hand.passes(s=2)
    publishes(hand, b"0009")
    for number in range(9):
        application.does(Puback(application.messages[number].packet_id))
        hand.settle()
        hand.passes(s=2)
    assert application.payloads == numbered(10)


@pytest.mark.promise("application-8")
@pytest.mark.parametrize("copied", [False, True])
def test_what_was_handed_to_the_store_is_not_changed_by_what_follows(
    hand: HandDrivenBroker, kafka: HandKafka, copied: bool
) -> None:
    application = comes(hand, acknowledges=False)
    publishes(hand, b"one")
    before = stored(hand)
    assert list(before.early) == [0]
    hand.held = True
    if copied:
        kafka.carry(0)
    else:
        application.does(Puback(application.messages[0].packet_id))
    hand.settle()
    assert list(before.early) == [0]
    hand = hand.restarted()
    again = returns(hand)
    dispatch(hand)
    assert [(one.payload, one.dup) for one in again.messages] == [(b"one", True)]


@pytest.mark.promise("application-3")
def test_no_more_are_early_than_a_row_may_tell_of(
    hand: HandDrivenBroker, kafka: HandKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fenced_reader, "UNMARKED_MAX", 4)
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(9))
    assert application.payloads == numbered(4)
    kafka.carry(0, 1)
    hand.settle()
    assert application.payloads == numbered(6)
    application.does(Puback(application.messages[3].packet_id))
    hand.passes(s=1)
    assert application.payloads == numbered(7)


@pytest.mark.promise("application-8")
def test_marks_may_be_stored_without_the_row_behind_them(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    """Many are stored in parts, the row with the last."""
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(2))
    given = ids(application)
    ((generation, before),) = hand.store.positions.items()
    kafka.carry(0, 1)
    hand.settle()
    hand.store.positions[generation] = before
    hand = hand.restarted()
    again = returns(hand)
    dispatch(hand)
    hand.passes(s=2)
    assert (again.payloads, ids(again)) == (numbered(2), given)
    assert (stored(hand).early, hand.store.marks) == ({}, {})


@pytest.mark.promise("application-8")
def test_what_was_early_goes_on_when_its_log_is_lost(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    """Its copies may have stood there: it is read again from the message log."""
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(3))
    given = ids(application)
    application.drops()
    hand.settle()
    del kafka.topics[kafka.logs.name("app")]
    again = returns(hand)
    hand.settle()
    assert [(one.payload, one.packet_id, one.dup) for one in again.messages] == [
        (payload, packet_id, True) for payload, packet_id in given.items()
    ]
    dispatch(hand)
    publishes(hand, b"new")
    dispatch(hand)
    assert again.payloads == [*numbered(3), b"new"]


@pytest.mark.promise("pipeline-12")
def test_what_is_not_acknowledged_is_written_down_by_its_source_and_the_rest_is_counted(
    hand: HandDrivenBroker, kafka: HandKafka
) -> None:
    """Refused before its copy comes and behind it, expired in its log, and too large by the tail."""
    application = comes(hand, acknowledges=False, properties=Properties(maximum_packet_size=200))
    publishes(hand, *numbered(3))
    given = ids(application)
    application.does(Puback(given[b"0000"], ReasonCode.QUOTA_EXCEEDED))
    kafka.carry(1, 0)
    hand.settle()
    application.does(Puback(given[b"0001"], ReasonCode.QUOTA_EXCEEDED), Puback(given[b"0002"]))
    publishes(hand, b"4" * 400)
    application.drops()
    publisher = hand.connects("p")
    publisher.does(Publish("t/1", b"late", 1, 9, properties=Properties(message_expiry_interval=5)))
    hand.passes(s=6)
    kafka.reads(hand.log)
    kafka.carry(2, 3, 4)
    kafka.report()
    hand = hand.restarted()
    application = returns(hand)
    hand.passes(s=3)
    assert application.payloads == []
    why = WhyUnacknowledged
    assert {(position, reason) for _, position, reason in hand.store.unacknowledged} == {
        (0, why.REFUSED),
        (1, why.REFUSED),
        (3, why.TOO_LARGE),
        (4, why.EXPIRED),
    }
    assert (stored(hand).settled, stored(hand).positions.committed_offset) == (4, 5)


def test_a_count_that_cannot_be_right_any_more_says_so(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    application = comes(hand)
    publishes(hand, *numbered(2))
    assert stored(hand).settled == 2
    application.drops()
    del kafka.topics[kafka.logs.name("app")]
    returns(hand)
    publishes(hand, b"more")
    hand.passes(s=2)
    assert stored(hand).settled == UNCOUNTED
