"""Whoever handed clients to a node hears when another one has its slot."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import cast

import pytest
from tests.support.waiting import wait_for

from embermq.edge import node_messages
from embermq.edge.connection_limits import ConnectionSlot
from embermq.edge.node_door import NodeDoor, NodeListenerContext
from embermq.edge.node_link import (
    NONCE_BYTES,
    OLDEST_VERSION,
    VERSION,
    Homes,
    Messages,
    NonceReader,
    _Introduction,
    ask_node,
    call_node,
)
from embermq.edge.node_messages import NodeSender
from embermq.edge.settings import Address
from embermq.model.counters import Counters
from embermq.model.message import Message
from embermq.mqtt.wire.version import ProtocolVersion

OLD, NEW = Address("192.0.2.1", 1), Address("192.0.2.2", 1)
WAIT_S, SECRET = 60.0, b"s" * 32


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
        sender.far[1].begins(cast(asyncio.Transport, far), OLD, 0)
        for _ in range(3):
            sender.send(Message("a", b"x", 0, False, "", ProtocolVersion.V5, 0, 0, None))
        await asyncio.sleep(0)
        first, second = sender.far[1], sender.far[2]
        assert (first.sent, first.sent_bytes) == (3, len(far.data))
        assert (second.sent, second.sent_bytes) == (0, 0)
        assert (first.waiting_bytes, second.waiting_bytes) == (len(far.data), None)
        assert sender.dropped == 3

    asyncio.run(scenario())


@pytest.mark.promise("cluster-25")
def test_round_trips_and_how_long_a_slot_had_no_node_are_measured() -> None:
    here, far = node_messages.Far(), Far()
    here.begins(cast(asyncio.Transport, far), OLD, 10.0)
    assert here.away.snapshot().sum_s == 0, "it was not there before"
    here.ask(10.0)
    here.ask(10.5)
    assert far.data == bytes(4), "it is asked once at a time"
    here.answered(b'{"clients/connected": 3}', 12.0)
    assert here.figures == {"clients/connected": 3}
    here.ask(12.0)
    here.answered(b"of a later version", 12.25)
    assert here.figures == {}
    assert here.round_trips.snapshot().sum_s == 2.25

    here.ended(13.0)
    here.begins(cast(asyncio.Transport, far), OLD, 14.0)
    assert (here.away.snapshot().sum_s, here.failovers) == (1.0, 0), "the same node"
    here.answered(b"{}", 15.0)
    here.ended(None)
    here.begins(cast(asyncio.Transport, far), NEW, 19.0)
    assert (here.away.snapshot().sum_s, here.failovers) == (5.0, 1), (
        "one that stood still was heard of before"
    )


class Routes(_Introduction, frozen=True, kw_only=True, tag="routes"):
    """A kind of introduction that a later version has."""

    slot: int


def door_for(homes: object, taken: list[bytes], counters: Counters) -> NodeDoor:
    """The door of the node of slot 1."""
    door = SimpleNamespace(
        doors=set(),
        connect_timeout_ms=60_000,
        refused=print,
        admission=SimpleNamespace(leave=lambda _: None),
        broker=SimpleNamespace(state=SimpleNamespace(counters=counters)),
    )
    return NodeDoor(
        cast(Homes, homes),
        1,
        cast(NodeListenerContext, door),
        cast(ConnectionSlot, None),
        take=taken.append,
        members_of=lambda _: [],
        do=print,
        figures=lambda: {"clients/connected": 2},
    )


@pytest.mark.promise("cluster-20")
def test_a_later_version_is_told_what_is_not_understood_and_served_with_the_rest() -> None:
    async def scenario() -> None:
        taken: list[bytes] = []
        counters = Counters()
        homes = SimpleNamespace(secret=lambda: SECRET)
        server = await asyncio.get_running_loop().create_server(
            lambda: door_for(homes, taken, counters), "127.0.0.1", 0
        )
        at = Address(*server.sockets[0].getsockname())
        asks = cast(Messages, Routes(slot=1, speaks=VERSION + 1))
        with pytest.raises(ConnectionError, match="another version"):
            await ask_node(at, None, asks, SECRET, WAIT_S)
        assert counters.nodes_not_understood == 1
        known = Messages(slot=1, speaks=VERSION + 1)
        later = b"\x80" + b"x" * 9
        behind = b"".join(len(each).to_bytes(4) + each for each in (later, b"\x00record", b""))
        answer = await ask_node(at, None, known, SECRET, WAIT_S, behind=behind)
        assert json.loads(answer) == {"clients/connected": 2}
        assert taken == [b"\x00record"]
        assert (counters.nodes_not_understood, counters.damaged_records) == (2, 0)
        server.close()

    asyncio.run(scenario())


def test_a_message_that_cannot_be_ends_the_connection_and_is_counted() -> None:
    async def scenario() -> None:
        taken: list[bytes] = []
        counters = Counters()
        homes = SimpleNamespace(secret=lambda: SECRET)
        server = await asyncio.get_running_loop().create_server(
            lambda: door_for(homes, taken, counters), "127.0.0.1", 0
        )
        at = Address(*server.sockets[0].getsockname())
        behind = b"\x00\x00\x00\x07\x00record" + b"\x7f\xff\xff\xff"
        with pytest.raises((EOFError, ConnectionError)):
            await ask_node(at, None, Messages(slot=1), SECRET, WAIT_S, behind=behind)
        assert (taken, counters.nodes_refused) == ([b"\x00record"], 1)
        server.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("version", [OLDEST_VERSION - 1, OLDEST_VERSION, VERSION + 1])
def test_a_node_that_is_called_says_its_version_and_may_be_later(version: int) -> None:
    async def scenario() -> None:
        async def greets(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes([version]) + bytes(NONCE_BYTES - 1))
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(greets, "127.0.0.1", 0)
        at = Address(*server.sockets[0].getsockname())
        if version < OLDEST_VERSION:
            with pytest.raises(ConnectionError, match=f"speaks version {version} "):
                await call_node(at, None, NonceReader)
        else:
            far, nonce = await call_node(at, None, NonceReader)
            assert nonce[0] == version
            far.abort()
        server.close()

    asyncio.run(scenario())


@pytest.mark.promise("cluster-25")
@pytest.mark.parametrize("says", [b"", b"\xff\xff\xff\xfe", b"\xff\xff\xff\xff"])
def test_a_node_that_does_not_answer_as_it_should_is_called_anew(
    says: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is stuck, one that announces 4 GiB, and one that does not know the question."""

    async def scenario() -> None:
        monkeypatch.setattr(node_messages, "RETRY_S", 0.001)
        monkeypatch.setattr(node_messages, "ANSWER_S", 0.01 if not says else WAIT_S)
        calls: list[asyncio.Transport] = []

        class Called(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                calls.append(cast(asyncio.Transport, transport))
                calls[-1].write(bytes([VERSION]) + bytes(NONCE_BYTES - 1))

            def data_received(self, _: bytes) -> None:
                calls[-1].write(says)

        server = await asyncio.get_running_loop().create_server(Called, "127.0.0.1", 0)
        at = Address(*server.sockets[0].getsockname())
        homes = SimpleNamespace(tls=None, secret=lambda: SECRET, address_of=lambda _: at)
        sender = NodeSender(cast(Homes, homes), (1,), print)
        sender.start()
        await wait_for(lambda: sender.far[1].given_up >= 2 and len(calls) >= 3, WAIT_S, "three calls")
        sender.close()
        await wait_for(lambda: all(each.is_closing() for each in calls), WAIT_S, "the end of the last one")
        server.close()

    asyncio.run(scenario())
    why = {b"": "has not answered for 0.01 s", b"\xff\xff\xff\xfe": "an answer of 4294967294 bytes"}
    assert why.get(says, "another version") in caplog.text


def test_a_node_that_is_asked_whether_it_is_there_answers_with_its_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(node_messages, "RETRY_S", 0.001)
        taken: list[bytes] = []
        homes = SimpleNamespace(tls=None, secret=lambda: SECRET)
        server = await asyncio.get_running_loop().create_server(
            lambda: door_for(homes, taken, Counters()), "127.0.0.1", 0
        )
        at = Address(*server.sockets[0].getsockname())
        homes.address_of = lambda _: at
        sender = NodeSender(cast(Homes, homes), (1,), print)
        assert sender.figures() == [None]
        sender.start()
        await wait_for(lambda: sender.figures() == [{"clients/connected": 2}], WAIT_S, "an answer")
        assert sum(sender.far[1].round_trips.snapshot().counts) > 0
        sender.close()
        server.close()
        assert taken == []

    asyncio.run(scenario())
