"""Delivery to kept sessions: elision, the queue, pages, windows, limits, resending, repair after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered
from tests.support.held_sessions import HeldSessions

from embermq.delivery.device import path as device_path
from embermq.delivery.device import requests
from embermq.delivery.device.settings import DeviceSettings
from embermq.delivery.direct import path as direct_path
from embermq.model.session_writes import QueueState
from embermq.mqtt.wire.packets import (
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreFull

LINGER_MS = 1_000


def a_pair(hand: HandDrivenBroker, **options: object) -> tuple[HandLink, HandLink]:
    """A publisher, and a kept subscriber of `t` at QoS 2."""
    subscriber = hand.keeps("s", **options)
    if not subscriber.hand.state.sessions["s"].subscriptions:
        subscriber.does(Subscribe(1, (Subscription("t", 2),)))
        hand.settle()
    return hand.connects("p"), subscriber


def short(link: HandLink) -> list[tuple[bytes, int, bool]]:
    return [(message.payload, message.packet_id, message.dup) for message in link.messages]


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


# Elision


@pytest.mark.promise("device-11")
def test_what_is_acknowledged_in_time_is_never_written(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand)
    publisher.publishes("t", *numbered(100))
    hand.settle()
    hand.passes(s=5)
    assert subscriber.payloads == numbered(100)
    counters = hand.state.counters
    assert (counters.messages_stored, counters.messages_elided) == (0, 100)
    assert hand.store.dispatcher_floor == 100


@pytest.mark.promise("device-11")
def test_the_floor_stays_behind_what_is_not_written(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand, acknowledges=False)
    hand.passes(s=1)
    publisher.publishes("t", b"x")
    hand.settle()
    hand.passes(ms=LINGER_MS - 2)
    assert (hand.store.queue, hand.store.dispatcher_floor) == ({}, 0)
    hand.passes(ms=200)
    (row,) = hand.store.queue.values()
    assert (row.state, row.packet_id) == (QueueState.SENT, 1)
    assert hand.store.dispatcher_floor == 1
    subscriber.does(Puback(1))
    hand.passes(s=1)
    assert hand.store.queue == {}


@pytest.mark.promise("device-11", "device-8")
def test_a_crash_redelivers_what_was_elided_and_unsettled(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand, acknowledges=False)
    publisher.publishes("t", b"1", b"2")
    hand.settle()
    subscriber.does(Puback(1))
    hand.settle()
    again = hand.restarted().keeps("s")
    assert again.payloads in ([b"2"], [b"1", b"2"])


@pytest.mark.promise("device-11", "device-9")
def test_qos_2_is_stored_before_it_is_sent(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand, acknowledges=False)
    hand.held = True
    publisher.publishes("t", b"x", qos=2)
    hand.run()
    hand.finish_commit()
    hand.run()
    assert hand.store.busy and subscriber.messages == []
    hand.finish_commit()
    hand.run()
    assert subscriber.payloads == [b"x"]
    (row,) = hand.store.queue.values()
    assert (row.state, row.packet_id, row.offset) == (QueueState.SENT, 1, 0)


# Offline and back


@pytest.mark.promise("device-1", "device-8")
def test_what_came_while_away_arrives_in_order_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PAGE_MESSAGES", 20)
    hand = HandDrivenBroker()
    publisher, subscriber = a_pair(hand)
    subscriber.drops()
    for start in range(0, 500, 50):
        publisher.publishes("t", *numbered(50, start), qos=1 + start // 50 % 2, first_id=start + 1)
        hand.settle()
    again = hand.keeps("s", settles=False, acknowledges=False)
    hand.settle()
    assert 0 < len(again.messages) <= 500
    hand.settle()
    for link in (again,):
        link.drops()
    final = hand.keeps("s")
    hand.settle()
    assert [message.payload for message in final.messages] == numbered(500)


@pytest.mark.promise("device-8")
def test_live_messages_queue_behind_the_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PAGE_MESSAGES", 10)
    hand = HandDrivenBroker()
    publisher, subscriber = a_pair(hand)
    subscriber.drops()
    publisher.publishes("t", *numbered(95))
    hand.settle()
    again = hand.keeps("s", settles=False, receive_maximum=10)
    for number in range(95, 120):
        publisher.publishes("t", *numbered(1, number), first_id=number + 1)
        hand.run()
    hand.settle()
    assert again.payloads == numbered(120)
    assert hand.state.sessions["s"].backlog is False
    hand.passes(s=1)
    assert hand.store.queue == {}


@pytest.mark.promise("device-8")
@pytest.mark.parametrize("receive_maximum", [1, 2, 20])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_receive_maximum_blocks_and_never_drops(
    hand: HandDrivenBroker, receive_maximum: int, qos: int
) -> None:
    publisher, subscriber = a_pair(hand, receive_maximum=receive_maximum)
    publisher.publishes("t", *numbered(100), qos=qos)
    hand.settle()
    assert subscriber.payloads == numbered(100)
    subscriber.drops()
    publisher.publishes("t", *numbered(100, 100), qos=qos, first_id=200)
    hand.settle()
    again = hand.keeps("s", receive_maximum=receive_maximum)
    assert again.payloads == numbered(100, 100)


@pytest.mark.promise("device-8")
def test_a_stalled_client_gets_no_more_than_its_window(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand, receive_maximum=3, acknowledges=False)
    publisher.publishes("t", *numbered(50))
    hand.settle()
    hand.passes(s=10)
    assert subscriber.payloads == numbered(3)
    for number in range(50):
        subscriber.does(Puback(subscriber.messages[number].packet_id))
        hand.settle()
    assert subscriber.payloads == numbered(50)


@pytest.mark.promise("device-8", "repositories-1")
@pytest.mark.parametrize("crash", [True, False])
def test_unacknowledged_ones_come_first_with_dup_and_their_ids(hand: HandDrivenBroker, crash: bool) -> None:
    publisher, subscriber = a_pair(hand, acknowledges=False)
    publisher.publishes("t", b"1", b"2", b"3")
    hand.settle()
    hand.passes(s=1)
    subscriber.does(Puback(2))
    hand.settle()
    if crash:
        hand = hand.restarted()
        publisher = hand.connects("p")
    else:
        subscriber.drops()
    publisher.publishes("t", b"4", first_id=4)
    hand.settle()
    again = hand.keeps("s")
    assert short(again)[:2] == [(b"1", 1, True), (b"3", 3, True)]
    assert [(payload, dup) for payload, _, dup in short(again)[2:]] == [(b"4", False)]


@pytest.mark.promise("device-8")
def test_a_smaller_window_after_reconnect_holds_back_the_resend(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand, acknowledges=False)
    publisher.publishes("t", *numbered(10))
    hand.settle()
    subscriber.drops()
    publisher.publishes("t", *numbered(5, 10), first_id=11)
    hand.settle()
    again = hand.keeps("s", receive_maximum=2, acknowledges=False)
    assert short(again) == [(b"0000", 1, True), (b"0001", 2, True)]
    publisher.publishes("t", *numbered(5, 15), first_id=16)
    hand.settle()
    again.acknowledges = True
    again.does(Puback(1), Puback(2))
    hand.settle()
    assert again.payloads == numbered(20)
    assert [dup for _, _, dup in short(again)] == [True] * 10 + [False] * 10


@pytest.mark.promise("device-9")
@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("released", [True, False])
def test_qos_2_goes_on_where_it_stood(hand: HandDrivenBroker, crash: bool, released: bool) -> None:
    publisher, subscriber = a_pair(hand, acknowledges=False)
    publisher.publishes("t", b"x", qos=2)
    hand.settle()
    if released:
        subscriber.does(Pubrec(1))
        hand.settle()
        assert subscriber.last(Pubrel).packet_id == 1
    if crash:
        hand = hand.restarted()
    else:
        subscriber.drops()
    again = hand.keeps("s", acknowledges=False)
    if released:
        assert again.messages == []
        assert again.last(Pubrel).packet_id == 1
    else:
        assert short(again) == [(b"x", 1, True)]
        again.does(Pubrec(1))
        hand.settle()
    again.does(Pubcomp(1))
    hand.settle()
    again.drops()
    last = hand.keeps("s")
    assert len(last.received) == 1
    hand.passes(s=1)
    assert hand.store.queue == {}


@pytest.mark.promise("device-9")
def test_pubrel_leaves_when_the_state_is_durable(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand, acknowledges=False)
    publisher.publishes("t", b"x", qos=2)
    hand.settle()
    hand.held = True
    subscriber.does(Pubrec(1), Pubrec(1))
    hand.run()
    assert subscriber.all(Pubrel) == []
    hand.held = False
    hand.settle()
    assert len(subscriber.all(Pubrel)) == 2


def test_a_pubrec_with_an_error_settles(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand, acknowledges=False)
    publisher.publishes("t", b"x", qos=2)
    hand.settle()
    subscriber.does(Pubrec(1, ReasonCode.QUOTA_EXCEEDED))
    hand.settle()
    assert subscriber.all(Pubrel) == []
    assert hand.state.sessions["s"].window == {}


@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
def test_an_unknown_pubrec_is_answered(hand: HandDrivenBroker, version: ProtocolVersion) -> None:
    link = hand.keeps("s", version=version, acknowledges=False)
    link.does(Pubrec(9), Puback(9), Pubcomp(9))
    hand.settle()
    (answer,) = link.all(Pubrel)
    assert answer.reason_code == (0x92 if version is ProtocolVersion.V5 else 0)


def test_wrong_acknowledgements_settle_nothing(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand, acknowledges=False, version=ProtocolVersion.V31)
    publisher.publishes("t", b"1", qos=1)
    publisher.publishes("t", b"2", qos=2, first_id=2)
    hand.settle()
    subscriber.does(Pubcomp(1), Pubcomp(2), Puback(2), Pubrec(1))
    hand.settle()
    assert set(hand.state.sessions["s"].window) == {1, 2}


@pytest.mark.parametrize("wrong", [Pubcomp(1), Pubrec(1), Pubcomp(2), Puback(2)], ids=str)
def test_a_wrong_acknowledgement_of_5_ends_the_connection(hand: HandDrivenBroker, wrong: Packet) -> None:
    publisher, subscriber = a_pair(hand, acknowledges=False)
    publisher.publishes("t", b"1", qos=1)
    publisher.publishes("t", b"2", qos=2, first_id=2)
    hand.settle()
    subscriber.does(wrong)
    hand.settle()
    assert subscriber.last(Disconnect).reason_code == 0x82
    assert [message.payload for message in hand.keeps("s").messages] == [b"1", b"2"]


# Packet ids


@pytest.mark.promise("device-4")
def test_packet_ids_wrap_and_skip_what_is_in_flight() -> None:
    hand = HandDrivenBroker()
    publisher, subscriber = a_pair(hand, acknowledges=False)
    publisher.publishes("t", b"stays")
    hand.settle()
    session = hand.state.sessions["s"]
    session.last_packet_id = 65_533
    for number in range(5):
        publisher.publishes("t", b"%d" % number, qos=1 + number % 2, first_id=number + 2)
        hand.settle()
    assert [message.packet_id for message in subscriber.messages] == [1, 65_534, 65_535, 2, 3, 4]
    subscriber.drops()
    again = hand.keeps("s")
    assert [message.packet_id for message in again.messages] == [1, 65_534, 65_535, 2, 3, 4]


# Limits and expiry


@pytest.mark.promise("device-6")
def test_over_the_limit_the_oldest_go_and_none_in_flight() -> None:
    hand = HandDrivenBroker(device=DeviceSettings(queue_limit=10))
    publisher, subscriber = a_pair(hand, acknowledges=False, receive_maximum=3)
    publisher.publishes("t", *numbered(3))
    hand.settle()
    subscriber.drops()
    for number in range(3, 30):
        publisher.publishes("t", *numbered(1, number), first_id=number + 1)
        hand.settle()
    hand.settle()
    again = hand.keeps("s")
    assert again.payloads == [*numbered(3), *numbered(7, 23)]
    assert hand.state.counters.dropped_offline_limit == 20
    hand.passes(s=1)
    assert hand.store.queue == {}
    assert hand.state.sessions["s"].queued == 0


@pytest.mark.promise("device-6")
def test_one_large_batch_over_the_limit() -> None:
    hand = HandDrivenBroker(device=DeviceSettings(queue_limit=10))
    publisher, subscriber = a_pair(hand)
    subscriber.drops()
    publisher.publishes("t", *numbered(100))
    hand.settle()
    assert sum(row.state == QueueState.QUEUED for row in hand.store.queue.values()) == 10
    assert hand.keeps("s").payloads == numbered(10, 90)


@pytest.mark.promise("device-7")
def test_expiry_counts_from_accept_and_the_rest_is_told(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand)
    subscriber.drops()
    for interval_s, payload in ((10, b"short"), (4_294_967_295, b"long"), (60, b"middle")):
        expiry = Properties(message_expiry_interval=interval_s)
        publisher.does(Publish("t", payload, 1, 1, properties=expiry))
        hand.settle()
    hand.passes(s=20)
    again = hand.keeps("s")
    assert again.payloads == [b"long", b"middle"]
    left = [message.properties and message.properties.message_expiry_interval for message in again.messages]
    assert left == [4_294_967_275, 40]
    assert hand.state.counters.dropped_expired == 1


@pytest.mark.promise("device-7")
def test_what_expires_while_its_store_marks_it_as_sent_is_not_sent() -> None:
    """Whichever answer of the store the time passes before; what was sent by then comes again, expired or not."""
    seen: list[int] = []
    for steps in range(20):
        sessions = HeldSessions(Path(":memory:"))
        hand = HandDrivenBroker(sessions=sessions)
        publisher, subscriber = a_pair(hand, acknowledges=False)
        subscriber.drops()
        publisher.does(Publish("t", b"x", 2, 1, properties=Properties(message_expiry_interval=2)))
        publisher.does(Pubrel(1))
        hand.settle()
        sessions.held = True
        again = hand.keeps("s", acknowledges=False)
        for _ in range(steps):
            hand.settle()
            if sessions.waiting:
                sessions.release()
        hand.settle()
        sent = len(again.payloads)
        hand.passes(s=3)
        sessions.held = False
        hand.settle()
        assert len(again.payloads) == sent
        assert hand.state.counters.dropped_expired == 1 - sent
        again.drops()
        hand.settle()
        last = hand.keeps("s")
        assert [message.dup for message in last.messages] == [True] * sent
        hand.settle()
        assert hand.state.sessions["s"].queued == 0
        seen.append(sent)
    assert seen == sorted(seen) and set(seen) == {0, 1}


@pytest.mark.promise("device-7")
def test_what_is_stored_has_a_time_to_live() -> None:
    hand = HandDrivenBroker(device=DeviceSettings(ttl_s=100))
    publisher, subscriber = a_pair(hand)
    subscriber.drops()
    publisher.publishes("t", b"old")
    hand.settle()
    hand.passes(s=60)
    publisher.publishes("t", b"young", first_id=2)
    hand.settle()
    hand.passes(s=60)
    assert hand.keeps("s").payloads == [b"young"]
    hand.passes(s=1)
    assert hand.store.queue == {}


def test_a_backlog_that_has_expired_as_a_whole_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PAGE_MESSAGES", 5)
    hand = HandDrivenBroker(device=DeviceSettings(ttl_s=10))
    publisher, subscriber = a_pair(hand)
    subscriber.drops()
    publisher.publishes("t", *numbered(23))
    hand.settle()
    hand.passes(s=11)
    again = hand.keeps("s")
    publisher.publishes("t", b"new", first_id=30)
    hand.settle()
    assert again.payloads == [b"new"]
    assert not hand.state.sessions["s"].backlog


def test_what_is_larger_than_the_client_takes_is_dropped_and_counted(hand: HandDrivenBroker) -> None:
    publisher, _ = a_pair(hand)
    small = hand.connects(
        "small",
        clean_start=False,
        properties=Properties(session_expiry_interval=600, maximum_packet_size=50),
    )
    small.subscribes("t")
    for qos in (0, 1, 2):
        publisher.publishes("t", b"x" * 100, b"ok", qos=qos, first_id=10 * qos + 1)
    hand.settle()
    hand.passes(s=1)
    assert small.payloads == [b"ok"] * 3
    assert hand.state.counters.dropped_too_large == 3
    assert hand.store.queue == {}


# Slow sockets


@pytest.mark.parametrize("qos", [1, 2])
def test_a_paused_socket_gets_nothing_and_loses_nothing(qos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_path, "QUEUED_MESSAGES_MAX", 10)
    hand = HandDrivenBroker()
    publisher, subscriber = a_pair(hand)
    subscriber.paused = True
    publisher.publishes("t", *numbered(50), qos=qos)
    hand.settle()
    hand.passes(s=5)
    assert subscriber.messages == []
    subscriber.paused = False
    hand.state.path(hand.state.sessions["s"]).writable(hand.state.sessions["s"])
    hand.settle()
    assert subscriber.payloads == numbered(50)


def test_a_direct_receiver_waits_in_memory_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_path, "QUEUED_MESSAGES_MAX", 10)
    hand = HandDrivenBroker()
    publisher, subscriber = hand.connects("p"), hand.connects("d", receive_maximum=2, acknowledges=False)
    subscriber.subscribes("t")
    publisher.publishes("t", *numbered(30))
    hand.settle()
    assert subscriber.payloads == numbered(2)
    subscriber.acknowledges = True
    subscriber.does(Puback(1), Puback(2))
    hand.settle()
    assert subscriber.payloads == numbered(12)
    assert hand.state.counters.dropped_slow == 18


# The store fails


@pytest.mark.parametrize("qos", [1, 2])
def test_refused_commits_lose_no_delivery(hand: HandDrivenBroker, qos: int) -> None:
    publisher, subscriber = a_pair(hand)
    subscriber.drops()
    hand.settle()
    publisher.publishes("t", *numbered(20), qos=qos)
    hand.held = True
    hand.run()
    hand.finish_commit()
    hand.failures = [StoreFull("no room")] * 3
    hand.held = False
    hand.settle()
    again = hand.keeps("s", settles=False)
    hand.failures = [StoreFull("no room")] * 5
    hand.settle()
    assert again.payloads == numbered(20)
    hand.passes(s=1)
    assert hand.store.queue == {}


@pytest.mark.promise("device-5", "device-9")
def test_a_record_that_is_read_again_is_known(hand: HandDrivenBroker) -> None:
    """The floor stays behind a lingering delivery; what is above it and done must not come again."""
    publisher, subscriber = a_pair(hand)
    slow = hand.keeps("slow", acknowledges=False)
    slow.subscribes("t", qos=1)
    hand.passes(s=1)
    publisher.publishes("t", b"once", qos=2)
    hand.settle()
    assert subscriber.payloads == [b"once"]
    again = hand.restarted()
    assert again.keeps("s").messages == []
    assert again.keeps("slow").payloads == [b"once"]


@pytest.mark.promise("device-5", "device-8")
def test_what_a_crash_kept_from_being_stored_finds_its_place(hand: HandDrivenBroker) -> None:
    publisher, subscriber = a_pair(hand)
    subscriber.drops()
    hand.settle()
    hand.held = True
    publisher.publishes("t", b"1", b"2")
    hand.run()
    hand.finish_commit()
    again = hand.restarted()
    assert again.recovered == 2
    publisher = again.connects("p")
    publisher.publishes("t", b"3")
    again.settle()
    assert again.keeps("s").payloads == [b"1", b"2", b"3"]


@pytest.mark.promise("device-5")
def test_a_shared_message_is_repaired_for_one_member(hand: HandDrivenBroker) -> None:
    members = [hand.keeps(f"m{number}") for number in range(3)]
    for member in members:
        member.subscribes("$share/g/t")
        member.drops()
    publisher = hand.connects("p")
    hand.settle()
    hand.held = True
    publisher.publishes("t", *numbered(9))
    hand.run()
    hand.finish_commit()
    again = hand.restarted()
    received = [again.keeps(f"m{number}").payloads for number in range(3)]
    assert sorted(payload for payloads in received for payload in payloads) == numbered(9)
    assert received[0] == numbered(9), "whoever comes first gets what waits, in order"


@pytest.mark.promise("device-5")
def test_a_copy_of_the_plain_filter_is_not_the_one_of_the_group(hand: HandDrivenBroker) -> None:
    """What one of two copies is known by must not hide that the other was never stored."""
    both = hand.keeps("both")
    both.subscribes("t", "$share/g/t")
    both.drops()
    publisher = hand.connects("p")
    publisher.publishes("t", b"1")
    hand.settle()
    copies = {seq: row for seq, row in hand.store.queue.items() if row.offset >= 0}
    assert [row.flags >> 3 & 1 for row in copies.values()] == [0, 1]
    lost = next(key for key, row in copies.items() if row.flags & 8)
    del hand.store.queue[lost]
    hand.store.dispatcher_floor = 0
    again = hand.restarted()
    assert again.recovered == 1
    assert again.keeps("both").payloads == [b"1", b"1"]
