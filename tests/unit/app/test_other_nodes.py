"""Which node of a cluster is left out of lists for a while."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from embermq.app import other_nodes
from embermq.app.other_nodes import ClusterHomes, NodesAsked
from embermq.edge.settings import Address
from embermq.ports.errors import StoreUnavailable


class Homes:
    """Of slot 0, with one other."""

    slot, tls = 0, None

    def __init__(self) -> None:
        self.address: Address | None = Address("127.0.0.1", 1)

    def address_of(self, _slot: int) -> Address | None:
        return self.address

    def secret(self) -> bytes:
        return b"s"


def test_a_node_is_mute_until_it_answers_or_another_one_has_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    error: Exception | None = TimeoutError()

    async def answer(*_: Any, **__: Any) -> bytes:
        if error is not None:
            raise error
        return b"here"

    monkeypatch.setattr(other_nodes, "ask_node", answer)
    monkeypatch.setattr(other_nodes, "MUTE_S", 1e6)
    homes = Homes()
    nodes = NodesAsked(cast(ClusterHomes, homes), 2)

    async def scenario() -> None:
        nonlocal error
        assert not nodes.is_mute(1)
        with pytest.raises(StoreUnavailable, match="too slow"):
            await nodes.ask(1, b"", 1.0)
        assert nodes.is_mute(1)
        homes.address = Address("127.0.0.1", 2)
        assert not nodes.is_mute(1)
        homes.address = Address("127.0.0.1", 1)
        error = None
        assert await nodes.ask(1, b"", 1.0) == b"here"
        assert not nodes.is_mute(1)
        error = ConnectionRefusedError("refused")
        with pytest.raises(StoreUnavailable, match="refused"):
            await nodes.ask(1, b"", 1.0)
        assert not nodes.is_mute(1), "that cost no time"
        error = TimeoutError()
        monkeypatch.setattr(other_nodes, "MUTE_S", 0.0)
        with pytest.raises(StoreUnavailable):
            await nodes.ask(1, b"", 1.0)
        assert not nodes.is_mute(1), "for a while"

    asyncio.run(scenario())
