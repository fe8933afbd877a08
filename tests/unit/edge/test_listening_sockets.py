"""Listening sockets: who waits for a place, and what is kept of how a connection came in."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop
from tests.support.certificates import Authority

from embermq.edge.connection_limits import Admission, ConnectionSlot
from embermq.edge.listening_sockets import Handshakes, Listening
from embermq.edge.plain_sockets import PlainSockets
from embermq.edge.settings import ClientSettings, TlsSettings
from embermq.edge.tls import server_context
from embermq.model.counters import Counters

ADDRESS = "192.0.2.1"


def test_who_comes_to_a_full_address_waits_until_ends_that_have_come_are_read() -> None:
    counts = Admission(ClientSettings(connections_per_address_max=1), Counters())
    listening = cast(Any, SimpleNamespace(_admission=counts, _waiting_for_room=0))

    def arrived() -> tuple[ConnectionSlot, bool]:
        place = counts.arrive()
        assert place is not None
        counts.locate(place, ADDRESS)
        return place, place.refusal is None

    async def scenario() -> None:
        first, is_in = arrived()
        assert is_in
        coming = asyncio.create_task(Listening._room_for(listening, ADDRESS))
        other = asyncio.create_task(Listening._room_for(listening, "192.0.2.2"))
        await asyncio.sleep(0)
        assert (coming.done(), other.done()) == (False, True)
        counts.leave(first)  # its end is read now
        await asyncio.wait_for(coming, 60)
        assert arrived()[1]
        await asyncio.wait_for(Listening._room_for(listening, ADDRESS), 60)
        assert not arrived()[1], "nobody has left: it is looked for long enough, and no longer"
        assert listening._waiting_for_room == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("over_tls", [False, True])
def test_a_connection_does_not_keep_the_task_that_let_it_in(*, over_tls: bool, tmp_path: Path) -> None:
    """There may be a million of them: a task and its coroutine are a kilobyte."""
    authority = Authority(tmp_path)
    server = str(authority.server())
    counters = Counters()

    def introductions() -> int:
        gc.collect()
        return sum(
            isinstance(found, asyncio.Task) and "_introduce" in repr(found.get_coro())
            for found in gc.get_objects()
        )

    async def scenario() -> int:
        all_made, made = asyncio.Event(), list[asyncio.Protocol]()

        def factory(*_: object) -> asyncio.Protocol:
            made.append(asyncio.Protocol())
            if len(made) == 5:
                all_made.set()
            return made[-1]

        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        listening = Listening(
            [sock],
            factory,
            Admission(ClientSettings(), counters),
            Handshakes(counters),
            handshake_s=60,
            proxied=False,
            on_refused=lambda *_: None,
            plain=None if over_tls else PlainSockets(),
        )
        listening.serve(server_context(TlsSettings(cert=server), ("mqtt",)) if over_tls else None)
        trusting = ssl.create_default_context(cafile=str(authority.certificate)) if over_tls else None
        port = sock.getsockname()[1]
        writers = [(await asyncio.open_connection("127.0.0.1", port, ssl=trusting))[1] for _ in range(5)]
        async with asyncio.timeout(60):
            await all_made.wait()
            await asyncio.gather(*listening._introductions)
        await asyncio.sleep(0)  # for the callbacks of these
        kept = introductions()
        for writer in writers:
            writer.close()
        listening.close()
        return kept

    assert uvloop.run(scenario()) == 0
