"""Messages of other slots: each is copied once, in order, for whom it concerns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.support.hand_driven import HandDrivenBroker

from embermq.cluster.inflow import Inflow
from embermq.formats.log_record import (
    LogRecord,
    decode_record,
    encode_record,
    iter_frames,
    slot_field,
    slot_in,
)
from embermq.model.message import Message
from embermq.mqtt.wire.packets import Publish, Suback, Subscribe, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreFull
from embermq.ports.peer_logs import PeerRecords
from embermq.sessions.durable_queues import OffsetFound
from embermq.sessions.subscribing import RETAIN_NEVER
from embermq.sessions.waiting_subscriptions import WAIT_MS

HERE, THERE = 0, 1


class Node:
    """Of slot 0; pieces come from slot 1."""

    def __init__(self, copied: dict[int, int] | None = None) -> None:
        self.hand = HandDrivenBroker()
        self.noted: list[tuple[int, int, int]] = []
        state, publishing = self.hand.state, self.hand.broker.publishing
        self.inflow = Inflow(state, publishing, HERE, copied or {}, self._note)
        self.taken = 0

    def _note(self, slot: int, position: int, log_end: int) -> None:
        self.noted.append((slot, position, log_end))

    def _then(self) -> None:
        self.taken += 1

    def take(self, *frames: bytes, at: int = 0) -> None:
        """A piece whose first record has this position."""
        records = list(enumerate(frames, at))
        self.inflow.take(THERE, PeerRecords(records, at + len(frames)), self._then)

    def log(self) -> list[LogRecord]:
        batches = self.hand.store.batches
        return [decode_record(frame) for _, records, _ in batches for frame in iter_frames(b"".join(records))]

    def copies(self) -> list[tuple[bytes, tuple[int, int] | None]]:
        return [(record.message.payload, slot_in(record)) for record in self.log()]


def frame(payload: bytes, *, topic: str = "t", qos: int = 1, retain: bool = False, at_ms: int = 0) -> bytes:
    return encode_record(Message(topic, payload, qos, retain, "p", 5, at_ms))


def frames(*payloads: bytes, qos: int = 1) -> Iterator[bytes]:
    return (frame(payload, qos=qos) for payload in payloads)


def test_what_a_kept_session_wants_is_copied_and_delivered_in_order() -> None:
    node = Node()
    kept, passing = node.hand.keeps("kept"), node.hand.connects("passing")
    for link in (kept, passing):
        link.subscribes("t")
    node.take(*frames(b"1", b"2"), *frames(b"3", qos=2))
    assert not node.noted
    node.hand.settle()
    assert node.copies() == [(b"1", (THERE, 0)), (b"2", (THERE, 1)), (b"3", (THERE, 2))]
    assert node.inflow.taken == {THERE: node.inflow.copies + node.inflow.delivered}
    assert kept.payloads == passing.payloads == [b"1", b"2", b"3"]
    assert (node.noted, node.taken) == ([(THERE, 3, node.hand.state.log_end)], 1)
    kept.leaves()
    node.take(frame(b"4"), at=3)
    node.hand.settle()
    again = node.hand.keeps("kept")
    node.hand.settle()
    assert again.payloads == [b"4"]


def test_what_nobody_keeps_gets_no_record() -> None:
    node = Node()
    passing = node.hand.connects("passing")
    passing.subscribes("t")
    node.take(*frames(b"1"), *frames(b"2", qos=2), frame(b"x", topic="other"))
    node.hand.settle()
    assert passing.payloads == [b"1", b"2"]
    assert not node.log()
    assert (node.noted[0][1], node.taken) == (3, 1)
    node.inflow.take_unstored(frame(b"0", qos=0))
    node.hand.settle()
    assert passing.payloads[-1] == b"0"


def test_copies_are_not_copied_again_nor_what_was_copied_before() -> None:
    node = Node({THERE: 2})
    node.hand.keeps("kept").subscribes("t")
    copy = encode_record(Message("t", b"c", 1, False, "p", 5, 0), b"", None, (slot_field(HERE, 7),))
    node.take(*frames(b"0", b"1", b"2"), copy, b"damaged", frame(b"5"))
    node.hand.settle()
    assert node.copies() == [(b"2", (THERE, 2)), (b"5", (THERE, 5))]
    assert node.noted[0][1] == 6


def test_what_the_log_refuses_is_taken_again_in_its_order() -> None:
    node = Node()
    kept = node.hand.keeps("kept")
    kept.subscribes("t")
    node.hand.failures = [StoreFull("no room")]
    node.take(*frames(b"1", b"2"), frame(b"3", retain=True))
    node.hand.settle()
    assert node.copies() == [(b"1", (THERE, 0)), (b"2", (THERE, 1)), (b"3", (THERE, 2))]
    assert kept.payloads == [b"1", b"2", b"3"]
    assert [record.message.retain for record in node.log()] == [False, False, True]
    assert (node.noted[0][1], node.taken) == (3, 1)


def test_who_keeps_nothing_gets_once_what_is_taken_again() -> None:
    node = Node()
    node.hand.keeps("kept").subscribes("t")
    passing = node.hand.connects("passing")
    for topic in ("t", "u"):
        passing.subscribes(topic)
    node.hand.failures = [StoreFull("no room")]
    node.take(frame(b"1"), frame(b"2", topic="u", qos=2), frame(b"3", qos=2))
    node.hand.settle()
    assert sorted(passing.payloads) == [b"1", b"2", b"3"]
    assert node.copies() == [(b"1", (THERE, 0)), (b"3", (THERE, 2))]


def expiring(
    payload: bytes, at_ms: int, interval_s: int, *, ahead_ms: int = 0, retain: bool = False
) -> bytes:
    """From a node whose own time is that much ahead."""
    properties = Properties(message_expiry_interval=interval_s)
    deadline_ms = at_ms + ahead_ms + interval_s * 1000
    return encode_record(Message("t", payload, 1, retain, "p", 5, at_ms, deadline_ms, properties))


def test_a_message_expires_by_the_date_whatever_the_time_of_its_own_node_is() -> None:
    node = Node()
    kept = node.hand.keeps("kept")
    kept.subscribes("t")
    now_ms = node.hand.state.tick.date_ms
    node.take(
        expiring(b"over", now_ms - 20_000, 10, ahead_ms=3_600_000),
        expiring(b"fresh", now_ms, 10, ahead_ms=-3_600_000),
    )
    node.hand.settle()
    assert kept.payloads == [b"fresh"]


def test_a_retained_message_that_came_too_late_is_the_end_of_the_one_before() -> None:
    node = Node()
    now_ms = node.hand.state.tick.date_ms
    client = node.hand.keeps("kept")
    client.subscribes("t")
    node.take(
        frame(b"before", retain=True, at_ms=now_ms - 30_000),
        expiring(b"over", now_ms - 20_000, 10, retain=True),
    )
    node.hand.settle()
    assert retained(node) is None
    assert client.payloads == [b"before"]


def test_a_log_that_takes_nothing_now_is_waited_for() -> None:
    node = Node()
    node.hand.keeps("kept").subscribes("t")
    node.hand.state.log_full = True
    node.take(*frames(b"1", b"2"))
    node.hand.passes(ms=500)
    assert not node.log() and not node.noted
    node.hand.state.log_full = False
    node.hand.passes(ms=500)
    assert [payload for payload, _ in node.copies()] == [b"1", b"2"]
    assert node.taken == 1


def test_readers_that_are_behind_hold_up_clients_and_no_copies() -> None:
    node = Node()
    kept = node.hand.keeps("kept")
    kept.subscribes("t")
    node.hand.state.refuse_all = True
    node.take(*frames(b"1", b"2"))
    node.hand.settle()
    assert kept.payloads == [b"1", b"2"]
    assert node.taken == 1


def retained(node: Node, topic: str = "t") -> bytes | None:
    row = node.hand.state.retained.get(topic)
    return None if row is None else decode_record(row.record).message.payload


def test_a_subscribe_waits_for_what_others_have_retained_by_now() -> None:
    node = Node()
    asked: list[OffsetFound] = []
    node.hand.state.share.catch_up = asked.append
    client = node.hand.connects("c")
    client.does(Subscribe(7, (Subscription("t", 1),)))
    node.hand.settle()
    assert not client.all(Suback)
    node.take(frame(b"there", retain=True))
    node.hand.settle()
    (caught_up,) = asked
    caught_up(0)
    node.hand.settle()
    assert client.last(Suback).packet_id == 7
    assert [(message.payload, message.retain) for message in client.messages] == [(b"there", True)]
    client.does(Subscribe(8, (Subscription("u", 1, retain_handling=2),)))
    node.hand.settle()
    assert client.last(Suback).packet_id == 8 and len(asked) == 1


@pytest.mark.promise("cluster-5")
@pytest.mark.parametrize(
    ("version", "code"),
    [(ProtocolVersion.V5, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR), (ProtocolVersion.V311, 0x80)],
)
def test_a_subscribe_is_refused_when_what_others_have_retained_cannot_be_known(
    version: ProtocolVersion, code: int
) -> None:
    node = Node()
    asked: list[OffsetFound] = []
    node.hand.state.share.catch_up = asked.append
    client = node.hand.connects("c", version=version)
    never = RETAIN_NEVER if version is ProtocolVersion.V5 else 0
    client.does(Subscribe(7, (Subscription("t", 1), Subscription("live", 1, retain_handling=never))))
    node.hand.passes(ms=WAIT_MS - 1)
    assert not client.all(Suback)
    node.hand.passes(ms=1)
    assert client.last(Suback).reason_codes == (code, 1 if never else code)
    asked[0](0)
    node.hand.settle()
    assert len(client.all(Suback)) == 1
    node.hand.state.share.catch_up = None
    assert client.subscribes("t", qos=1) == (1,)


def test_the_later_retained_message_stays_in_whatever_order_they_come() -> None:
    for order in ((b"old", b"new"), (b"new", b"old")):
        node = Node()
        for at, payload in enumerate(order):
            node.take(frame(payload, retain=True, at_ms=2 if payload == b"new" else 1), at=at)
            node.hand.settle()
        assert retained(node) == b"new"
    node.take(frame(b"", retain=True, at_ms=3), at=2)  # deleted, and set before that
    node.take(frame(b"between", retain=True, at_ms=2), at=3)
    node.hand.settle()
    assert retained(node) is None


def test_a_retained_message_of_this_node_is_newer_than_what_it_knows_of() -> None:
    node = Node()
    node.hand.keeps("kept").subscribes("t")
    later_ms = node.hand.state.tick.date_ms + 60_000
    node.take(frame(b"there", retain=True, at_ms=later_ms))
    node.hand.settle()
    client = node.hand.connects("p2")
    client.publishes("t", b"here", retain=True)
    node.hand.settle()
    assert retained(node) == b"here"
    assert node.log()[-1].message.accepted_ms == later_ms + 1
    node.take(frame(b"again", retain=True, at_ms=later_ms), at=1)
    node.hand.settle()
    assert retained(node) == b"here"


def restarted(node: Node) -> Node:
    """Its next run, with what is in store of retained messages."""
    again = Node()
    again.hand.state.tick.now_ms = node.hand.state.tick.now_ms
    again.hand.state.retained.remembers_ends = True
    for row in node.hand.store.retained.values():
        again.hand.store.retained[row.topic] = row
        again.hand.state.retained.restore(row)
    return again


@pytest.mark.promise("cluster-11")
@pytest.mark.parametrize("how", ["deleted here", "deleted there", "expired"])
def test_a_restart_does_not_bring_back_what_is_older_than_the_end_of_a_retained_message(how: str) -> None:
    node = Node()
    node.hand.state.retained.remembers_ends = True
    now_ms, client = node.hand.state.tick.date_ms, node.hand.connects("p2")
    properties = Properties(message_expiry_interval=5) if how == "expired" else None
    client.does(Publish("t", b"here", 1, 1, True, False, properties))
    node.hand.settle()
    if how == "deleted here":
        client.publishes("t", b"", retain=True)
    elif how == "deleted there":
        node.take(frame(b"", retain=True, at_ms=now_ms))
    else:
        node.hand.passes(s=6)
    node.hand.settle()
    assert retained(node) is None
    again = restarted(restarted(node))
    assert retained(again) is None
    again.take(frame(b"before", retain=True, at_ms=now_ms - 1))
    again.hand.settle()
    assert retained(again) is None
    again.take(frame(b"later", retain=True, at_ms=now_ms + 60_000), at=1)
    again.hand.settle()
    assert retained(again) == b"later"
    assert not again.hand.state.retained.ends


@pytest.mark.promise("cluster-11")
def test_a_retained_message_without_room_ends_the_one_before_it_also_for_the_next_run() -> None:
    node = Node()
    state = node.hand.state
    state.retained.remembers_ends = True
    kept = node.hand.keeps("kept")
    kept.subscribes("t")
    now_ms, limit = state.tick.date_ms, 1_000
    state.settings = replace(state.settings, retained_bytes_max=limit)
    node.take(frame(b"first", retain=True, at_ms=now_ms))
    node.hand.settle()
    assert retained(node) == b"first"
    node.hand.failures = [StoreFull("no room")]  # all of the piece comes again
    large = frame(b"x" * limit, retain=True, at_ms=now_ms + 2)
    node.take(frame(b"second", topic="u"), large, at=1)
    node.hand.settle()
    assert retained(node) is None
    assert kept.payloads == [b"first", b"x" * limit], "it comes once, and the end of the other one not at all"
    found = [(record.message.payload, record.message.qos, slot_in(record)) for record in node.log()]
    assert found[1:] == [(b"", 0, (THERE, 1)), (b"x" * limit, 1, (THERE, 2))]
    again = restarted(restarted(node))
    again.take(frame(b"between", retain=True, at_ms=now_ms + 1))
    again.hand.settle()
    assert retained(again) is None
    again.take(frame(b"later", retain=True, at_ms=now_ms + 3), at=1)
    again.hand.settle()
    assert retained(again) == b"later"
