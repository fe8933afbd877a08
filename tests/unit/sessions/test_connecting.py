"""CONNECT, takeover, the end of a connection and of a session, wills, keep-alive, timers."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink

from embermq.model.session import NEVER_EXPIRES
from embermq.mqtt.wire.packets import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreFull
from embermq.sessions.settings import MqttSettings
from embermq.sessions.timers import Timers

V5, V311, V31 = ProtocolVersion.V5, ProtocolVersion.V311, ProtocolVersion.V31


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


@pytest.fixture
def watcher(hand: HandDrivenBroker) -> HandLink:
    """Sees wills, at `will/#`."""
    link = hand.connects("watcher")
    link.subscribes("will/#")
    return link


def will(payload: bytes = b"gone", *, qos: int = 1, delay_s: int | None = None, retain: bool = False) -> Will:
    properties = Properties(will_delay_interval=delay_s) if delay_s is not None else None
    return Will("will/x", payload, qos, retain, properties)


def connack(link: HandLink) -> Connack:
    found = link.received[0]
    assert isinstance(found, Connack)
    return found


# Sessions begin and go on


@pytest.mark.parametrize(("version", "told"), [(V31, False), (V311, True), (V5, True)])
def test_a_session_goes_on(hand: HandDrivenBroker, version: ProtocolVersion, told: bool) -> None:
    first = hand.keeps("c", version=version)
    assert not connack(first).session_present
    first.leaves()
    second = hand.keeps("c", version=version)
    assert connack(second).session_present is told
    assert hand.state.sessions["c"].epoch == 2


@pytest.mark.promise("repositories-7")
@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_clean_start_clears_everything(hand: HandDrivenBroker, version: ProtocolVersion) -> None:
    kept = hand.keeps("c", version=version)
    kept.subscribes("t")
    kept.leaves()
    publisher = hand.connects("p")
    publisher.publishes("t", b"1", b"2")
    hand.settle()
    assert len(hand.store.queue) == 2
    again = hand.connects("c", version=version)
    assert not connack(again).session_present
    assert again.messages == []
    assert (hand.store.queue, hand.store.subscriptions) == ({}, {})
    again.leaves()
    assert not connack(hand.keeps("c", version=version)).session_present
    assert len(hand.state.router) == 0


@pytest.mark.promise("repositories-7")
def test_a_clean_start_beside_stored_writes_leaves_no_rows(hand: HandDrivenBroker) -> None:
    kept = hand.keeps("c")
    kept.subscribes("t")
    kept.leaves()
    publisher = hand.connects("p")
    for clean_first in (True, False):
        hand.held = True
        if not clean_first:
            publisher.publishes("t", b"x")
        hand.connects("c", settles=False)
        publisher.publishes("t", b"y")
        hand.run()
        hand.held = False
        hand.settle()
        assert hand.store.queue == {}
        hand.connects("c").leaves()
        kept = hand.keeps("c")
        kept.subscribes("t")
        kept.leaves()


@pytest.mark.promise("repositories-7")
def test_a_session_expires_by_the_timer(hand: HandDrivenBroker) -> None:
    link = hand.connects("c", clean_start=False, expiry_s=60)
    link.subscribes("t")
    hand.passes(s=300)
    link.drops()
    hand.settle()
    hand.passes(s=59)
    assert len(hand.store.sessions) == 1
    hand.passes(s=2)
    assert hand.store.sessions == {}
    assert (len(hand.state.sessions), len(hand.state.router)) == (0, 0)


@pytest.mark.promise("repositories-7")
def test_expiry_is_checked_at_connect_and_survives_a_crash(hand: HandDrivenBroker) -> None:
    for client_id, expiry_s in (("short", 60), ("long", 600), ("ever", NEVER_EXPIRES)):
        link = hand.connects(client_id, clean_start=False, expiry_s=expiry_s)
        if client_id != "short":
            link.drops()
    hand.settle()
    hand = hand.restarted(after_ms=30_000)
    hand.settle()
    hand.state.tick.now_ms += 61_000
    assert not connack(hand.connects("short", clean_start=False, expiry_s=60)).session_present
    assert connack(hand.connects("long", clean_start=False, expiry_s=600)).session_present
    hand.passes(s=10_000)
    assert connack(hand.connects("ever", clean_start=False, expiry_s=NEVER_EXPIRES)).session_present


@pytest.mark.promise("repositories-7")
def test_disconnect_may_change_the_expiry(hand: HandDrivenBroker) -> None:
    link = hand.keeps("c")
    link.leaves(properties=Properties(session_expiry_interval=0))
    assert hand.store.sessions == {}
    link = hand.keeps("c")
    link.leaves(properties=Properties(session_expiry_interval=5))
    hand.passes(s=6)
    assert hand.store.sessions == {}
    link = hand.connects("c")
    link.does(Disconnect(0, Properties(session_expiry_interval=5)))
    hand.settle()
    assert link.last(Disconnect).reason_code == 0x82


def test_a_kept_session_that_asks_for_no_expiry_ends_with_its_connection(hand: HandDrivenBroker) -> None:
    hand.keeps("c").leaves()
    link = hand.connects("c", clean_start=False, expiry_s=0)
    assert connack(link).session_present
    link.leaves()
    assert hand.store.sessions == {}


def test_the_longest_expiry_is_told() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(session_expiry_max_s=100))
    properties = connack(hand.keeps("c")).properties
    assert properties is not None
    assert properties.session_expiry_interval == 100


@pytest.mark.parametrize("version", [V311, V5])
def test_an_empty_client_id_is_given_one(hand: HandDrivenBroker, version: ProtocolVersion) -> None:
    link = hand.connects("", version=version)
    assert connack(link).reason_code == 0
    if version is V5:
        assert connack(link).properties is not None
        assert connack(link).properties.assigned_client_identifier == "given-id"  # type: ignore[union-attr]


@pytest.mark.parametrize(("client_id", "version"), [("", V311), ("", V31)])
def test_a_client_id_that_cannot_be(client_id: str, version: ProtocolVersion) -> None:
    hand = HandDrivenBroker()
    link = hand.connects(client_id, version=version, clean_start=False)
    assert connack(link).reason_code == 2
    assert link.ended
    assert not hand.state.sessions


def test_a_long_client_id_is_taken_in_31(hand: HandDrivenBroker) -> None:
    assert connack(hand.connects("x" * 24, version=V31)).reason_code == 0


@pytest.mark.parametrize(
    ("length", "version", "code"), [(23, V31, 0), (24, V31, 2), (24, V311, 0), (24, V5, 0)]
)
def test_the_settings_may_hold_31_to_its_23_characters(
    length: int, version: ProtocolVersion, code: int
) -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(unavailable=("long-ids-3.1",)))
    link = hand.connects("é" * length, version=version)
    assert (connack(link).reason_code, link.ended, len(hand.state.sessions)) == (
        code,
        bool(code),
        int(not code),
    )


def test_an_authentication_method_is_refused(hand: HandDrivenBroker) -> None:
    link = hand.connects("c", properties=Properties(authentication_method="SCRAM-SHA-1"))
    assert connack(link).reason_code == 0x8C
    assert link.ended


def test_connack_of_a_kept_session_waits_for_its_commit(hand: HandDrivenBroker) -> None:
    hand.held = True
    link = hand.keeps("c", settles=False)
    hand.run()
    assert link.received == []
    hand.finish_commit()
    hand.run()
    assert len(link.received) == 1


def test_what_is_sent_behind_connect_waits_for_connack(hand: HandDrivenBroker) -> None:
    hand.held = True
    link = hand.keeps(
        "c",
        then=[Subscribe(1, (Subscription("t", 1),)), Publish("t", b"early", 1, 2), Pingreq()],
        settles=False,
    )
    hand.run()
    link.does(Publish("t", b"later", 1, 3))
    hand.run()
    assert link.received == []
    hand.held = False
    hand.settle()
    kinds = [type(packet) for packet in link.received]
    assert kinds[0] is Connack
    assert set(kinds[1:]) == {Suback, Pingresp, Puback, Publish}
    assert link.payloads == [b"early", b"later"]


def test_a_client_that_leaves_before_connack_leaves_its_session(hand: HandDrivenBroker) -> None:
    hand.held = True
    link = hand.keeps("c", then=[Subscribe(1, (Subscription("t", 1),))], settles=False)
    hand.run()
    link.drops()
    hand.held = False
    hand.settle()
    assert link.received == []
    (row,) = hand.store.sessions.values()
    assert not row.connected
    assert connack(hand.keeps("c")).session_present


# Takeover


@pytest.mark.promise("repositories-8")
@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("kept", [True, False])
def test_the_newer_connection_wins(hand: HandDrivenBroker, version: ProtocolVersion, kept: bool) -> None:
    connects = hand.keeps if kept else hand.connects
    old = connects("c", version=version)
    new = connects("c", version=version)
    assert old.ended
    if version is V5:
        assert old.last(Disconnect).reason_code == 0x8E
    assert connack(new).session_present is (kept and version is not V31)
    new.does(Pingreq())
    hand.settle()
    assert new.all(Pingresp)
    old.hand.broker.connecting.link_lost(old)
    assert hand.state.sessions["c"].link is new


@pytest.mark.promise("repositories-8")
def test_takeover_while_commits_are_under_way_says_nothing_after_disconnect(hand: HandDrivenBroker) -> None:
    old = hand.keeps("c")
    old.subscribes("t")
    old.publishes("t", b"1", qos=2)
    hand.run()
    hand.held = True
    old.publishes("t", b"2")
    old.does(Unsubscribe(9, ("t",)))
    hand.run()
    new = hand.keeps("c", settles=False)
    hand.held = False
    hand.settle()
    assert isinstance(old.received[-1], Disconnect)
    assert connack(new).session_present


def test_three_at_once_one_stays(hand: HandDrivenBroker) -> None:
    hand.held = True
    links = [hand.keeps("c", settles=False) for _ in range(3)]
    hand.run()
    hand.held = False
    hand.settle()
    assert [link.ended for link in links] == [True, True, False]
    assert [bool(link.received) for link in links] == [False, False, True]
    assert hand.state.sessions["c"].epoch == 3


@pytest.mark.promise("device-8")
def test_acknowledgements_before_the_swap_count_and_later_ones_do_not(hand: HandDrivenBroker) -> None:
    old = hand.keeps("c", acknowledges=False)
    old.subscribes("t", qos=1)
    hand.connects("p").publishes("t", b"1", b"2", b"3")
    hand.settle()
    old.does(Puback(old.messages[0].packet_id))
    new = hand.keeps("c", settles=False, acknowledges=False)
    old.does(Puback(old.messages[1].packet_id))
    hand.settle()
    assert [(m.payload, m.dup, m.packet_id) for m in new.messages] == [
        (m.payload, True, m.packet_id) for m in old.messages[1:]
    ]


# Wills


@pytest.mark.promise("repositories-6")
@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_will_goes_out_on_every_end_but_a_normal_disconnect(
    hand: HandDrivenBroker, watcher: HandLink, version: ProtocolVersion
) -> None:
    hand.connects("a", version=version, will=will(b"broken")).drops()
    hand.connects("b", version=version, will=will(b"normal")).leaves()
    mistaken = hand.connects("d", version=version, will=will(b"mistaken"))
    mistaken.disconnect(ReasonCode.PROTOCOL_ERROR)
    hand.settle()
    if version is V5:
        hand.connects("e", will=will(b"wanted")).leaves(reason=4)
    hand.settle()
    expected = [b"broken", b"mistaken"] + [b"wanted"] * (version is V5)
    assert watcher.payloads == expected
    assert hand.store.wills == {}


@pytest.mark.promise("repositories-6")
def test_a_delayed_will_waits_and_is_cancelled_by_a_return(hand: HandDrivenBroker, watcher: HandLink) -> None:
    hand.keeps("c", will=will(delay_s=10)).drops()
    hand.settle()
    hand.passes(s=9)
    assert watcher.messages == []
    hand.keeps("c")
    hand.passes(s=60)
    assert watcher.messages == []
    hand.keeps("c", will=will(delay_s=10)).drops()
    hand.settle()
    hand.passes(s=11)
    assert watcher.payloads == [b"gone"]


@pytest.mark.promise("repositories-6")
def test_a_delayed_will_goes_with_the_end_of_its_session(hand: HandDrivenBroker, watcher: HandLink) -> None:
    hand.connects("a", will=will(b"no session", delay_s=100)).drops()
    hand.settle()
    assert watcher.payloads == [b"no session"]
    hand.connects("b", clean_start=False, expiry_s=5, will=will(b"expired", delay_s=100)).drops()
    hand.settle()
    hand.passes(s=6)
    assert watcher.payloads[1:] == [b"expired"]
    hand.keeps("c", will=will(b"cleared", delay_s=100)).drops()
    hand.connects("c")
    assert watcher.payloads[2:] == [b"cleared"]


@pytest.mark.promise("repositories-6")
@pytest.mark.parametrize(("delay_s", "clean", "published"), [(0, False, 1), (60, False, 0), (60, True, 1)])
def test_wills_at_takeover(
    hand: HandDrivenBroker, watcher: HandLink, delay_s: int, clean: bool, published: int
) -> None:
    hand.keeps("c", will=will(delay_s=delay_s))
    new = hand.connects("c", clean_start=clean, expiry_s=60, will=will(b"new"))
    assert watcher.payloads == [b"gone"] * published
    new.drops()
    hand.settle()
    assert watcher.payloads[published:] == [b"new"]


@pytest.mark.promise("repositories-6")
def test_the_will_of_a_connection_that_is_being_closed_goes_out_at_takeover(
    hand: HandDrivenBroker, watcher: HandLink
) -> None:
    old = hand.keeps("c", will=will())
    old.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)
    hand.keeps("c")
    assert watcher.payloads == [b"gone"]


@pytest.mark.promise("repositories-6")
def test_a_disconnect_right_behind_connect_counts(hand: HandDrivenBroker, watcher: HandLink) -> None:
    hand.held = True
    link = hand.keeps("c", will=will(), then=[Disconnect()], settles=False)
    hand.run()
    link.drops()
    hand.held = False
    hand.settle()
    assert watcher.messages == []
    assert hand.store.wills == {}


@pytest.mark.promise("repositories-6")
def test_a_will_survives_the_broker(hand: HandDrivenBroker) -> None:
    watcher = hand.keeps("watcher")
    watcher.subscribes("will/#")
    hand.connects("a", will=will(b"at once"))
    hand.keeps("b", will=will(b"delayed", delay_s=30))
    hand.keeps("d", will=will(b"waiting", delay_s=30)).drops()
    hand.settle()
    hand = hand.restarted(after_ms=10_000)
    watcher = hand.keeps("watcher")
    assert watcher.payloads == [b"at once"]
    hand.passes(s=21)
    assert watcher.payloads[1:] == [b"waiting"]
    hand.passes(s=10)
    assert watcher.payloads[2:] == [b"delayed"]
    assert hand.store.wills == {}


@pytest.mark.promise("repositories-6")
def test_a_refused_will_is_tried_again(hand: HandDrivenBroker, watcher: HandLink) -> None:
    link = hand.connects("c", will=will(qos=2, retain=True))
    hand.failures = [StoreFull("no room"), StoreFull("no room")]
    link.drops()
    hand.settle()
    assert watcher.payloads == [b"gone"]
    assert list(hand.store.retained) == ["will/x"]


# Keep-alive and timers


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_silent_client_is_ended_after_one_and_a_half_times_its_keep_alive(
    hand: HandDrivenBroker, watcher: HandLink, version: ProtocolVersion
) -> None:
    link = hand.connects("c", version=version, keep_alive_s=10, will=will())
    ends: list[bool] = []
    for silent_s in (14, 14, 2):
        if len(ends) == 1:
            link.does(Pingreq())
        hand.passes(s=silent_s)
        ends.append(link.ended)
    assert ends == [False, False, True]
    if version is V5:
        assert link.last(Disconnect).reason_code == 0x8D
    hand.settle()
    assert watcher.payloads == [b"gone"]


def test_a_keep_alive_of_0_never_ends(hand: HandDrivenBroker) -> None:
    link = hand.connects("c")
    hand.passes(s=1_000_000)
    assert not link.ended


def test_the_longest_keep_alive_is_told() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(keep_alive_max_s=10))
    link = hand.connects("c")
    assert connack(link).properties is not None
    assert connack(link).properties.server_keep_alive == 10  # type: ignore[union-attr]
    hand.passes(s=16)
    assert link.ended


def test_reconnects_leave_no_timers_behind(hand: HandDrivenBroker) -> None:
    for _ in range(500):
        hand.keeps("c", keep_alive_s=60_000, will=will(delay_s=50_000)).drops()
        hand.settle()
    assert len(hand.state.timers) <= 3
    assert len(hand.state.timers._heap) < 200


def test_timers_are_called_in_order_of_time_and_then_of_arming() -> None:
    timers, called = Timers(), []
    for due_ms, name in ((30, "c"), (10, "a"), (20, "b1"), (20, "b2")):
        timers.at(due_ms, lambda name=name: called.append(name))  # type: ignore[misc]
    assert (timers.next_ms, len(timers)) == (10, 4)
    timers.advance(9)
    assert called == []
    timers.advance(20)
    assert called == ["a", "b1", "b2"]
    timers.advance(1_000)
    assert called[3:] == ["c"]
    assert (timers.next_ms, len(timers)) == (0, 0)


def test_a_cancelled_timer_is_not_called_and_lets_go() -> None:
    timers, called = Timers(), []
    armed = [timers.at(due_ms, lambda due_ms=due_ms: called.append(due_ms)) for due_ms in range(1, 1_001)]  # type: ignore[misc]
    for timer in armed[:-1]:
        timers.cancel(timer)
        timers.cancel(timer)
    timers.cancel(None)
    assert len(timers) == 1
    assert len(timers._heap) < 200
    assert timers.next_ms == 1_000
    timers.advance(1_000)
    assert called == [1_000]
    timers.cancel(armed[-1])
    assert len(timers) == 0


def test_a_call_may_arm_and_cancel_others() -> None:
    timers, called = Timers(), []
    victim = timers.at(5, lambda: called.append("victim"))

    def first() -> None:
        timers.cancel(victim)
        timers.at(6, lambda: called.append("second"))

    timers.at(1, first)
    timers.advance(10)
    assert called == ["second"]
