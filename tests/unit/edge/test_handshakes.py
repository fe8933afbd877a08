"""TLS handshakes at a time are bounded: who comes later waits to be accepted, and one that lasts makes room."""

from __future__ import annotations

import asyncio
import socket

import pytest

from embermq.edge import listening_sockets as listening
from embermq.edge.listening_sockets import HANDSHAKE_HELD_S, HANDSHAKE_RETRY_S, Handshakes, Introduction
from embermq.model.counters import Counters


def test_nobody_is_accepted_while_all_places_are_taken_and_the_oldest_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "HANDSHAKES_MAX", 2)

    async def scenario() -> None:
        counters = Counters()
        handshakes = Handshakes(counters)
        now_s = asyncio.get_running_loop().time()
        shaking = [asyncio.create_task(asyncio.Event().wait()) for _ in range(2)]
        ends = socket.socketpair()
        for task, sock in zip(shaking, ends, strict=True):
            assert handshakes.wait_s() == 0.0
            handshakes.begin(task, introduction := Introduction(sock, now_s))  # type: ignore[arg-type]
            introduction.task = task  # type: ignore[assignment]
        assert handshakes.wait_s() == HANDSHAKE_RETRY_S
        assert counters.tls_handshakes_dropped == 0
        introduction.began_s = now_s - HANDSHAKE_HELD_S
        assert handshakes.wait_s() == HANDSHAKE_RETRY_S, "the oldest decides, and it has its second"
        next(iter(handshakes._under_way.values())).began_s = now_s - HANDSHAKE_HELD_S
        assert handshakes.wait_s() == 0.0
        assert counters.tls_handshakes_dropped == 1
        for task in shaking:
            task.cancel()
        await asyncio.gather(*shaking, return_exceptions=True)
        assert len(handshakes) == 0
        for sock in ends:
            sock.close()

    asyncio.run(scenario())
