"""Session data in a store of its own that answers later, or not before a crash."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, dispatch, numbered
from tests.support.held_sessions import HeldSessions, table
from tests.unit.durability.behind import generation, subscriber

from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import (
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
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.settings import MqttSettings

MIB = 1024 * 1024


# While the store is silent


@pytest.mark.promise("device-11")
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
@pytest.mark.parametrize("qos", [1, 2])
def test_an_application_is_sent_qos_2_when_its_packet_ids_are_stored(
    hand: HandDrivenBroker, sessions: HeldSessions, qos: int
) -> None:
    """QoS 1 does not wait for that."""
    app = subscriber(hand, name="app", client_type=ClientType.APPLICATION)
    publisher = hand.connects("p")
    sessions.held = True
    publisher.publishes("t", b"1", b"2", qos=qos)
    hand.settle()
    dispatch(hand)
    assert app.payloads == ([b"1", b"2"] if qos == 1 else [])
    sessions.held = False
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


def test_a_session_that_has_ended_is_gone_before_the_client_hears_so(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    """Its successor is not kept: nothing but the end of the old one is to be stored."""
    hand.keeps("s").drops()
    hand.settle()
    sessions.held = True
    links = [hand.connects("s", settles=False), hand.connects("o", settles=False)]
    hand.settle()
    assert [len(link.all(Connack)) for link in links] == [0, 1], "nobody else waits"
    sessions.held = False
    hand.settle()
    assert not links[0].last(Connack).session_present
    hand = hand.restarted()
    assert not hand.keeps("s").last(Connack).session_present


# Crashes


@pytest.mark.promise("device-11")
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


@pytest.mark.promise("repositories-4")
def test_the_floor_stays_behind_what_the_session_store_may_lose_again(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    """What it confirmed a moment ago; at the end of the broker it does not."""
    hand.ticks = hand.log_first(settle_ms=5_000)
    subscriber(hand).drops()
    publisher = hand.connects("p")

    def written() -> int:
        hand.ticks.settle()
        hand.settle()
        return sessions.floor

    publisher.publishes("t", b"1")
    hand.passes(s=1)
    assert written() == 0
    hand.passes(s=3)
    assert written() == 0
    publisher.publishes("t", b"2", first_id=2)
    hand.passes(s=2)
    assert written() == 1
    hand.ticks.hurry()
    assert written() == 2


@pytest.mark.promise("repositories-4")
def test_the_time_to_settle_begins_when_the_session_store_has_answered(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    """And not with the tick before, which may be long ago."""
    hand.ticks = hand.log_first(settle_ms=5_000)
    subscriber(hand).drops()
    publisher = hand.connects("p")
    sessions.held = True
    publisher.publishes("t", b"1")
    hand.passes(s=1)
    last_tick_ms = hand.now_ms
    sessions.held = False
    sessions.answer()

    def floor_after(ms: int) -> int:
        hand.state.tick.now_ms = last_tick_ms + ms
        hand.ticks.settle()
        hand.settle()
        return sessions.floor

    assert [floor_after(ms) for ms in (4_000, 6_000, 8_900, 9_000)] == [0, 0, 0, 1]


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
        written = [write.topic for write in hand.state.tick.session_writes.retained]
        assert written in (["replaced", "deleted", "added"], [])
        hand.settle()
        link = hand.connects("c")
        link.subscribes("#")
        assert {(message.payload, message.topic) for message in link.messages} == expected
        kept = {(row.topic, row.offset) for row in sessions.load_retained()}
        assert kept == {("stays", 0), ("replaced", 3), ("added", 6)}
        hand.passes(s=1)


@pytest.mark.promise("repositories-6")
def test_a_will_that_went_out_does_not_go_out_again(hand: HandDrivenBroker, sessions: HeldSessions) -> None:
    subscriber(hand, name="w").drops()
    leaves = hand.keeps("c", will=Will("t", b"first", 2, False))
    hand.passes(s=1)
    sessions.held = True
    leaves.drops()
    hand.settle()
    for _ in range(2):
        hand = hand.restarted()
        hand.settle()
        hand.passes(s=1)
    assert hand.keeps("w").payloads == [b"first"]


@pytest.mark.promise("repositories-6")
def test_the_will_after_one_that_went_out_is_another_one(
    hand: HandDrivenBroker, sessions: HeldSessions
) -> None:
    subscriber(hand, name="w").drops()
    hand.keeps("c", will=Will("t", b"first", 2, False))
    hand.passes(s=1)
    hand.keeps("c", will=Will("t", b"second", 2, False))
    assert hand.store.dispatcher_floor < hand.store.log_end
    hand = hand.restarted()
    hand.settle()
    assert hand.keeps("w").payloads == [b"first", b"second"]


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


def test_no_generation_is_given_twice_when_the_log_is_new(sessions: HeldSessions) -> None:
    hand = HandDrivenBroker(sessions=sessions)
    subscriber(hand)
    before = generation(hand, "s")
    hand = HandDrivenBroker(sessions=sessions, mqtt=MqttSettings())
    hand.connects("n", expiry_s=60)
    assert generation(hand, "n") > before
