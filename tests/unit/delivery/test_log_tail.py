"""Connected applications of the embedded log get what is committed at once; the pipeline's copy is passed over."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch, numbered

from embermq.delivery.application import log_tail
from embermq.delivery.application.fed_readers import FedReaders
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.mqtt.wire.packets import Puback, Pubrel
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreFull
from embermq.ports.tick_store import Receipt
from embermq.routing.router import NO_MATCH, Receiver
from embermq.sessions.tick import Accepted


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


def comes(hand: HandDrivenBroker, **options: object) -> HandLink:
    link = hand.keeps("app", client_type=ClientType.APPLICATION, **options)
    if not hand.state.sessions["app"].subscriptions:
        link.subscribes("t/#")
    return link


def publishes(hand: HandDrivenBroker, *payloads: bytes, qos: int = 1) -> None:
    publisher = hand.connects("p")
    publisher.releases = True
    publisher.publishes("t/1", *payloads, qos=qos)
    hand.settle()
    publisher.leaves()


@pytest.mark.promise("application-3")
def test_who_is_there_does_not_wait_for_the_pipeline(hand: HandDrivenBroker) -> None:
    link = comes(hand)
    for number, payload in enumerate(numbered(6)):
        publishes(hand, payload, qos=1 + number % 2)
    assert link.payloads == numbered(6)
    dispatch(hand)
    hand.passes(s=2)
    assert link.payloads == numbered(6)
    assert hand.restarted().applications.lost == 0


@pytest.mark.promise("application-3", "application-8")
@pytest.mark.parametrize("qos", [1, 2])
def test_after_a_crash_what_was_sent_comes_from_its_marks_and_the_rest_by_the_pipeline(
    hand: HandDrivenBroker, qos: int
) -> None:
    link = comes(hand, acknowledges=False, receive_maximum=2)
    publishes(hand, *numbered(4), qos=qos)
    assert link.payloads == numbered(2)
    hand = hand.restarted()
    again = comes(hand)
    hand.settle()
    assert [(one.payload, one.packet_id, one.dup) for one in again.messages] == [
        (one.payload, one.packet_id, True) for one in link.messages
    ]
    dispatch(hand)
    assert again.payloads == numbered(4)
    publishes(hand, b"next")
    assert again.payloads[4:] == [b"next"]


@pytest.mark.promise("application-3")
def test_who_was_away_goes_on_with_the_tail_when_all_before_it_has_come(hand: HandDrivenBroker) -> None:
    comes(hand).drops()
    hand.settle()
    publishes(hand, *numbered(3))
    link = comes(hand)
    publishes(hand, *numbered(3, 3))
    dispatch(hand, until=2)
    assert link.payloads == numbered(2)
    dispatch(hand, until=3)
    assert link.payloads == numbered(6)
    publishes(hand, b"next")
    assert link.payloads[6:] == [b"next"]


@pytest.mark.promise("application-3", "application-5")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_pipeline_that_is_ahead_of_the_answer_of_the_store_doubles_nothing(
    hand: HandDrivenBroker, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    link = comes(hand, acknowledges=False)
    store = hand.store
    hand.held = True
    hand.connects("p").publishes("t/1", *numbered(2), qos=qos)
    hand.settle()
    writes, receipt = store.pending, Receipt(store.log_end, 2)
    assert writes is not None and len(writes.records) == 2
    store._apply(writes)  # the log has it, and whoever reads the log
    dispatch(hand, until=receipt.base_offset + 1)
    with monkeypatch.context() as patched:
        patched.setattr(store, "commit", lambda: store._take()[1](receipt))
        hand.finish_commit()
    hand.held = False
    hand.settle()
    dispatch(hand)
    assert link.payloads == numbered(2)


@pytest.mark.promise("application-7")
def test_a_tail_without_room_leaves_it_to_the_pipeline(
    hand: HandDrivenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = hand.applications
    assert isinstance(readers, FedReaders)
    readers.log_end.bytes_max = 3 * log_tail.ENTRY_BYTES
    link = comes(hand, acknowledges=False, receive_maximum=1)
    for payload in numbered(10):
        publishes(hand, payload)
        assert readers.log_end.bytes <= readers.log_end.bytes_max
    link.acknowledges = True
    link.does(Puback(link.messages[0].packet_id))
    hand.settle()
    assert len(link.payloads) < 10
    dispatch(hand)
    assert link.payloads == numbered(10)
    publishes(hand, b"next")
    assert link.payloads[10:] == [b"next"]
    link.drops()
    hand.settle()
    assert readers.log_end.bytes == 0


@pytest.mark.promise("application-6")
def test_who_stands_still_leaves_others_room(hand: HandDrivenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = hand.applications
    assert isinstance(readers, FedReaders)
    monkeypatch.setattr(log_tail, "TOTAL_BYTES_MAX", 40 * log_tail.ENTRY_BYTES)
    for number in range(5):
        stalled = hand.keeps(
            f"stalled{number}", client_type=ClientType.APPLICATION, acknowledges=False, receive_maximum=1
        )
        stalled.subscribes("t/#")
    link = comes(hand)
    for payload in numbered(60):
        publishes(hand, payload)
        assert readers.log_end.bytes <= log_tail.TOTAL_BYTES_MAX
    assert link.payloads == numbered(60)


@pytest.mark.promise("application-7")
def test_no_more_is_taken_from_the_tail_than_goes_on_a_link(hand: HandDrivenBroker) -> None:
    session = hand.keeps("c").session
    assert session is not None
    end = log_tail.TailsEnd()
    tail = log_tail.LogTail(end, 0)
    message = Message("t", bytes(100_000), 1, False, "p", ProtocolVersion.V5, 0)
    accepted = Accepted(message, bytes(100_000), NO_MATCH, None, 0)
    receiver = Receiver(session, 1, False, ())
    for accepted.offset in range(10):
        tail.deliver(receiver, accepted)
    end.offset = 10
    entries, come_to = tail.take(0, 200)
    assert (len(entries), come_to) == (3, 3)
    entries, come_to = tail.take(5, 200)
    assert ([one.offset for one in entries], come_to) == ([5, 6, 7], 8)
    assert [one.offset for one in tail.take(8, 200)[0]] == [8, 9]
    assert end.bytes == 0


@pytest.mark.promise("application-8")
def test_qos_2_is_marked_before_it_is_sent(hand: HandDrivenBroker) -> None:
    link = comes(hand, acknowledges=False)
    publisher = hand.connects("p")
    publisher.publishes("t/1", b"x", qos=2)
    hand.run()
    assert not link.messages
    hand.failures = [StoreFull("no room")]
    hand.held = True
    hand.run()
    publisher.does(Pubrel(1))
    assert not link.messages
    hand.held = False
    hand.settle()
    assert link.payloads == [b"x"]
    assert [mark.packet_id for mark in hand.store.marks.values()] == [link.messages[0].packet_id]
