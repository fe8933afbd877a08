"""A data directory with very many kept sessions, written as the broker writes it."""

from __future__ import annotations

from pathlib import Path

from embermq.adapters.segments.tick_store import SegmentTickStore
from embermq.adapters.sqlite.checkpoint import SqliteCheckpoint
from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer, wall_ms
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.formats.log_record import encode_record
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import NEVER_EXPIRES, SessionRow, SubscriptionRow
from embermq.model.session_writes import QUEUE_SEQ_STEP, QueueRow, QueueState
from embermq.model.tick_writes import TickWrites
from embermq.mqtt.wire.version import ProtocolVersion

AT_ONCE = 5_000
"""Sessions a tick."""
GROUP = 100
CREATED_MS = 1_700_000_000_000
FOR_EVER_MS = 1 << 50


def client_id(number: int) -> str:
    """Of the session with that number, from 0 on."""
    return f"device-{number:06d}"


def filters(number: int) -> tuple[str, ...]:
    """Five: two topics of its own, a wildcard of its own, one of its group of 100, and one that all have."""
    own = f"devices/{number:06d}"
    return f"{own}/commands", f"{own}/settings", f"{own}/files/+", f"groups/{number // GROUP}/#", "news"


def write_sessions(data_dir: Path, count: int) -> None:
    """`count` sessions of absent DEVICE clients that never expire, each with its subscriptions at QoS 1 and one stored
    message, whose payload is the client id."""
    data_dir.mkdir(parents=True)
    writer = open_writer(data_dir / "broker.db", synchronous="OFF")
    apply_broker_schema(writer)
    checkpoint = SqliteCheckpoint(TickTables(writer), data_dir / "broker.db")
    store = SegmentTickStore(
        data_dir / "log", checkpoint, durability="os", post=lambda call: call(), now_ms=wall_ms
    )
    for first in range(0, count, AT_ONCE):
        writes = TickWrites(generation_reserved=count + 1)
        for number in range(first, min(first + AT_ONCE, count)):
            _add(writes, number)
        store.submit(writes, _logged)
    store.close()


def _add(writes: TickWrites, number: int) -> None:
    generation, name = number + 1, client_id(number)
    session = writes.session
    session.sessions.append(
        SessionRow(name, generation, 1, ClientType.DEVICE, "", 5, NEVER_EXPIRES, False, 0, CREATED_MS)
    )
    topic, *_ = found = filters(number)
    session.subscriptions += [(generation, one, SubscriptionRow(one, 1, 0, 0)) for one in found]
    message = Message(topic, name.encode(), 1, False, "", ProtocolVersion.V5, CREATED_MS)
    record = encode_record(message, b"")
    session.queue_rows.append(
        QueueRow(generation, QUEUE_SEQ_STEP, -1, 0, QueueState.QUEUED, 1, FOR_EVER_MS, (), record)
    )


def _logged(result: object) -> None:
    if isinstance(result, Exception):
        raise result
