"""Places in the queue of a session: not given twice while one is remembered, and none hides those behind it."""

from __future__ import annotations

import pytest
from tests.contracts.session_stores import InRedis, SessionStores

from embermq.adapters.redis.device_queue import RedisDeviceQueue
from embermq.formats.log_record import encode_record
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import NEVER_EXPIRES, SessionRow
from embermq.model.session_writes import QUEUE_SEQ_STEP, QueueMark, QueueRow, QueueState

ANN = SessionRow("ann", 1, 1, ClientType.DEVICE, "", 5, NEVER_EXPIRES, True, 0, 0)
RECORD = encode_record(Message("t", b"kept", 1, True, "bob", 5, 1_700_000_000_000))


def row(seq: int, *, offset: int = -1, packet_id: int = 0) -> QueueRow:
    """A message of QoS 1, in flight when it has a packet id."""
    state = QueueState.SENT if packet_id else QueueState.QUEUED
    return QueueRow(1, seq, offset, packet_id, state, 1, 2**42, (), RECORD)


@pytest.mark.promise("device-5")
def test_a_place_that_is_remembered_is_not_given_again(session_stores: SessionStores) -> None:
    """What has no log position of its own, a retained message, is known by its place."""
    stores = session_stores
    stores.write(sessions=[ANN])
    (born,) = stores.sessions.load().sessions
    seqs = (born.queue_seq_next, born.queue_seq_next + QUEUE_SEQ_STEP)
    stores.write(queue_rows=[row(seq, packet_id=number) for number, seq in enumerate(seqs, 1)])
    stores.write(
        queue_marks=[QueueMark(1, seq, -1, QueueState.DONE, number) for number, seq in enumerate(seqs, 1)]
    )
    stores.reopen()
    (found,) = stores.sessions.load().sessions
    assert found.queued == 0
    stores.write(queue_rows=[row(found.queue_seq_next, packet_id=1)])
    assert [kept.seq for kept in stores.in_flight(1)] == [found.queue_seq_next]


def test_the_place_behind_an_offset_is_the_first_one(session_stores: SessionStores) -> None:
    """Also where a handed over message stands behind later ones."""
    rows = [
        row(number * QUEUE_SEQ_STEP, offset=offset) for number, offset in enumerate((10, -1, 50, 30, 60), 1)
    ]
    session_stores.write(sessions=[ANN], queue_rows=rows)
    after = [session_stores.history.queued_seq_after(1, offset) for offset in (0, 10, 29, 49, 50, 60)]
    assert after == [QUEUE_SEQ_STEP, *[3 * QUEUE_SEQ_STEP] * 3, 5 * QUEUE_SEQ_STEP, None]
    assert session_stores.history.queued_seq_after(2, 0) is None


def test_a_message_that_cannot_be_read_hides_none(redis_stores: InRedis) -> None:
    """Also from a client that takes one message at a time."""
    rows = [row(number * QUEUE_SEQ_STEP, offset=number) for number in range(1, 5)]
    redis_stores.write(sessions=[ANN], queue_rows=rows)
    for packet_id in (1, 2, 4):
        redis_stores.ask("s:ol:{ann}", "SET", f"{{ann}}_messages_{packet_id}", "broken")
    assert [found.offset for found in redis_stores.page(1, 0, 1)] == [3]
    assert isinstance(redis_stores.queue, RedisDeviceQueue)
    assert redis_stores.queue.unreadable == 2
    assert redis_stores.page(1, 3 * QUEUE_SEQ_STEP, 1) == []


@pytest.mark.promise("queues-19")
def test_of_what_a_durable_queue_has_the_packet_id_is_kept_until_pubcomp(
    session_stores: SessionStores,
) -> None:
    """It is released in the write that stores it, and it has no record."""
    stores, seq = session_stores, QUEUE_SEQ_STEP
    released = QueueMark(1, seq, -1, QueueState.RELEASED, 7, 2)
    kept = QueueRow(1, seq, -1, 7, QueueState.SENT, 2, 2**42, (), b"")
    stores.write(sessions=[ANN])
    stores.write(queue_rows=[kept, row(2 * seq, offset=5)], queue_marks=[released])
    stores.reopen()
    (found,) = stores.in_flight(1)
    assert (found.seq, found.state, found.packet_id, found.record) == (seq, QueueState.RELEASED, 7, b"")
    assert [each.seq for each in stores.page(1, 0, 10)] == [2 * seq]
    stores.write(queue_marks=[QueueMark(1, seq, -1, QueueState.DONE, 7)])
    assert stores.in_flight(1) == []
