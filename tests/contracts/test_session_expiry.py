"""When what is stored for a session ceases to be kept, on its real server."""

from __future__ import annotations

import time

import msgspec
import pytest
from tests.contracts.session_stores import InRedis, SessionStores
from tests.contracts.test_session_store import (
    ANN,
    DONE,
    FAR_MS,
    RELEASED,
    SENT,
    STEP,
    mark,
    numbers,
    record,
    row,
)


@pytest.mark.promise("device-7")
@pytest.mark.parametrize("expires_ms", [1, FAR_MS, 2**42 + 4_294_967_295_000])
def test_the_deadline_is_the_time_to_live(redis_stores: InRedis, expires_ms: int) -> None:
    redis_stores.write(sessions=[ANN], queue_rows=[row(1, expires_ms=expires_ms)])
    key = "{ann/%7B%7D%25🦊}_messages_1"
    assert redis_stores.ask(key, "PEXPIRETIME", key) == (-2 if expires_ms == 1 else expires_ms)


@pytest.mark.promise("device-7", "device-9")
def test_expiry_does_not_concern_what_was_sent(session_stores: SessionStores) -> None:
    """Also where it was sent at once and is stored later, with a packet id that one in the queue would like."""
    session_stores.write(sessions=[ANN], queue_rows=[row(1), row(2)])
    taken = session_stores.page(1, 0, 10)[1].packet_id or 2
    session_stores.write(
        queue_rows=[row(n, packet_id=p, qos=2, expires_ms=1) for n, p in ((3, 21), (4, 22), (5, taken))],
        queue_marks=[mark(4, RELEASED, 22)],
    )
    sizes = [len(record(f"message {n}")) for n in range(1, 6)]
    for _ in range(2):
        found = session_stores.in_flight(1)
        assert [(one.seq // STEP, one.state, one.packet_id) for one in found] == [
            (3, SENT, 21),
            (4, RELEASED, 22),
            (5, SENT, taken),
        ]
        assert [one.record for one in found] == [record(f"message {n}") for n in (3, 4, 5)]
        assert numbers(session_stores.page(1, 0, 10)) == [1, 2]
        stored = list(session_stores.sessions.load().sessions)[-1]
        assert (stored.queued, stored.queued_bytes) == (5, sum(sizes))
        session_stores.reopen()
    session_stores.write(queue_marks=[mark(n, DONE, p) for n, p in ((3, 21), (4, 22), (5, taken))])
    assert session_stores.in_flight(1) == []


@pytest.mark.promise("device-7", "device-9")
def test_what_was_sent_has_no_time_to_live(redis_stores: InRedis) -> None:
    redis_stores.write(sessions=[ANN], queue_rows=[row(1), row(2, packet_id=9, qos=2)])
    redis_stores.write(queue_marks=[mark(1, SENT, 5, qos=2), mark(1, RELEASED, 5), mark(2, RELEASED, 9)])
    for packet_id in (5, 9):
        key = f"{{ann/%7B%7D%25🦊}}_messages_{packet_id}"
        assert redis_stores.ask(key, "PEXPIRETIME", key) == -1
        value = redis_stores.ask(key, "GET", key)
        assert isinstance(value, bytes)
        found = msgspec.json.decode(value)
        assert (found["packetType"], found["packetId"]) == ("PUBREL", packet_id)


@pytest.mark.promise("device-7")
def test_what_expired_is_met_and_removed(redis_stores: InRedis) -> None:
    soon = time.time_ns() // 1_000_000 + 1
    redis_stores.write(
        sessions=[ANN],
        queue_rows=[
            row(1),
            row(2, expires_ms=soon),
            row(3),
            row(4, packet_id=9, qos=2),
        ],
    )
    of_none = msgspec.structs.replace(row(5, packet_id=8, qos=2), record=b"")  # a durable queue has it
    redis_stores.write(queue_rows=[of_none])
    key = "{ann/%7B%7D%25🦊}_messages_9"
    redis_stores.ask(key, "DEL", key)  # as if it had expired just before it was sent
    deadline = time.monotonic() + 30
    while (found := redis_stores.page(1, 0, 10))[1].record:
        assert time.monotonic() < deadline
    assert [(one.seq // STEP, bool(one.record), one.expires_ms > 1) for one in found] == [
        (1, True, True),
        (2, False, False),
        (3, True, True),
    ]
    assert [(one.seq // STEP, one.state, one.record) for one in redis_stores.in_flight(1)] == [
        (4, RELEASED, b""),  # the client may have it and wait for PUBREL
        (5, RELEASED, b""),
    ]
    redis_stores.write(queue_dropped=[(1, 2 * STEP)])
    redis_stores.write(queue_marks=[mark(4, DONE, 9), mark(5, DONE, 8)])
    assert redis_stores.in_flight(1) == []
    assert list(redis_stores.sessions.load().sessions)[-1].queued == 2
    assert not [name for name in redis_stores.all_keys() if name.startswith("s:f:")]
