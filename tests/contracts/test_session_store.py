"""What every place for session data promises, on its real server."""

from __future__ import annotations

import msgspec
import pytest
from tests.contracts.session_stores import InRedis, SessionStores

from embermq.formats.log_record import encode_record
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import NEVER_EXPIRES, SessionRow, SubscriptionRow, WillRow
from embermq.model.session_writes import (
    QUEUE_SEQ_STEP,
    QueueMark,
    QueueRow,
    QueueState,
    RetainedWrite,
    SessionWrites,
)
from embermq.model.tick_writes import TickWrites

STEP = QUEUE_SEQ_STEP
FAR_MS = 2**42
QUEUED, SENT, RELEASED, DONE = (QueueState.QUEUED, QueueState.SENT, QueueState.RELEASED, QueueState.DONE)

ANN = SessionRow(
    "ann/{}%🦊",
    1,
    1,
    ClientType.DEVICE,
    "user ä",
    5,
    NEVER_EXPIRES,
    True,
    0,
    1_700_000_000_123,
    "CN=ann,O=Wörks",
)
BOB = SessionRow("bob", 2, 1, ClientType.APPLICATION, "", 3, 60, False, FAR_MS, 0)


def record(text: str, topic: str = "t") -> bytes:
    return encode_record(Message(topic, text.encode(), 2, False, "ann", 5, 1_700_000_000_000))


def row(
    number: int,
    *,
    generation: int = 1,
    packet_id: int = 0,
    qos: int = 1,
    flags: int = 0,
    offset: int | None = None,
    expires_ms: int = FAR_MS,
) -> QueueRow:
    """Row `number` stands at place `number`; it comes from offset 10 x `number` if nothing else is said."""
    return QueueRow(
        generation,
        number * STEP,
        number * 10 if offset is None else offset,
        packet_id,
        SENT if packet_id else QUEUED,
        qos | flags,
        expires_ms,
        (1, 300),
        record(f"message {number}"),
    )


def mark(number: int, state: int, packet_id: int, *, qos: int = 1, offset: int | None = None) -> QueueMark:
    return QueueMark(1, number * STEP, number * 10 if offset is None else offset, state, packet_id, qos)


def numbers(rows: list[QueueRow]) -> list[int]:
    return [found.seq // STEP for found in rows]


def in_flight(stores: SessionStores) -> list[tuple[int, int, int]]:
    """(number, state, packet id) of each."""
    return [(found.seq // STEP, found.state, found.packet_id) for found in stores.in_flight(1)]


def without_id(found: QueueRow) -> QueueRow:
    return msgspec.structs.replace(found, packet_id=0)


@pytest.fixture
def stores(session_stores: SessionStores) -> SessionStores:
    """With the sessions of two clients."""
    session_stores.write(sessions=[ANN, BOB])
    return session_stores


# Sessions and what belongs to them


def test_an_empty_store_has_nothing(session_stores: SessionStores) -> None:
    state = session_stores.sessions.load()
    assert (list(state.sessions), state.wills) == ([], [])
    assert session_stores.sessions.load_retained() == []


@pytest.mark.promise("repositories-1", "repositories-9")
def test_load_returns_everything(stores: SessionStores) -> None:
    subscriptions = (
        SubscriptionRow("$share/g/a", 1 | 4 | 8 | 32, 268_435_455, 2**40),
        SubscriptionRow("a/+/#", 2, 0, 0),
    )
    will = WillRow("gone", 0, record("will"), FAR_MS, "its user", "CN=its certificate")
    stores.write(
        records=2,
        subscriptions=[(1, found.topic_filter, found) for found in subscriptions],
        wills=[(1, WillRow(ANN.client_id, 5, record("other"), 0)), (3, will)],
        receiving=[(1, 1, 0), (1, 65_535, 1)],
        queue_rows=[row(1), row(2, packet_id=7), row(3)],
    )
    stores.reopen()
    state = stores.sessions.load()
    bob, ann = state.sessions
    assert (ann.row, bob.row) == (ANN, BOB)
    assert tuple(sorted(ann.subscriptions, key=lambda found: found.topic_filter)) == subscriptions
    assert sorted(ann.receiving) == [1, 65_535]
    assert (ann.queued, ann.queue_seq_next) == (3, 4 * STEP)
    assert ann.queued_bytes == 3 * len(record("message 1"))
    assert (bob.subscriptions, bob.receiving, bob.queued, bob.queue_seq_next) == ((), (), 0, STEP)
    assert state.wills == [(1, WillRow(ANN.client_id, 5, record("other"), 0)), (3, will)]


def test_the_last_word_counts(stores: SessionStores) -> None:
    away = msgspec.structs.replace(ANN, epoch=4, connected=False, expires_ms=9)
    first, second = SubscriptionRow("f", 0, 0, 0), SubscriptionRow("f", 2, 9, 5)
    early, late = (WillRow(ANN.client_id, number, record(str(number))) for number in (0, 1))
    stores.write(
        sessions=[ANN, away],
        subscriptions=[(1, "f", first), (1, "f", None), (1, "f", second), (1, "g", first), (1, "g", None)],
        wills=[(1, early), (1, None), (1, late), (8, None)],
    )
    ann = list(stores.sessions.load().sessions)[-1]
    assert (
        msgspec.structs.replace(ann.row, epoch=4) == away
    )  # of its epochs a store may keep the first of each run
    assert ann.subscriptions == (second,)
    assert stores.sessions.load().wills == [(1, late)]


@pytest.mark.promise("repositories-6")
def test_a_will_is_taken_back(stores: SessionStores) -> None:
    will = (9, WillRow("guest", 0, record("will")))
    stores.write(wills=[(1, WillRow(ANN.client_id, 5, record("will"))), will])
    stores.write(wills=[(1, None)])
    stores.reopen()
    assert stores.sessions.load().wills == [will]
    stores.write(wills=[(9, None)])
    assert stores.sessions.load().wills == []


@pytest.mark.promise("repositories-7")
def test_nothing_of_a_session_is_left(stores: SessionStores) -> None:
    stores.write(
        records=1,
        subscriptions=[(1, "f", SubscriptionRow("f", 0, 0, 0))],
        receiving=[(1, 1, 0)],
        queue_rows=[row(1), row(2, packet_id=4), row(3, packet_id=5, qos=2)],
        queue_marks=[mark(3, RELEASED, 5)],
    )
    stores.write(deleted_sessions=[1])
    assert [found.row for found in stores.sessions.load().sessions] == [BOB]
    stores.write(sessions=[msgspec.structs.replace(ANN, generation=5)])
    stores.reopen()
    _, again = stores.sessions.load().sessions
    assert (again.subscriptions, again.receiving, again.queued) == ((), (), 0)
    assert stores.in_flight(5) == stores.page(5, 0, 10) == []
    assert stores.history.known_offsets(5, 0) == {}


@pytest.mark.promise("device-9")
def test_packet_ids_that_are_received_come_and_go(stores: SessionStores) -> None:
    stores.write(records=3, receiving=[(1, 7, 0), (1, 8, 1), (2, 7, 2)])
    stores.write(released=[(1, 7), (1, 99)])
    stores.reopen()
    bob, ann = stores.sessions.load().sessions
    assert (ann.receiving, bob.receiving) == ((8,), (7,))


# The queue


@pytest.mark.promise("device-8")
def test_pages_come_in_order_and_whole(stores: SessionStores) -> None:
    stores.write(queue_rows=[row(number) for number in (3, 1, 2)] + [row(9, generation=2)])
    stores.write(queue_rows=[row(4)])
    assert [without_id(found) for found in stores.page(1, 0, 10)] == [row(number) for number in (1, 2, 3, 4)]
    assert numbers(stores.page(1, 0, 2)) == [1, 2]
    assert numbers(stores.page(1, 2 * STEP, 10)) == [3, 4]
    assert stores.page(1, 4 * STEP, 10) == stores.page(77, 0, 10) == []


@pytest.mark.promise("device-8")
def test_all_of_a_long_queue_comes_in_pages(stores: SessionStores) -> None:
    for first in range(1, 3_000, 700):
        stores.write(queue_rows=[row(number) for number in range(first, min(first + 700, 3_001))])
    after, seen = 0, []
    while page := stores.page(1, after, 100):
        assert len(page) == 100
        seen += numbers(page)
        after = page[-1].seq
    assert seen == list(range(1, 3_001))


def test_a_page_ends_with_the_row_that_fills_it(stores: SessionStores) -> None:
    stores.write(queue_rows=[row(number) for number in range(1, 6)])
    size = len(row(1).record)
    assert numbers(stores.page(1, 0, 10, 1)) == [1]
    assert numbers(stores.page(1, 0, 10, 2 * size)) == [1, 2]
    assert numbers(stores.page(1, 2 * STEP, 10, 2 * size + 1)) == [3, 4, 5]
    assert numbers(stores.page(1, 0, 1, 2 * size)) == [1]


@pytest.mark.promise("device-8", "device-9", "repositories-1")
def test_in_flight_is_what_was_sent_and_not_done(stores: SessionStores) -> None:
    stores.write(queue_rows=[row(number, qos=2) for number in range(1, 6)])
    stores.write(queue_marks=[mark(2, SENT, 12, qos=2), mark(1, SENT, 11, qos=2), mark(3, SENT, 13, qos=2)])
    stores.write(queue_marks=[mark(3, RELEASED, 13)])
    stores.reopen()
    assert in_flight(stores) == [(1, SENT, 11), (2, SENT, 12), (3, RELEASED, 13)]
    assert stores.in_flight(1)[2].record == record("message 3")
    assert numbers(stores.page(1, 0, 10)) == [4, 5]
    stores.write(queue_marks=[mark(1, DONE, 11), mark(3, DONE, 13)])
    assert in_flight(stores) == [(2, SENT, 12)]
    assert list(stores.sessions.load().sessions)[-1].queued == 3


@pytest.mark.promise("device-4")
def test_rows_are_renumbered_when_they_are_sent(stores: SessionStores) -> None:
    """Ids that the broker gives are final, in whatever order they cross those that a store had given."""
    stores.write(queue_rows=[row(number) for number in range(1, 7)])
    stores.write(queue_marks=[mark(1, SENT, 3), mark(2, SENT, 1), mark(3, SENT, 2), mark(4, SENT, 60_000)])
    assert in_flight(stores) == [(1, SENT, 3), (2, SENT, 1), (3, SENT, 2), (4, SENT, 60_000)]
    assert [found.record for found in stores.in_flight(1)] == [record(f"message {n}") for n in (1, 2, 3, 4)]
    assert [found.record for found in stores.page(1, 0, 10)] == [record("message 5"), record("message 6")]
    stores.write(queue_marks=[mark(1, DONE, 3), mark(2, DONE, 1), mark(3, DONE, 2), mark(4, DONE, 60_000)])
    assert stores.in_flight(1) == []
    assert numbers(stores.page(1, 0, 10)) == [5, 6]


@pytest.mark.promise("device-4")
def test_an_id_of_the_broker_moves_who_has_it(stores: SessionStores) -> None:
    """A live message that was not acknowledged in time is stored with the id that the client saw."""
    stores.write(queue_rows=[row(number) for number in (1, 2, 3)])
    stores.write(queue_rows=[row(4, packet_id=2), row(5)])
    assert in_flight(stores) == [(4, SENT, 2)]
    assert numbers(stores.page(1, 0, 10)) == [1, 2, 3, 5]
    assert [found.record for found in stores.page(1, 0, 10)] == [record(f"message {n}") for n in (1, 2, 3, 5)]
    ids = [found.packet_id for found in stores.page(1, 0, 10)]
    assert 2 not in ids


@pytest.mark.promise("device-6")
def test_the_oldest_are_those_that_wait(stores: SessionStores) -> None:
    stores.write(queue_rows=[row(number) for number in range(1, 8)])
    stores.write(queue_marks=[mark(1, SENT, 1), mark(2, DONE, 0)])
    assert [seq for seq, _ in stores.oldest(1, 0, 3)] == [3 * STEP, 4 * STEP, 5 * STEP]
    assert stores.oldest(1, 5 * STEP, 3) == [
        (6 * STEP, len(record("message 6"))),
        (7 * STEP, len(record("message 7"))),
    ]
    stores.write(queue_dropped=[(1, 3 * STEP), (1, 4 * STEP)])
    assert numbers(stores.page(1, 0, 10)) == [5, 6, 7]
    stores.reopen()
    ann = list(stores.sessions.load().sessions)[-1]
    assert (ann.queued, ann.queued_bytes) == (4, 4 * len(record("message 1")))


@pytest.mark.promise("device-5")
def test_saving_again_stores_nothing_twice(stores: SessionStores) -> None:
    rows = [row(1), row(2, packet_id=9), row(3, offset=-1), row(4, flags=8)]
    stores.write(queue_rows=rows)
    stores.write(queue_rows=rows)
    assert numbers(stores.page(1, 0, 10)) == [1, 3, 4]
    assert in_flight(stores) == [(2, SENT, 9)]
    assert list(stores.sessions.load().sessions)[-1].queued == 4


@pytest.mark.promise("device-5")
def test_what_is_done_is_known_until_the_floor_has_passed_it(stores: SessionStores) -> None:
    known = stores.history.known_offsets
    stores.write(queue_rows=[row(number) for number in (1, 2, 3)])
    stores.write(queue_marks=[mark(number, DONE, 0) for number in (1, 2)])
    assert numbers(stores.page(1, 0, 10)) == [3]
    assert known(1, 0) == {0: {10, 20, 30}}
    assert known(1, 20) == {0: {20, 30}}
    stores.forget_below(20)
    assert known(1, 20) == {0: {20, 30}}
    stores.reopen()
    known = stores.history.known_offsets
    assert known(1, 20) == {0: {20, 30}}
    stores.write(queue_marks=[mark(3, DONE, 0)])
    stores.forget_below(31)
    assert known(1, 0) == {}


def test_what_came_by_a_shared_subscription_is_known_apart(stores: SessionStores) -> None:
    """And by which: a member of two groups has a copy for each."""
    g, h = (0xFFFFFFFF << 1 | 1) << 3, 7 << 3
    stores.write(queue_rows=[row(1), row(2, offset=10, flags=1 | g), row(3, flags=2 | h)])
    stores.reopen()
    assert stores.history.known_offsets(1, 0) == {0: {10}, g >> 3: {10}, 7: {30}}


def test_copies_of_shared_subscriptions_are_all_kept(stores: SessionStores) -> None:
    """Two groups of one client match the same message; and what was handed to another member may come back."""
    stores.write(queue_rows=[row(1, offset=10), row(2, offset=10, flags=8), row(3, offset=10, flags=8)])
    assert numbers(stores.page(1, 0, 10)) == [1, 2, 3]
    stores.write(queue_marks=[mark(2, DONE, 0, offset=10)])
    stores.write(queue_rows=[row(4, offset=10, flags=8)])
    assert numbers(stores.page(1, 0, 10)) == [1, 3, 4]


@pytest.mark.promise("device-5")
def test_the_place_before_later_records(stores: SessionStores) -> None:
    stores.write(queue_rows=[row(number) for number in (2, 3, 4)])
    assert stores.history.queued_seq_after(1, 0) == 2 * STEP
    assert stores.history.queued_seq_after(1, 20) == 3 * STEP
    assert stores.history.queued_seq_after(1, 25) == 3 * STEP
    assert stores.history.queued_seq_after(1, 40) is None
    stores.write(queue_marks=[mark(3, SENT, 1)])
    stores.reopen()
    assert stores.history.queued_seq_after(1, 20) == 4 * STEP


# Retained


def test_retained_messages_are_replaced_and_deleted(stores: SessionStores) -> None:
    first, second = record("1", "a/{b}"), record("2", "a/{b}")
    stores.write(
        records=3,
        retained=[
            RetainedWrite("a/{b}", 0, first),
            RetainedWrite("a/{b}", 1, second),
            RetainedWrite("c", 2, record("c", "c")),
        ],
    )
    found = {kept.topic: (kept.offset, kept.record) for kept in stores.sessions.load_retained()}
    assert found == {"a/{b}": (1, second), "c": (2, record("c", "c"))}
    stores.write(records=1, retained=[RetainedWrite("a/{b}", 0, b"")])
    stores.reopen()
    assert [kept.topic for kept in stores.sessions.load_retained()] == ["c"]


def test_only_the_retained_message_that_expired_goes(stores: SessionStores) -> None:
    stores.write(records=1, retained=[RetainedWrite("c", 0, record("1", "c"))])
    stores.write(records=1, retained=[RetainedWrite("c", 0, record("2", "c"))])
    stores.write(retained_expired=[("c", 0)])
    (kept,) = stores.sessions.load_retained()
    assert (kept.offset, kept.record) == (1, record("2", "c"))
    stores.write(retained_expired=[("c", 1), ("none", 7)])
    assert stores.sessions.load_retained() == []


# What only a store beside the log has to promise


@pytest.mark.promise("repositories-5a")
def test_a_retained_message_is_only_replaced_by_a_later_one(redis_stores: InRedis) -> None:
    later, earlier = record("later", "c"), record("earlier", "c")
    redis_stores.log_end = 50
    redis_stores.write(records=1, retained=[RetainedWrite("c", 0, later)])
    redis_stores.log_end = 20
    redis_stores.write(records=1, retained=[RetainedWrite("c", 0, earlier)])
    redis_stores.write(records=1, retained=[RetainedWrite("c", 0, b"")])
    (kept,) = redis_stores.sessions.load_retained()
    assert (kept.offset, kept.record) == (50, later)


@pytest.mark.promise("repositories-8", "device-3")
def test_writes_of_an_older_epoch_are_refused(redis_stores: InRedis) -> None:
    redis_stores.write(sessions=[ANN], queue_rows=[row(1), row(2, packet_id=4)])
    other = redis_stores.another()
    other.write(sessions=[msgspec.structs.replace(ANN, epoch=2)])
    redis_stores.write(
        records=1,
        sessions=[ANN],
        subscriptions=[(1, "f", SubscriptionRow("f", 0, 0, 0))],
        receiving=[(1, 1, 0)],
        queue_rows=[row(3), row(4, packet_id=5)],
        queue_marks=[mark(1, SENT, 9), mark(2, DONE, 4)],
        queue_dropped=[(1, STEP)],
    )
    assert redis_stores.page(1, 0, 10) == redis_stores.in_flight(1) == []
    assert redis_stores.oldest(1, 0, 10) == []
    redis_stores.write(deleted_sessions=[1])
    assert redis_stores.writer.statistics().fenced == 7
    assert numbers(other.page(1, 0, 10)) == [1]
    assert in_flight(other) == [(2, SENT, 4)]
    (found,) = other.sessions.load().sessions
    assert (found.row.epoch, found.subscriptions, found.receiving, found.queued) == (2, (), (), 2)
    other.close()


@pytest.mark.promise("repositories-7", "repositories-8")
def test_a_newer_generation_replaces_everything(redis_stores: InRedis) -> None:
    redis_stores.write(
        records=1,
        sessions=[ANN],
        subscriptions=[(1, "f", SubscriptionRow("f", 0, 0, 0))],
        wills=[(1, WillRow(ANN.client_id, 5, record("will")))],
        receiving=[(1, 1, 0)],
        queue_rows=[row(1), row(2, packet_id=4), row(3, packet_id=5, qos=2)],
        queue_marks=[mark(3, RELEASED, 5)],
    )
    newer = msgspec.structs.replace(ANN, generation=2**40)
    redis_stores.write(sessions=[newer])
    assert redis_stores.all_keys() == {"s:ol:{ann/%7B%7D%25🦊}": "string"}
    other = redis_stores.another()
    other.write(sessions=[ANN], wills=[(1, WillRow(ANN.client_id, 5, record("late")))], deleted_sessions=[1])
    assert other.writer.statistics().fenced == 3
    state = redis_stores.sessions.load()
    assert [found.row for found in state.sessions] == [newer]
    assert state.wills == []
    other.close()


@pytest.mark.promise("device-5")
def test_a_repetition_after_a_lost_answer_changes_nothing(redis_stores: InRedis) -> None:
    """Whatever was asked of one client's data since an operation without an answer is done once more, in order."""
    redis_stores.write(sessions=[ANN])
    began = redis_stores.link.asked
    redis_stores.write(
        records=1, receiving=[(1, 5, 0)], queue_rows=[row(1), row(2), row(3, packet_id=1, qos=2)]
    )
    redis_stores.write(queue_marks=[mark(1, SENT, 2), mark(2, SENT, 3)])
    redis_stores.write(queue_marks=[mark(3, RELEASED, 1), mark(1, DONE, 2)])
    redis_stores.write(queue_rows=[row(4, packet_id=2), row(5), row(6)], released=[(1, 5)])
    redis_stores.write(queue_marks=[mark(4, DONE, 2)], queue_dropped=[(1, 5 * STEP)])
    redis_stores.write(queue_rows=[row(7, packet_id=2)])
    expected = [(2, SENT, 3), (3, RELEASED, 1), (7, SENT, 2)]
    for last in range(redis_stores.link.asked - began + 1):
        redis_stores.link.repeat(last)
        assert in_flight(redis_stores) == expected, last
        assert numbers(redis_stores.page(1, 0, 10)) == [6], last
        assert list(redis_stores.sessions.load().sessions)[-1].queued == 4, last
        assert list(redis_stores.sessions.load().sessions)[-1].receiving == (), last


@pytest.mark.promise("device-4")
def test_packet_ids_wrap_around_those_that_are_still_there(redis_stores: InRedis) -> None:
    redis_stores.write(sessions=[ANN])
    key = "{ann/%7B%7D%25🦊}_last_packet_id"
    redis_stores.write(queue_rows=[row(1), row(2, packet_id=2, qos=2)])
    redis_stores.write(queue_marks=[mark(2, RELEASED, 2)])
    redis_stores.ask(key, "SET", key, 65_534)
    redis_stores.ask(
        key, "DEL", "{ann/%7B%7D%25🦊}_messages_2"
    )  # its payload expired; PUBREL is owed all the same
    redis_stores.write(queue_rows=[row(3), row(4), row(5)])
    assert [(found.seq // STEP, found.packet_id) for found in redis_stores.page(1, 0, 10)] == [
        (1, 1),
        (3, 65_535),
        (4, 3),
        (5, 4),
    ]
    assert redis_stores.ask(key, "GET", key) == b"4"


@pytest.mark.promise("device-4")
def test_who_is_moved_gets_no_id_that_is_in_flight(redis_stores: InRedis) -> None:
    key = "{ann/%7B%7D%25🦊}_messages_2"
    redis_stores.write(sessions=[ANN], queue_rows=[row(1), row(2, packet_id=2, qos=2)])
    redis_stores.ask(key, "DEL", key)  # it expired on its way to the client
    redis_stores.write(queue_rows=[row(3, packet_id=1)])
    assert [(found.seq // STEP, found.packet_id) for found in redis_stores.page(1, 0, 10)] == [(1, 3)]
    assert in_flight(redis_stores) == [(2, RELEASED, 2), (3, SENT, 1)]


@pytest.mark.promise("device-9")
def test_what_was_released_stays_so_when_its_sending_is_repeated(redis_stores: InRedis) -> None:
    redis_stores.write(sessions=[ANN], queue_rows=[row(1, qos=2)])
    redis_stores.write(queue_marks=[mark(1, SENT, 5, qos=2), mark(1, RELEASED, 5)])
    redis_stores.write(queue_marks=[mark(1, SENT, 5, qos=2)])
    assert in_flight(redis_stores) == [(1, RELEASED, 5)]


def test_the_floor_trims_positions_of_those_who_get_nothing_more(redis_stores: InRedis) -> None:
    redis_stores.write(sessions=[ANN, BOB], queue_rows=[row(1), row(2, generation=2), row(3, generation=2)])
    redis_stores.forget_below(21)
    key = "{bob}_positions"
    assert "{ann/%7B%7D%25🦊}_positions" not in redis_stores.all_keys()
    assert redis_stores.ask(key, "ZRANGE", key, 0, -1) == [b"20", b"30"]
    redis_stores.write(queue_rows=[row(4, generation=2)])
    assert redis_stores.ask(key, "ZRANGE", key, 0, -1) == [b"30", b"40"]
    redis_stores.reopen()
    redis_stores.forget_below(100)
    assert "{bob}_positions" not in redis_stores.all_keys()


@pytest.mark.promise("repositories-5a")
def test_the_set_of_received_packet_ids_says_how_far_it_is_complete(redis_stores: InRedis) -> None:
    redis_stores.log_end = 40
    redis_stores.write(records=3, sessions=[ANN], receiving=[(1, 7, 1)])
    key = "s:f:ri:{ann/%7B%7D%25🦊}"
    assert redis_stores.ask(key, "HGETALL", key) == {b"upto": b"43", b"7": b'{"offset":41}'}
    redis_stores.write(records=2, released=[(1, 7)])
    assert redis_stores.ask(key, "HGETALL", key) == {b"upto": b"45"}


def test_what_is_asked_while_the_store_is_away_is_done_later(redis_stores: InRedis) -> None:
    redis_stores.write(sessions=[ANN])
    redis_stores.link.away = True
    told: list[int] = []
    writer = redis_stores.writer
    writer.submit(TickWrites(), 0, 0, lambda: told.append(0))
    writer.submit(TickWrites(session=SessionWrites(queue_rows=[row(1)])), 0, 0, lambda: told.append(1))
    writer.submit(TickWrites(), 0, 0, lambda: told.append(2))
    redis_stores.settle()
    assert told == [0]
    assert writer.failing == "away"
    assert writer.waiting_bytes > 0
    assert writer.waiting_ticks == 2
    redis_stores.link.return_()
    redis_stores.settle()
    assert told == [0, 1, 2]
    assert numbers(redis_stores.page(1, 0, 10)) == [1]


def test_the_store_knows_how_far_the_log_was(redis_stores: InRedis) -> None:
    """The log may have lost its end: positions that the store knows must not be used again."""
    redis_stores.write(sessions=[ANN, BOB])
    assert redis_stores.sessions.load().log_end == 0
    redis_stores.write(queue_rows=[row(1), row(2, offset=-1)])
    redis_stores.reopen()
    assert redis_stores.sessions.load().log_end == 11
    redis_stores.write(subscriptions=[(2, "f", SubscriptionRow("f", 0, 0, 40))])
    redis_stores.reopen()
    assert redis_stores.sessions.load().log_end == 40
    redis_stores.log_end = 50
    redis_stores.write(records=1, receiving=[(1, 1, 0)])
    redis_stores.reopen()
    assert redis_stores.sessions.load().log_end == 51
