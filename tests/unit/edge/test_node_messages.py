"""Whoever handed clients to a node hears when another one has its slot."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from embermq.edge import node_messages
from embermq.edge.node_link import Homes
from embermq.edge.node_messages import NodeSender
from embermq.edge.settings import Address
from embermq.model.message import Message
from embermq.mqtt.wire.version import ProtocolVersion

OLD, NEW = Address("192.0.2.1", 1), Address("192.0.2.2", 1)
WAIT_S = 60.0


@pytest.mark.parametrize("now", [NEW, None])
def test_a_slot_has_moved_also_from_a_node_that_was_not_reached(
    now: Address | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        at: list[Address | None] = [OLD]
        called, told = asyncio.Event(), asyncio.Event()
        moved: list[tuple[int, Address]] = []

        async def call_node(address: Address, *_: object) -> object:
            called.set()
            raise ConnectionRefusedError

        def hear(slot: int, address: Address) -> None:
            moved.append((slot, address))
            told.set()

        monkeypatch.setattr(node_messages, "RETRY_S", 0.001)
        monkeypatch.setattr(node_messages, "call_node", call_node)
        homes = cast(Homes, SimpleNamespace(address_of=lambda _: at[0], tls=None))
        sender = NodeSender(homes, (1,), hear)
        sender.start()
        async with asyncio.timeout(WAIT_S):
            await called.wait()
            at[0] = now
            await told.wait()
        sender.close()
        assert moved == [(1, OLD)]

    asyncio.run(scenario())


class Far:
    """A connection that keeps what is written."""

    def __init__(self) -> None:
        self.data = b""

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return len(self.data)

    def write(self, data: bytes) -> None:
        self.data += data


def test_what_goes_to_each_node_is_counted() -> None:
    async def scenario() -> None:
        sender, far = NodeSender(cast(Homes, None), (1, 2), print), Far()
        sender._far[1] = cast(asyncio.Transport, far)
        for _ in range(3):
            sender.send(Message("a", b"x", 0, False, "", ProtocolVersion.V5, 0, 0, None))
        await asyncio.sleep(0)
        assert sender.sent == {1: (3, len(far.data)), 2: (0, 0)}
        assert (sender.waiting_bytes(1), sender.waiting_bytes(2)) == (len(far.data), None)
        assert sender.dropped == 3

    asyncio.run(scenario())
