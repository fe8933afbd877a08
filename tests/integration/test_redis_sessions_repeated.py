"""Session data that Redis refuses at first: it is stored in the end, though things that came later already were."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.redis_asking import linked, on_the_loop
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for

from embermq.adapters.redis import state_writer
from embermq.adapters.redis.owners import Owners
from embermq.adapters.redis.state_writer import RedisStateWriter
from embermq.formats.log_record import encode_record
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import SessionRow
from embermq.model.session_writes import QueueMark, QueueRow, QueueState, SessionWrites
from embermq.model.tick_writes import TickWrites

LARGE_BYTES = 32 * 1024 * 1024
FAR_MS = 4_000_000_000_000
ANN = SessionRow("ann", 1, 1, ClientType.DEVICE, "", 5, 60, True, 0, 0)
BOB = msgspec.structs.replace(ANN, client_id="bob", generation=2)


def row(session: SessionRow, packet_id: int, payload: bytes) -> QueueRow:
    record = encode_record(Message("t", payload, 1, False, "p", 5, 0))
    state = QueueState.SENT if packet_id else QueueState.QUEUED
    return QueueRow(session.generation, 65_536, packet_id, packet_id, state, 1, FAR_MS, (), record)


@pytest.mark.parametrize("is_of_this_run", [True, False])
def test_a_message_that_found_no_room_is_stored_though_its_client_came_back_before(
    redis_server: RedisServer, is_of_this_run: bool
) -> None:
    """A row is refused (OOM), what was sent behind it makes room, and the takeover that follows is done at once."""
    on_the_loop(store_late)(redis_server, is_of_this_run)


async def store_late(redis_server: RedisServer, is_of_this_run: bool) -> None:
    async with linked(redis_server.url, scripts=state_writer.SCRIPTS) as link:
        owners = Owners()
        writer = RedisStateWriter(link, owners, asyncio.get_running_loop().call_soon)
        stored: list[int] = []

        def submit(writes: SessionWrites) -> None:
            writer.submit(TickWrites(session=writes), 0, 10, lambda: stored.append(1))

        large = row(BOB, 1, b"large")
        submit(SessionWrites(sessions=[ANN, BOB], queue_rows=[large]))
        await wait_for(lambda: len(stored) == 1)
        if not is_of_this_run:
            owners.found(ANN)
        used = int(redis_server.ask("INFO", "memory").split(b"used_memory:")[1].split()[0])
        redis_server.ask("SETRANGE", "{bob}_messages_1", LARGE_BYTES, "x")
        redis_server.ask("CONFIG", "SET", "maxmemory", used + LARGE_BYTES // 2)
        try:
            submit(SessionWrites(queue_rows=[row(ANN, 0, b"waits")]))
            submit(SessionWrites(queue_marks=[QueueMark(2, large.seq, 1, QueueState.DONE, 1)]))
            submit(SessionWrites(sessions=[msgspec.structs.replace(ANN, epoch=2)]))
            await wait_for(lambda: len(stored) == 4)
        finally:
            redis_server.ask("CONFIG", "SET", "maxmemory", 0)
        assert link.statistics().retries > 0
        assert redis_server.ask("ZCARD", "{ann}_messages") == 1
        assert writer.statistics().fenced == 0
