"""The stored queue of a session in a store of its own: limits, pages that come later, shared subscriptions."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, numbered
from tests.support.held_sessions import HeldSessions, table
from tests.unit.durability.behind import generation, subscriber

from embermq.delivery.device import requests
from embermq.delivery.device.settings import DeviceSettings
from embermq.model.session_writes import QueueState
from embermq.mqtt.wire.packets import (
    Connack,
    Puback,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from embermq.mqtt.wire.version import ProtocolVersion

MIB = 1024 * 1024


# Limits


def test_past_the_limit_of_what_waits_nothing_is_promised_to_sessions(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    there = subscriber(hand)
    subscriber(hand, name="away").drops()
    publisher = hand.connects("p")
    sessions.held = True
    for number in range(1, 5):
        publisher.publishes("t", bytes(300_000), first_id=number)
        hand.settle()
    assert hand.state.session_store_full
    waiting = len(sessions.waiting)
    late = [hand.keeps("late"), hand.keeps("away"), hand.connects("w", will=Will("t", b"", 0, False))]
    there.does(Subscribe(9, (Subscription("u", 1),)))
    hand.connects("direct").subscribes("t")
    hand.settle()
    assert [link.last(Connack).reason_code for link in late] == [0x88] * 3
    sessions.held = False
    hand.settle()
    assert there.last(Suback).reason_codes == (0x97,)
    assert waiting >= 4
    assert hand.keeps("late").last(Connack).reason_code == 0


@pytest.mark.promise("device-6")
def test_the_limit_of_a_queue_drops_what_is_stored(sessions: HeldSessions) -> None:
    hand = HandDrivenBroker(sessions=sessions, device=DeviceSettings(queue_limit=3))
    subscriber(hand).drops()
    publisher = hand.connects("p")
    sessions.held = True
    for number in range(8):
        publisher.publishes("t", b"%04d" % number, first_id=number + 1)
        hand.settle()
    sessions.held = False
    hand.settle()
    assert hand.state.sessions["s"].queued == 3
    hand.counts_rows(sessions)
    assert hand.keeps("s").payloads == numbered(3, 5)
    assert hand.state.counters.dropped_offline_limit == 5


@pytest.mark.promise("device-6")
def test_a_drop_is_counted_when_no_crash_takes_it_back(sessions: HeldSessions) -> None:
    hand = HandDrivenBroker(sessions=sessions, device=DeviceSettings(queue_limit=3))
    subscriber(hand).drops()
    session, counters = hand.state.sessions["s"], hand.state.counters

    def stored_and_counted() -> tuple[int, int]:
        states = [state for _, state, _ in sessions.rows(session.generation)]
        return states.count(QueueState.QUEUED), counters.dropped_offline_limit

    sessions.held = True
    hand.connects("p").publishes("t", *numbered(8))
    hand.settle()
    while session.queued > 3:
        sessions.release()
        hand.settle()
    assert stored_and_counted() == (8, 0), "it is decided"
    while sessions.waiting:
        sessions.release()
        hand.settle()
    assert stored_and_counted() == (3, 5)


@pytest.mark.promise("device-6")
def test_the_limit_counts_what_is_not_stored_yet_and_drops_it_once_it_is(sessions: HeldSessions) -> None:
    hand = HandDrivenBroker(sessions=sessions, device=DeviceSettings(queue_limit=2))
    subscriber(hand).drops()
    publisher = hand.connects("p")
    session = hand.state.sessions["s"]
    sessions.held = True
    publisher.publishes("t", *numbered(3))
    hand.settle()
    publisher.publishes("t", *numbered(3, 3), first_id=4)
    while session.queued == 3:
        hand.run()
    assert hand.state.tick.session_writes.queue_rows, "they are not handed over yet"
    while sessions.waiting:
        sessions.release()
    sessions.held = False
    hand.settle()
    assert (session.queued, hand.state.counters.dropped_offline_limit) == (2, 4)
    hand.counts_rows(sessions)
    assert hand.keeps("s").payloads == numbered(2, 4)


@pytest.mark.promise("device-6", "device-8")
def test_what_is_being_read_is_not_dropped_and_what_was_dropped_is_not_sent(
    sessions: HeldSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PAGE_MESSAGES", 2)
    hand = HandDrivenBroker(sessions=sessions, device=DeviceSettings(queue_limit=4))
    subscriber(hand).drops()
    publisher = hand.connects("p")
    publisher.publishes("t", *numbered(4))
    hand.settle()
    sessions.held = True
    back = hand.keeps("s", acknowledges=False, receive_maximum=2)
    for number in range(4, 10):
        publisher.publishes("t", b"%04d" % number, first_id=number + 1)
        hand.settle()
        if sessions.waiting:
            sessions.release()
            hand.settle()
    sessions.held = False
    hand.settle()
    back.acknowledges = True
    for message in back.messages:
        back.does(Puback(message.packet_id))
    hand.settle()
    hand.passes(s=1)
    assert back.payloads == sorted(set(back.payloads)), "in order, and once"
    assert back.payloads[-1] == b"0009"
    dropped = hand.state.counters.dropped_offline_limit
    assert len(back.payloads) == 10 - dropped
    assert (hand.state.sessions["s"].queued, hand.state.sessions["s"].queued_bytes) == (0, 0)


# Reading the backlog


@pytest.mark.promise("device-8")
def test_messages_queue_behind_a_page_that_is_being_read(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    subscriber(hand).drops()
    publisher = hand.connects("p")
    publisher.publishes("t", *numbered(3))
    hand.settle()
    back = hand.keeps("s", settles=False)
    hand.run()
    sessions.held = True
    hand.settle()
    assert back.all(Connack) != [] and back.messages == []
    publisher.publishes("t", *numbered(3, 3), first_id=4)
    hand.settle()
    assert len(publisher.all(Puback)) == 6
    while sessions.waiting:
        sessions.release()
        hand.settle()
    assert back.payloads == numbered(6)
    assert not hand.state.sessions["s"].backlog
    publisher.publishes("t", b"live", first_id=7)
    hand.settle()
    assert back.payloads[-1] == b"live", "live again, though the store is silent"


@pytest.mark.promise("device-8")
def test_a_client_that_goes_while_its_backlog_is_read(hand: HandDrivenBroker, sessions: HeldSessions) -> None:
    subscriber(hand).drops()
    publisher = hand.connects("p")
    publisher.publishes("t", *numbered(5), qos=2)
    hand.settle()
    back = hand.keeps("s", settles=False)
    hand.run()
    sessions.held = True
    hand.settle()
    for _ in range(10):  # at every step of the way
        back.drops()
        back = hand.keeps("s", settles=False)
        hand.settle()
        if sessions.waiting:
            sessions.release()
        hand.settle()
    sessions.held = False
    hand.settle()
    assert back.payloads == numbered(5)
    hand.settle()
    hand.counts_rows(sessions)
    assert hand.state.sessions["s"].queued == 0


@pytest.mark.promise("device-8")
def test_a_page_for_a_connection_before_is_nobodys(hand: HandDrivenBroker, sessions: HeldSessions) -> None:
    subscriber(hand).drops()
    hand.connects("p").publishes("t", *numbered(5))
    hand.settle()
    before = hand.keeps("s", settles=False)
    hand.run()
    sessions.held = True
    hand.settle()
    assert before.all(Connack) != []
    before.drops()
    back = hand.keeps("s")
    while sessions.waiting:
        sessions.release()
        hand.settle()
    assert [(message.payload, message.dup) for message in back.messages] == [
        (payload, False) for payload in numbered(5)
    ]
    assert hand.state.sessions["s"].queued == 0


@pytest.mark.promise("device-4")
def test_the_packet_id_that_the_store_gave_is_taken_when_it_is_free(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    subscriber(hand).drops()
    publisher = hand.connects("p")
    publisher.publishes("t", *numbered(3))
    hand.settle()
    given = [packet_id for _, _, packet_id in sessions.rows(generation(hand, "s"))]
    assert all(given)
    back = hand.keeps("s", acknowledges=False)
    assert [message.packet_id for message in back.messages] == given
    assert sessions.rows(generation(hand, "s")) == [
        (offset, QueueState.SENT, packet_id) for offset, packet_id in enumerate(given)
    ]


@pytest.mark.promise("device-4")
def test_a_packet_id_in_flight_is_not_taken_again(hand: HandDrivenBroker, sessions: HeldSessions) -> None:
    subscriber(hand).drops()
    publisher = hand.connects("p")
    publisher.publishes("t", b"first")
    hand.settle()
    hand.keeps("s", acknowledges=False).drops()
    publisher.publishes("t", b"second", first_id=2)
    hand.settle()
    first, second = sessions.rows(generation(hand, "s"))
    sessions.connection.execute("UPDATE device_queue SET packet_id = ? WHERE state = 0", (first[2],))
    back = hand.keeps("s", acknowledges=False)
    assert back.payloads == [b"first", b"second"]
    assert len({message.packet_id for message in back.messages}) == 2
    assert second[2] != 0


def test_a_record_that_the_store_has_lost_is_counted_out(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    subscriber(hand).drops()
    publisher = hand.connects("p")
    publisher.publishes("t", *numbered(3), qos=2)
    hand.settle()
    hand.keeps("s", acknowledges=False, receive_maximum=1).drops()
    sessions.connection.execute("UPDATE device_queue SET record = x'' WHERE \"offset\" < 2")
    back = hand.keeps("s")
    assert back.payloads == [b"0002"]
    assert (hand.state.sessions["s"].queued, hand.state.sessions["s"].queued_bytes) == (0, 0)


def test_a_pubrel_is_owed_though_the_store_has_lost_the_record(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    link = subscriber(hand, acknowledges=False)
    hand.connects("p").publishes("t", b"1", qos=2)
    hand.settle()
    link.does(Pubrec(link.messages[0].packet_id))
    hand.settle()
    link.drops()
    sessions.connection.execute("UPDATE device_queue SET record = x''")
    back = hand.keeps("s")
    assert back.all(Pubrel) == [Pubrel(link.messages[0].packet_id)]
    assert hand.state.sessions["s"].queued == 0


# Shared subscriptions


@pytest.mark.parametrize("ends", ["expires", "clean", "removed"])
def test_what_a_member_that_ends_has_stored_goes_to_another(
    hand: HandDrivenBroker, sessions: HeldSessions, ends: str
) -> None:
    leaving = hand.keeps("leaving", version=ProtocolVersion.V5)
    leaving.subscribes("$share/g/t", qos=2)
    leaving.drops()
    publisher = hand.connects("p")
    publisher.publishes("t", *numbered(4), qos=2)
    hand.settle()
    staying = hand.keeps("staying")
    staying.subscribes("$share/g/t", qos=2)
    sessions.held = True
    publisher.publishes("t", b"waits", qos=2, first_id=9)
    hand.settle()
    durable: list[bool] = []
    if ends == "clean":
        hand.connects("leaving", expiry_s=60)
    elif ends == "removed":
        session = hand.state.sessions["leaving"]
        hand.broker.connecting.remove(session, lambda: durable.append(True))
    else:
        hand.passes(s=86_400)
    hand.settle()
    assert durable == []
    sessions.held = False
    hand.settle()
    if staying.ended:
        staying = hand.keeps("staying")
    assert sorted(staying.payloads) == [*numbered(4), b"waits"]
    assert durable == ([True] if ends == "removed" else [])
    clients = [row for row in table(sessions, "session") if row[1] != "$share/g/t"]
    assert len(clients) == (2 if ends == "clean" else 1)
    hand.counts_rows(sessions)


def test_what_is_handed_over_is_stored_before_its_old_place_goes(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    leaving = hand.connects("leaving", expiry_s=10, acknowledges=False)
    leaving.subscribes("$share/g/t", qos=1)
    publisher = hand.connects("p")
    publisher.publishes("t", *numbered(3))
    hand.settle()
    leaving.drops()
    hand.settle()
    staying = hand.keeps("staying")
    staying.subscribes("$share/g/t", qos=1)
    staying.drops()
    hand.settle()
    sessions.held = True
    hand.passes(s=11)
    while len(sessions.waiting) > 1:
        sessions.release()
        hand.settle()
    hand = hand.restarted()
    hand.settle()
    assert sorted(set(hand.keeps("staying").payloads)) == numbered(3), "twice at most, and nothing is lost"


def test_rows_that_the_store_has_not_been_shown_are_handed_over_too(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    leaving = hand.keeps("leaving", acknowledges=False)
    leaving.subscribes("$share/g/t", qos=2)
    publisher = hand.connects("p")
    publisher.publishes("t", b"stored")
    hand.settle()
    hand.passes(s=1)
    staying = hand.keeps("staying")
    staying.subscribes("$share/g/t", qos=2)
    staying.drops()
    hand.settle()
    publisher.publishes("t", b"in the log", first_id=2)
    hand.settle()
    leaving.drops()
    assert [row.generation for row in hand.state.tick.session_writes.queue_rows] == [
        generation(hand, "leaving")
    ]
    hand.broker.connecting.remove(hand.state.sessions["leaving"], lambda: None)
    hand.settle()
    assert sorted(hand.keeps("staying").payloads) == [b"in the log", b"stored"]


# The order of what is resent


def test_what_overtakes_a_message_that_is_being_stored_is_resent_before_it(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    """QoS 1 does not wait for the store, QoS 2 does: the client had it first."""
    there = subscriber(hand, acknowledges=False)
    hand.settle()
    publisher = hand.connects("p")
    publisher.publishes("t", b"before", first_id=1)
    hand.settle()
    sessions.held = True
    publisher.publishes("t", b"stored 1", qos=2, first_id=2)
    hand.settle()
    publisher.publishes("t", b"overtakes", first_id=3)
    publisher.publishes("t", b"overtakes too", first_id=4)
    hand.settle()
    publisher.publishes("t", b"stored 2", qos=2, first_id=5)
    publisher.publishes("t", b"after", first_id=6)
    hand.settle()
    sessions.held = False
    hand.settle()
    sent = there.payloads
    assert sent == [b"before", b"overtakes", b"overtakes too", b"after", b"stored 1", b"stored 2"]
    there.drops()
    hand.settle()
    back = hand.keeps("s", acknowledges=False)
    hand.settle()
    assert back.payloads == sent
