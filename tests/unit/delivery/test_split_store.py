"""Session data in a store of its own that answers later, or not before a crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch, numbered
from tests.support.held_sessions import HeldSessions, table

from embermq.broker.settings import MqttSettings
from embermq.delivery.device.settings import DeviceSettings
from embermq.delivery.split.settings import SessionStoreSettings
from embermq.model.client_type import ClientType
from embermq.model.session_writes import QueueState
from embermq.ports.errors import StoreFull
from embermq.protocol.packets import (
    Connack,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from embermq.protocol.version import ProtocolVersion

MIB = 1024 * 1024


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[HeldSessions]:
    store = HeldSessions(tmp_path / "sessions.db")
    yield store
    store.close()


@pytest.fixture
def hand(sessions: HeldSessions) -> HandDrivenBroker:
    return HandDrivenBroker(sessions=sessions, session_store=SessionStoreSettings(waiting_bytes_max=MIB))


def subscriber(hand: HandDrivenBroker, *, qos: int = 2, name: str = "s", **options: object) -> HandLink:
    link = hand.keeps(name, **options)
    link.subscribes("t", qos=qos)
    return link


def generation(hand: HandDrivenBroker, name: str) -> int:
    return hand.state.sessions[name].generation


# While the store is silent


@pytest.mark.promise("device-11", "repositories-5")
def test_qos_1_goes_on_while_the_session_store_is_silent(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    there, publisher = subscriber(hand), hand.connects("p")
    sessions.held = True
    publisher.publishes("t", *numbered(3))
    hand.settle()
    assert len(publisher.all(Puback)) == 3
    assert there.payloads == numbered(3)
    hand.passes(s=2)
    publisher.publishes("t", *numbered(3, 3), first_id=4)
    hand.settle()
    assert there.payloads == numbered(6)
    assert hand.state.counters.messages_elided == 6


def test_what_is_promised_to_sessions_waits(hand: HandDrivenBroker, sessions: HeldSessions) -> None:
    there, publisher = subscriber(hand), hand.keeps("p")
    sessions.held = True
    publisher.publishes("t", b"two", qos=2)
    there.does(Subscribe(7, (Subscription("u", 1),)), Unsubscribe(8, ("t",)))
    newcomer = hand.keeps("new")
    hand.settle()
    assert publisher.all(Pubrec) == [Pubrec(1)]
    publisher.does(Pubrel(1))
    hand.settle()
    assert (there.messages, len(there.all(Suback)), there.all(Unsuback)) == ([], 1, [])
    assert newcomer.received == []
    assert publisher.all(Pubcomp) == []
    sessions.held = False
    hand.settle()
    assert there.payloads == [b"two"]
    assert (len(there.all(Suback)), len(there.all(Unsuback))) == (2, 1)
    assert len(newcomer.all(Connack)) == 1
    assert publisher.all(Pubcomp) == [Pubcomp(1)]


def test_a_client_without_a_kept_session_waits_for_nothing(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    subscriber(hand)
    sessions.held = True
    publisher = hand.connects("p")
    publisher.publishes("t", b"kept", retain=True)
    hand.settle()
    publisher.subscribes("t", qos=1)
    assert publisher.payloads == [b"kept"]
    publisher.publishes("t", b"two", qos=2)
    hand.settle()
    publisher.does(Pubrel(1))
    hand.settle()
    assert publisher.payloads == [b"kept", b"two"]


@pytest.mark.promise("application-4")
def test_an_application_goes_on_while_the_session_store_is_silent(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    app = subscriber(hand, name="app", client_type=ClientType.APPLICATION)
    publisher = hand.connects("p")
    sessions.held = True
    publisher.publishes("t", b"1", b"2", qos=2)
    hand.settle()
    dispatch(hand)
    assert app.payloads == [b"1", b"2"]
    dispatch(hand)
    assert app.in_flight == set()


@pytest.mark.parametrize(
    ("version", "code"), [(ProtocolVersion.V5, 0x88), (ProtocolVersion.V311, 3), (ProtocolVersion.V31, 3)]
)
def test_a_connect_waits_for_a_while_and_is_refused(
    hand: HandDrivenBroker, sessions: HeldSessions, version: ProtocolVersion, code: int
) -> None:
    watcher = hand.connects("w")
    watcher.subscribes("will")
    sessions.held = True
    link = hand.keeps("c", version=version, will=Will("will", b"gone", 0, False))
    hand.passes(s=4.9)
    assert link.received == []
    assert hand.links == [watcher, link]
    hand.passes(s=0.2)
    assert [packet.reason_code for packet in link.all(Connack)] == [code]
    assert link.ended
    assert hand.state.counters.refused_session_wait == 1
    sessions.held = False
    hand.passes(s=10)
    assert watcher.payloads == [], "a client that was never let in has left no will"
    again = hand.keeps("c", version=version)
    assert again.last(Connack).reason_code == 0


def test_a_connect_that_was_answered_is_not_refused_later(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    sessions.held = True
    link = hand.keeps("c")
    hand.passes(s=4)
    sessions.held = False
    hand.settle()
    assert link.last(Connack).reason_code == 0
    hand.passes(s=10)
    assert not link.ended


def test_a_takeover_of_a_client_that_waits(hand: HandDrivenBroker, sessions: HeldSessions) -> None:
    subscriber(hand).drops()
    publisher = hand.connects("p")
    publisher.publishes("t", b"stored", qos=2)
    hand.settle()
    sessions.held = True
    first, second = hand.keeps("s"), hand.keeps("s")
    sessions.held = False
    hand.settle()
    assert first.received == [] and first.ended
    assert second.last(Connack).session_present
    assert second.payloads == [b"stored"]
    assert hand.state.sessions["s"].epoch == 3


def test_a_session_that_is_born_anew_while_writes_wait(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    subscriber(hand).drops()
    publisher = hand.connects("p")
    sessions.held = True
    publisher.publishes("t", b"old", qos=2)
    hand.settle()
    link = hand.connects("s", expiry_s=60)
    sessions.held = False
    hand.settle()
    assert not link.last(Connack).session_present
    link.subscribes("t")
    publisher.publishes("t", b"new", qos=2, first_id=2)
    hand.settle()
    assert link.payloads == [b"new"]
    hand.counts_rows(sessions)


# Limits


@pytest.mark.parametrize("version", [ProtocolVersion.V5, ProtocolVersion.V311])
def test_past_the_limit_of_what_waits_publishes_are_refused(
    hand: HandDrivenBroker, sessions: HeldSessions, version: ProtocolVersion
) -> None:
    subscriber(hand).drops()
    publisher = hand.connects("p", version=version)
    hand.settle()
    sessions.held = True
    payload = bytes(300_000)
    for number in range(1, 5):
        publisher.publishes("t", payload, first_id=number)
        hand.settle()
    assert [packet.reason_code for packet in publisher.all(Puback)] == [0] * 4
    publisher.publishes("t", b"fifth", first_id=5)
    publisher.publishes("u", b"nobody's", qos=0)
    hand.settle()
    if version is ProtocolVersion.V5:
        assert publisher.last(Puback).reason_code == 0x97
    else:
        assert publisher.ended
        publisher = hand.connects("p", version=version)
    assert hand.state.counters.refused_session_store == 1
    sessions.held = False
    hand.settle()
    publisher.publishes("t", b"sixth", first_id=6)
    hand.settle()
    assert publisher.last(Puback).reason_code in (0, 0x10)
    back = hand.keeps("s")
    hand.settle()
    assert back.payloads == [payload] * 4 + [b"sixth"]


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


@pytest.mark.promise("device-6", "device-8")
def test_what_is_being_read_is_not_dropped_and_what_was_dropped_is_not_sent(sessions: HeldSessions) -> None:
    hand = HandDrivenBroker(sessions=sessions, device=DeviceSettings(queue_limit=4, page_messages=2))
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
    assert len(table(sessions, "session")) == (2 if ends == "clean" else 1)
    hand.counts_rows(sessions)


# Crashes


@pytest.mark.promise("device-11", "repositories-5")
def test_what_was_acknowledged_is_not_lost_with_what_waits(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    subscriber(hand).drops()
    publisher = hand.keeps("p")
    publisher.publishes("t", b"0000", qos=2)
    hand.settle()
    sessions.held = True
    publisher.publishes("t", *numbered(3, 1), qos=2, first_id=2)
    hand.settle()
    hand.passes(s=3)
    publisher.publishes("t", *numbered(2, 4), qos=1, first_id=5)
    hand.settle()
    assert (len(publisher.all(Pubrec)), len(publisher.all(Puback))) == (4, 2)
    assert len(sessions.rows(generation(hand, "s"))) == 1
    hand = hand.restarted()
    assert hand.recovered == 5
    hand.settle()
    assert hand.keeps("s").payloads == numbered(6)
    hand.passes(s=1)
    assert hand.store.dispatcher_floor == hand.store.log_end
    assert hand.restarted().recovered == 0


@pytest.mark.promise("repositories-5a")
def test_a_qos_2_message_repeated_after_a_crash_is_one(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    subscriber(hand).drops()
    publisher = hand.keeps("p")
    for packet_id in (1, 2):
        publisher.publishes("t", b"released", qos=2, first_id=packet_id)
        hand.settle()
        publisher.does(Pubrel(packet_id))
        hand.settle()
    assert publisher.all(Pubcomp) == [Pubcomp(1), Pubcomp(2)]
    publisher.publishes("t", b"stored", qos=2, first_id=3)
    hand.settle()
    sessions.held = True
    publisher.publishes("t", b"waits", qos=2, first_id=4)
    hand.settle()
    assert table(sessions, "receiving") == [(generation(hand, "p"), 3)]
    for _ in range(2):  # and what was completed is still so after the next crash
        hand = hand.restarted()
        assert hand.state.sessions["p"].receiving == {3, 4}
        hand.settle()
    publisher = hand.keeps("p")
    publisher.does(
        Publish("t", b"stored", 2, 3, False, True),
        Publish("t", b"waits", 2, 4, False, True),
        Publish("t", b"new", 2, 1),
    )
    hand.settle()
    assert [packet.packet_id for packet in publisher.all(Pubrec)] == [3, 4, 1]
    publisher.does(Pubrel(3), Pubrel(4), Pubrel(1))
    hand.settle()
    assert len(publisher.all(Pubcomp)) == 3
    assert hand.keeps("s").payloads == [b"released"] * 2 + [b"stored", b"waits", b"new"]


@pytest.mark.promise("repositories-5a")
def test_the_floor_stays_behind_what_is_not_stored(hand: HandDrivenBroker, sessions: HeldSessions) -> None:
    subscriber(hand).drops()
    publisher = hand.connects("p")
    publisher.publishes("t", b"1")
    hand.settle()
    hand.passes(s=1)
    assert hand.store.dispatcher_floor == 1
    sessions.held = True
    publisher.publishes("t", b"2", first_id=2)
    hand.settle()
    hand.passes(s=2)
    publisher.publishes("elsewhere", b"3", first_id=3)
    hand.settle()
    hand.passes(s=2)
    assert hand.store.log_end == 3
    assert (hand.store.dispatcher_floor, sessions.floors[-1]) == (1, 1)
    sessions.held = False
    hand.settle()
    assert (hand.store.dispatcher_floor, sessions.floors[-1]) == (3, 3)


def test_a_floor_that_the_log_refuses_is_written_later(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    subscriber(hand, name="app", client_type=ClientType.APPLICATION).drops()
    subscriber(hand)
    publisher = hand.connects("p")
    sessions.held = True
    publisher.publishes("t", b"1", qos=2)
    hand.settle()
    hand.broker.connecting.remove(hand.state.sessions["app"], lambda: None)
    hand.passes(s=1)
    assert hand.store.dispatcher_floor == 0
    hand.failures = [StoreFull("no room")] * 3
    sessions.held = False
    hand.settle()
    hand.passes(s=1)
    assert hand.failures == []
    assert hand.store.dispatcher_floor == sessions.floors[-1] == 1
    assert hand.application_log.floors() == []


@pytest.mark.promise("repositories-5a")
def test_retained_messages_are_completed_from_the_log(hand: HandDrivenBroker, sessions: HeldSessions) -> None:
    publisher = hand.connects("p")
    for topic in ("stays", "replaced", "deleted"):
        publisher.publishes(topic, b"old", retain=True)
    hand.settle()
    sessions.held = True
    publisher.publishes("replaced", b"new", retain=True)
    publisher.publishes("deleted", b"", retain=True)
    publisher.publishes("added", b"first", qos=0, retain=True)
    publisher.publishes("added", b"second", qos=0, retain=True)
    hand.settle()
    expected = {(b"old", "stays"), (b"new", "replaced"), (b"second", "added")}
    for _ in range(2):
        hand = hand.restarted()
        hand.settle()
        link = hand.connects("c")
        link.subscribes("#")
        assert {(message.payload, message.topic) for message in link.messages} == expected
        kept = {(row.topic, row.offset) for row in sessions.load_retained()}
        assert kept == {("stays", 0), ("replaced", 3), ("added", 6)}
        hand.passes(s=1)


@pytest.mark.promise("application-2")
def test_the_end_of_an_application_reaches_the_log_after_its_session(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    hand.keeps("app", client_type=ClientType.APPLICATION).drops()
    hand.settle()
    number = generation(hand, "app")
    sessions.held = True
    hand.broker.connecting.remove(hand.state.sessions["app"], lambda: None)
    hand.connects("p").publishes("t", b"1")
    hand.settle()
    assert [floor.generation for floor in hand.application_log.floors()] == [number]
    sessions.held = False
    hand.settle()
    assert hand.application_log.floors() == []


@pytest.mark.promise("application-2")
def test_the_log_of_an_application_that_was_never_stored_goes_at_start(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    hand.keeps("stays", client_type=ClientType.APPLICATION)
    sessions.held = True
    hand.keeps("never", client_type=ClientType.APPLICATION)
    hand.settle()
    assert len(hand.application_log.floors()) == 2
    hand = hand.restarted()
    hand.settle()
    assert [floor.client_id for floor in hand.application_log.floors()] == ["stays"]


def test_no_generation_is_given_twice_when_the_log_is_new(sessions: HeldSessions) -> None:
    hand = HandDrivenBroker(sessions=sessions)
    subscriber(hand)
    before = generation(hand, "s")
    hand = HandDrivenBroker(sessions=sessions, mqtt=MqttSettings())
    hand.connects("n", expiry_s=60)
    assert generation(hand, "n") > before
