"""Session data that comes back older than the log: what it lacks is found, stored again and delivered first; what was
consumed since does not come again."""

from __future__ import annotations

import random
import sqlite3
import weakref
from collections.abc import Iterator
from copy import copy
from pathlib import Path

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered
from tests.support.held_sessions import HeldSessions

from embermq.delivery.device import requests
from embermq.delivery.device.settings import DeviceSettings
from embermq.durability.lost_data import LostData
from embermq.formats.log_record import decode_record, iter_frames
from embermq.model.client_type import ClientType
from embermq.model.session import SessionRow
from embermq.model.session_cursor import SessionCursor
from embermq.model.session_writes import QUEUE_SEQ_STEP
from embermq.mqtt.wire.packets import Puback, Pubcomp, Publish, Pubrec
from embermq.mqtt.wire.properties import Properties
from embermq.ports.message_store import StoredMessage
from embermq.ports.sessions import StoredSession, StoredState

PARTS = ("sessions", "subscriptions", "wills", "receiving", "retained", "queue", "complete_to")


class Copy:
    """Session data as it was, without the log and what belongs to it."""

    def __init__(self, hand: HandDrivenBroker) -> None:
        self._parts = {name: copy(getattr(hand.store, name)) for name in PARTS}
        self._database = sqlite3.connect(":memory:")
        weakref.finalize(self, self._database.close)
        if hand.sessions is not None:
            hand.sessions.connection.backup(self._database)

    def put_back(self, hand: HandDrivenBroker, **options: object) -> HandDrivenBroker:
        """The broker dies, and begins on session data as old as the copy."""
        if hand.sessions is None:
            for name, part in self._parts.items():
                setattr(hand.store, name, copy(part))
        else:
            self._database.backup(hand.sessions.connection)
        return hand.restarted(**options)  # type: ignore[arg-type]


@pytest.fixture(params=["beside the log", "of its own"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HeldSessions | None]:
    """Where session data is: with the log, or in a store of its own."""
    found = HeldSessions(tmp_path / "sessions.db") if request.param == "of its own" else None
    yield found
    if found is not None:
        found.connection.close()


def away(hand: HandDrivenBroker, client_id: str = "subscriber", *filters: str) -> None:
    """A session with subscriptions whose client is gone."""
    link = hand.keeps(client_id)
    link.subscribes(*(filters or ("t/#",)))
    link.leaves()
    hand.settle()


def stores(
    hand: HandDrivenBroker, publisher: HandLink, *payloads: bytes, qos: int = 1, topic: str = "t/1"
) -> None:
    """Published, and below the dispatcher's floor."""
    publisher.publishes(topic, *payloads, qos=qos, first_id=hand.store.log_end % 60_000 + 1)
    hand.settle()
    hand.passes(ms=200)
    assert hand.store.dispatcher_floor == hand.store.log_end


@pytest.mark.promise("repositories-4")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_session_data_has_lost_is_delivered_first_and_counted(
    sessions: HeldSessions | None, qos: int
) -> None:
    hand = HandDrivenBroker(sessions=sessions)
    publisher = hand.keeps("publisher")
    away(hand)
    stores(hand, publisher, b"0", qos=qos)
    older = Copy(hand)
    stores(hand, publisher, b"1", b"2", qos=qos)

    hand = older.put_back(hand)
    assert hand.state.counters.deliveries_repaired == 2
    assert hand.state.counters.redelivered_after_start == 0
    publisher = hand.keeps("publisher")
    publisher.publishes("t/1", b"3", qos=qos, first_id=9)
    hand.settle()
    again = hand.keeps("subscriber")
    hand.settle()
    assert again.payloads == [b"0", b"1", b"2", b"3"]
    hand.counts_queues()


@pytest.mark.promise("repositories-4")
def test_what_was_repaired_can_be_lost_and_repaired_once_more(sessions: HeldSessions | None) -> None:
    """Its session had nothing queued when it was read: its cursor goes, and comes again with what is repaired."""
    hand = HandDrivenBroker(sessions=sessions)
    away(hand)
    away(hand, "other", "o")
    publisher = hand.keeps("publisher")
    stores(hand, publisher, b"0", topic="o")
    older = Copy(hand)
    stores(hand, publisher, b"1", b"2")
    for _ in range(2):
        hand = older.put_back(hand)
        assert hand.state.counters.deliveries_repaired == 2
        hand.settle()
        hand.passes(s=2)
    assert hand.keeps("subscriber").payloads == [b"1", b"2"]


@pytest.mark.promise("repositories-3", "repositories-4")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_consumed_since_the_copy_does_not_come_again(
    sessions: HeldSessions | None, qos: int
) -> None:
    """Neither what the copy has queued still, nor what it has never seen."""
    hand = HandDrivenBroker(sessions=sessions)
    publisher = hand.keeps("publisher")
    away(hand)
    stores(hand, publisher, b"0", b"1", qos=qos)
    older = Copy(hand)
    stores(hand, publisher, b"2", qos=qos)
    subscriber = hand.keeps("subscriber")
    hand.settle()
    assert subscriber.payloads == [b"0", b"1", b"2"]
    subscriber.leaves()
    hand.passes(ms=200)
    stores(hand, publisher, b"3", qos=qos)

    hand = older.put_back(hand)
    again = hand.keeps("subscriber")
    hand.settle()
    assert again.payloads == [b"3"]
    assert hand.state.counters.deliveries_repaired == 1
    assert hand.state.counters.deliveries_outdated == 2
    assert hand.state.sessions["subscriber"].queued == 0
    hand.counts_queues()


@pytest.mark.promise("repositories-3")
def test_the_cursor_stays_at_the_oldest_that_is_not_acknowledged() -> None:
    """Not at send, and not at an acknowledgement behind it."""
    hand = HandDrivenBroker()
    publisher = hand.keeps("publisher")
    subscriber = hand.keeps("subscriber", acknowledges=False)
    subscriber.subscribes("t/#")
    stores(hand, publisher, b"0", b"1", b"2")
    assert subscriber.payloads == [b"0", b"1", b"2"]
    (cursor,) = hand.store.cursors.values()
    assert cursor.next_offset == 0
    first, second, third = subscriber.messages
    subscriber.does(Puback(second.packet_id))
    hand.passes(s=1)
    (cursor,) = hand.store.cursors.values()
    assert cursor.next_offset == 0
    consumed = [cursor.has_consumed(offset, shared=False) for offset in range(4)]
    assert consumed == [False, True, False, True]
    subscriber.does(Puback(first.packet_id))
    hand.passes(s=1)
    (cursor,) = hand.store.cursors.values()
    assert cursor.next_offset == 2
    subscriber.does(Puback(third.packet_id))
    hand.passes(s=1)
    assert hand.store.cursors == {}


@pytest.mark.promise("repositories-3")
def test_a_cursor_moves_with_pubcomp_not_with_pubrec() -> None:
    hand = HandDrivenBroker()
    publisher = hand.keeps("publisher")
    subscriber = hand.keeps("subscriber", acknowledges=False)
    subscriber.subscribes("t/#")
    stores(hand, publisher, b"0", qos=2)
    (message,) = subscriber.messages
    subscriber.does(Pubrec(message.packet_id))
    hand.passes(s=1)
    (cursor,) = hand.store.cursors.values()
    assert cursor.next_offset == 0
    subscriber.does(Pubcomp(message.packet_id))
    hand.passes(s=1)
    assert hand.store.cursors == {}


@pytest.mark.promise("device-11", "repositories-3")
def test_elided_messages_write_no_cursor() -> None:
    hand = HandDrivenBroker()
    publisher = hand.keeps("publisher")
    subscriber = hand.keeps("subscriber")
    subscriber.subscribes("t/#")
    written: list[dict[int, object]] = []
    submit = hand.store.submit

    def watched(writes, logged):  # type: ignore[no-untyped-def]
        written.append(dict(writes.cursors))
        submit(writes, logged)

    hand.store.submit = watched  # type: ignore[method-assign]
    for number in range(20):
        stores(hand, publisher, b"%d" % number)
    assert len(subscriber.payloads) == 20
    assert len(written) >= 20
    assert not any(written)
    assert len(hand.device.cursors) == 0


@pytest.mark.promise("repositories-4")
def test_repair_brings_back_nothing_that_was_not_owed() -> None:
    """What is older than its subscription, of one's own with No Local, expired, QoS 0 by subscription."""
    hand = HandDrivenBroker()
    publisher = hand.keeps("publisher")
    away(hand, "behind", "t/#")
    stores(hand, publisher, b"before", topic="late")
    subscriber = hand.keeps("subscriber")
    subscriber.subscribes("late", "t/#")
    subscriber.subscribes("own", no_local=True)
    subscriber.subscribes("qos-0", qos=0)
    subscriber.leaves()
    hand.settle()
    stores(hand, publisher, b"stored")
    older = Copy(hand)
    own = hand.keeps("subscriber", acknowledges=False)
    own.publishes("own", b"own")
    own.leaves()
    stores(hand, publisher, b"of qos 0", topic="qos-0")
    publisher.does(Publish("t/1", b"expires", 1, 7, False, properties=Properties(message_expiry_interval=1)))
    stores(hand, publisher, b"lost")
    hand.passes(s=2)

    hand = older.put_back(hand)
    again = hand.keeps("subscriber")
    hand.settle()
    assert again.payloads == [b"stored", b"lost"]
    assert hand.state.counters.deliveries_repaired == 2  # one each


@pytest.mark.promise("device-6", "repositories-4")
def test_repair_keeps_the_limit_and_drops_the_oldest_again() -> None:
    hand = HandDrivenBroker(device=DeviceSettings(queue_limit=3))
    publisher = hand.keeps("publisher")
    away(hand)
    stores(hand, publisher, *numbered(2))
    older = Copy(hand)
    stores(hand, publisher, *numbered(4, 2))

    hand = older.put_back(hand)
    hand.settle()
    again = hand.keeps("subscriber")
    hand.settle()
    assert again.payloads == numbered(3, 3)
    hand.counts_queues()


@pytest.mark.promise("repositories-4")
def test_a_member_of_a_group_that_had_nothing_stored_is_owed_nothing() -> None:
    hand = HandDrivenBroker()
    publisher = hand.keeps("publisher")
    member = hand.keeps("member")
    member.subscribes("$share/group/t/#")
    stores(hand, publisher, b"0")
    older = Copy(hand)
    stores(hand, publisher, b"1", b"2")
    assert member.payloads == [b"0", b"1", b"2"]
    hand = older.put_back(hand)
    again = hand.keeps("member")
    hand.settle()
    assert again.payloads == []
    assert again.messages == []


@pytest.mark.promise("repositories-3", "repositories-4")
def test_what_a_group_has_had_is_not_repaired_and_what_waits_is() -> None:
    hand = HandDrivenBroker()
    publisher = hand.keeps("publisher")
    for name in ("one", "two"):
        away(hand, name, "$share/group/t/#")
    stores(hand, publisher, b"0", b"1", b"2", b"3")
    older = Copy(hand)
    first = hand.keeps("one", acknowledges=False, receive_maximum=2)
    hand.settle()
    assert first.payloads == [b"0", b"1"]
    first.does(Puback(first.messages[1].packet_id))
    hand.settle()
    stores(hand, publisher, b"4")
    hand.passes(s=1)
    hand = older.put_back(hand)
    second = hand.keeps("two")
    hand.settle()
    assert second.payloads == [b"0", b"2", b"3", b"4"]


@pytest.mark.promise("repositories-3", "repositories-4")
def test_what_was_stored_after_the_last_floor_is_not_taken_for_consumed() -> None:
    """The broker dies between; the floor that its successor writes passes what is stored."""
    hand = HandDrivenBroker()
    publisher = hand.keeps("publisher")
    subscriber = hand.keeps("subscriber", acknowledges=False)
    subscriber.subscribes("t/#")
    stores(hand, publisher, b"0")
    subscriber.drops()
    hand.settle()
    publisher.publishes("t/1", b"1", first_id=2)
    hand.settle()
    assert hand.store.dispatcher_floor == 1
    hand = hand.restarted()
    hand.settle()
    assert hand.store.dispatcher_floor == 2
    assert [cursor.next_offset for cursor in hand.store.cursors.values()] == [0]
    hand.passes(s=1)
    older = Copy(hand)
    stores(hand, hand.keeps("publisher"), b"2")
    hand = older.put_back(hand)
    again = hand.keeps("subscriber")
    hand.settle()
    assert again.payloads == [b"0", b"1", b"2"]
    assert hand.state.counters.deliveries_outdated == 0


class Archive:
    """What the pipeline has read from the log; asked for a few at a time."""

    def __init__(self, hand: HandDrivenBroker) -> None:
        self.rows = [
            StoredMessage(base + index, decode_record(frame).message)
            for base, records, _ in hand.store.batches
            for index, frame in enumerate(iter_frames(b"".join(records)))
        ]

    def read(self, from_offset: int, limit: int) -> list[StoredMessage]:
        return [row for row in self.rows if row.offset >= from_offset][: min(2, limit)]


@pytest.mark.promise("repositories-4")
@pytest.mark.parametrize("archived", [True, False])
def test_where_the_log_is_trimmed_the_message_store_is_read(archived: bool) -> None:
    hand = HandDrivenBroker()
    publisher = hand.keeps("publisher")
    away(hand)
    stores(hand, publisher, b"0")
    older = Copy(hand)
    for payload in numbered(5):
        stores(hand, publisher, payload)
    archive = Archive(hand).read
    hand.log.trim(4)
    stores(hand, publisher, b"last")
    hand = older.put_back(hand, archive=archive if archived else None)
    again = hand.keeps("subscriber")
    hand.settle()
    expected = [b"0", *numbered(5), b"last"]
    assert again.payloads == (expected if archived else [b"0", *numbered(2, 3), b"last"])
    assert hand.state.counters.repair_records_missing == (0 if archived else 3)


@pytest.mark.promise("repositories-2", "repositories-4")
def test_offsets_past_2_to_the_31() -> None:
    hand = HandDrivenBroker()
    hand.store.log_end = hand.store.dispatcher_floor = hand.store.complete_to = 2**31 - 1
    hand = hand.restarted()
    publisher = hand.keeps("publisher")
    away(hand)
    stores(hand, publisher, b"0")
    older = Copy(hand)
    stores(hand, publisher, b"1", b"2")
    (cursor,) = hand.store.cursors.values()
    assert cursor.next_offset == 2**31 - 1
    assert hand.store.log_end == 2**31 + 2
    hand = older.put_back(hand)
    again = hand.keeps("subscriber")
    hand.settle()
    assert again.payloads == [b"0", b"1", b"2"]


@pytest.mark.promise("repositories-3", "repositories-4")
@pytest.mark.parametrize("seed", range(60))
def test_at_random_nothing_is_lost_and_what_was_consumed_stays_consumed(
    sessions: HeldSessions | None, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of QoS 1 and 2, a client that comes and goes and acknowledges as it likes, brokers that die, then an
    older copy. Another client stays away all the time."""
    rng = random.Random(seed)
    monkeypatch.setattr(requests, "PAGE_MESSAGES", rng.choice([1, 3, 50]))
    run = RandomRun(rng, sessions)
    for step in range(100):
        run.step(step)
    run.hand.passes(s=1)
    hand = run.older.put_back(run.hand)
    generation = hand.state.sessions["c"].generation
    for row in hand.state.tick.session_writes.queue_rows:
        payload = decode_record(row.record).message.payload
        assert row.generation != generation or run.sent[payload] == 1 or payload not in run.consumed
    for client_id, consumed in (("c", run.consumed), ("away", set())):
        again = hand.keeps(client_id)
        hand.settle()
        hand.passes(s=1)
        assert len(set(again.payloads)) == len(again.payloads)
        assert set(run.sent) - consumed <= set(again.payloads)
        assert not [payload for payload in again.payloads if payload in consumed and run.sent[payload] == 2]
        fresh = [int(message.payload) for message in again.messages if not message.dup]
        assert fresh == sorted(fresh)


@pytest.mark.promise("repositories-4")
def test_each_session_is_looked_at_from_where_its_own_data_ends() -> None:
    """In a cluster one server may have lost more than another."""

    def stored(generation: int, complete_to: int | None) -> StoredSession:
        row = SessionRow(f"c{generation}", generation, 1, ClientType.DEVICE, "", 5, 60, False, 0, 0)
        return StoredSession(row, (), (), QUEUE_SEQ_STEP, 0, 0, complete_to=complete_to)

    state = StoredState(
        [stored(1, 10), stored(2, 50), stored(3, None), stored(4, 100), stored(5, 5)], [], 100
    )
    cursors = {generation: SessionCursor(20, (16,)) for generation in (1, 2, 3, 4)}
    lost = LostData(state, cursors)
    assert lost
    assert lost.start == 10
    lacking = {
        generation: [at for at in (8, 9, 10, 15, 20, 49, 50) if lost.may_lack(generation, at, shared=False)]
        for generation in range(1, 7)
    }
    assert lacking == {1: [20, 49, 50], 2: [50], 3: [], 4: [], 5: [], 6: []}
    assert not LostData(StoredState([stored(1, 100), stored(2, None)], [], 100), cursors)


class RandomRun:
    """`sent` has the QoS by payload; `consumed` what "c" acknowledged to the end."""

    def __init__(self, rng: random.Random, sessions: HeldSessions | None) -> None:
        self.rng = rng
        self.hand = HandDrivenBroker(sessions=sessions)
        self.publisher = self.hand.keeps("publisher")
        for client_id in ("c", "away"):
            away(self.hand, client_id, "t/1", "t/2")
        self.link: HandLink | None = None
        self.sent: dict[bytes, int] = {}
        self.consumed: set[bytes] = set()
        self.older = Copy(self.hand)
        self.copied_at = rng.randrange(60)

    def step(self, number: int) -> None:
        rng, hand = self.rng, self.hand
        if number == self.copied_at:
            hand.passes(ms=300)
            self.older = Copy(hand)
        move = rng.random()
        if move < 0.45:
            payload, qos = b"%d" % number, rng.choice([1, 2])
            self.sent[payload] = qos
            self.publisher.publishes(rng.choice(["t/1", "t/2"]), payload, qos=qos, first_id=number + 1)
            hand.settle()
        elif move < 0.5:
            hand.passes(ms=600)  # cursors are written every half second
            self.hand = hand = hand.restarted()
            self.publisher, self.link = hand.keeps("publisher"), None
        elif move < 0.6 and self.link is None:
            self.link = hand.keeps("c", acknowledges=False, receive_maximum=rng.choice([1, 4, 20]))
            hand.settle()
        elif move < 0.55 and self.link is not None:
            self.link.leaves()
            hand.settle()
            self.link = None
        elif self.link is not None:
            self.acknowledge_some(self.link)
        hand.passes(ms=rng.choice([0, 10, 100, 600]))

    def acknowledge_some(self, link: HandLink) -> None:
        """A few of what is in flight, in any order, each to its end."""
        hand = self.hand
        window = list(hand.state.sessions["c"].window.values())
        for delivery in self.rng.sample(window, min(len(window), self.rng.randrange(5))):
            if delivery.qos == 1:
                link.does(Puback(delivery.packet_id))
            else:
                link.does(Pubrec(delivery.packet_id))
                hand.settle()
                link.does(Pubcomp(delivery.packet_id))
            hand.settle()
            self.consumed.add(delivery.message.payload)
