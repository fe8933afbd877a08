"""What one client sends at once is decided in turns with the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tests.support.hand_driven import HandDrivenBroker
from tests.support.no_ticks import NoTicks
from tests.support.raw_client import BINARY, frame, upgrade_request

from embermq.edge.connection import FULL_READ_BYTES, REST_BYTES_MAX, TURN_BYTES_MAX, Connection
from embermq.edge.connection_limits import Admission, ConnectionSlot
from embermq.edge.listener_context import ListenerContext
from embermq.edge.settings import ClientSettings, WebSocketSettings
from embermq.edge.websocket_connection import WebSocketConnection
from embermq.model.counters import Counters
from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Publish
from embermq.mqtt.wire.version import ProtocolVersion


class Recorded(Connection):
    """Notes what it has to decide, one call a turn; holds at that turn."""

    def __init__(self, hold_at: int = 0) -> None:
        hand = HandDrivenBroker()
        super().__init__(cast(ListenerContext, SimpleNamespace(broker=hand.broker)), ConnectionSlot())
        self.taken: list[bytes] = []
        self.kinds: list[type] = []
        self.hold_at = hold_at

    def _take(self, data: bytes | memoryview) -> None:
        self._decoder.feed(data)
        self.taken.append(bytes(data))
        self.kinds.append(type(data))
        if len(self.taken) == self.hold_at:
            self._hold()


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.reads = self.is_plain = True

    def can_write_eof(self) -> bool:
        return self.is_plain

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def attached(hold_at: int = 0) -> tuple[Any, Transport]:
    connection: Any = Recorded(hold_at)
    transport = connection._transport = Transport()
    return connection, transport


DATA = b"".join(bytes((number,)) * TURN_BYTES_MAX for number in range(4)) + b"rest"


def test_little_is_decided_at_once() -> None:
    connection, transport = attached()
    connection.data_received(DATA[:TURN_BYTES_MAX])
    assert connection.taken == [DATA[:TURN_BYTES_MAX]]
    assert transport.reads


def test_much_is_decided_in_turns_and_nothing_is_read_meanwhile() -> None:
    async def scenario() -> None:
        connection, transport = attached()
        connection.data_received(DATA)
        for turn in range(1, 5):
            assert (len(connection.taken), transport.reads) == (turn, False)
            await turns(1)
        assert transport.reads
        assert b"".join(connection.taken) == DATA

    asyncio.run(scenario())


def test_a_large_packet_is_decided_in_one_turn_whatever_stands_around_it() -> None:
    async def scenario() -> None:
        connection, transport = attached()
        connection._decoder = Decoder(Role.SERVER, version=ProtocolVersion.V311)
        small = encode(Publish("a", b"x" * 100), ProtocolVersion.V311) * (TURN_BYTES_MAX // 2 // 105)
        large = encode(Publish("a", b"x" * 200_000), ProtocolVersion.V311)
        data = small + large + small * 2
        connection.data_received(data[:150_000])
        assert (len(connection.taken), transport.reads) == (2, True)
        connection.data_received(data[150_000 : 150_000 + 20_000])
        assert (len(connection.taken), transport.reads) == (3, True)
        connection.data_received(data[150_000 + 20_000 :])
        assert not connection._decoder.missing_bytes
        assert (len(connection.taken), transport.reads) == (5, True)
        assert b"".join(connection.taken) == data

    asyncio.run(scenario())


def test_several_large_packets_are_decided_in_one_turn_and_each_is_copied_once() -> None:
    async def scenario() -> None:
        connection, transport = attached()
        connection._decoder = Decoder(Role.SERVER, version=ProtocolVersion.V311)
        large = [
            encode(Publish("a", bytes((number,)) * 65_536, 1, number), ProtocolVersion.V311)
            for number in (1, 2, 3)
        ]
        connection.data_received(b"".join(large) + large[0][:30_000])
        assert connection.taken == [*large, large[0][:30_000]]
        assert connection.kinds == [memoryview] * 4
        assert connection._decoder.missing_bytes == len(large[0]) - 30_000
        connection.data_received(large[0][30_000:] + large[1])
        assert connection.taken[4:] == [large[0][30_000:], large[1]]
        assert transport.reads and connection._decoder.error is None

    asyncio.run(scenario())


def test_small_packets_behind_large_ones_are_one_share_of_the_turn() -> None:
    async def scenario() -> None:
        connection, transport = attached()
        connection._decoder = Decoder(Role.SERVER, version=ProtocolVersion.V311)
        small = encode(Publish("a", b"x" * 100), ProtocolVersion.V311) * (TURN_BYTES_MAX * 3 // 105)
        large = encode(Publish("a", b"x" * 65_536), ProtocolVersion.V311)
        connection.data_received(large + small + large)
        assert (connection.taken[0], len(connection.taken[1])) == (large, TURN_BYTES_MAX)
        assert len(b"".join(connection.taken)) < len(large) + TURN_BYTES_MAX + 105
        assert not transport.reads
        await turns(4)
        assert b"".join(connection.taken) == large + small + large
        assert transport.reads

    asyncio.run(scenario())


def test_who_sends_more_than_a_read_takes_is_read_again_in_the_next_turn() -> None:
    """Large packets that are decided leave nothing, and uvloop would go on reading."""

    async def scenario() -> None:
        connection, transport = attached()
        connection._decoder = Decoder(Role.SERVER, version=ProtocolVersion.V311)
        large = encode(Publish("a", b"x" * 65_536), ProtocolVersion.V311) * 4
        data = large[:FULL_READ_BYTES]
        connection.data_received(data)
        assert (b"".join(connection.taken), transport.reads) == (data, False)
        await turns(1)
        assert transport.reads

    asyncio.run(scenario())


def test_behind_a_full_read_of_frames_others_have_a_turn() -> None:
    async def scenario() -> None:
        taken = list[bytes]()
        client: Any = SimpleNamespace(paused=False, data_received=taken.append)
        no_door = cast(ListenerContext, SimpleNamespace())
        connection = WebSocketConnection(no_door, WebSocketSettings(), lambda *_: client, ConnectionSlot())
        network: Any = Transport()
        network.is_closing, network.write = lambda: False, lambda _: None
        connection._network = network
        connection.data_received(upgrade_request())
        data = frame(BINARY, bytes(100_000)) * 3
        connection.data_received(data[:FULL_READ_BYTES])
        assert not network.reads
        await turns(1)
        assert network.reads
        connection.data_received(data[FULL_READ_BYTES:])
        assert network.reads and b"".join(taken) == bytes(300_000)

    asyncio.run(scenario())


def test_over_tls_what_comes_in_one_turn_is_decided_in_the_next_one() -> None:
    """A read cannot be stopped there, and comes up to 32 times a turn: others would wait for the packets of all."""

    async def scenario() -> None:
        connection, transport = attached()
        transport.is_plain = False
        connection._decoder = Decoder(Role.SERVER, version=ProtocolVersion.V311)
        large = encode(Publish("a", b"x" * 65_536), ProtocolVersion.V311)
        for _ in range(3):
            connection.data_received(large)
        assert connection.taken == []
        await turns(1)
        assert connection.taken == [large] * 3

    asyncio.run(scenario())


def test_who_is_held_goes_on_where_it_was() -> None:
    async def scenario() -> None:
        connection, transport = attached(hold_at=2)
        connection.data_received(DATA)
        await turns(10)
        assert (len(connection.taken), transport.reads) == (2, False)
        connection.read_on()
        await turns(10)
        assert b"".join(connection.taken) == DATA
        assert transport.reads

    asyncio.run(scenario())


def test_what_comes_all_the_same_waits_behind_it() -> None:
    async def scenario() -> None:
        connection, transport = attached()
        connection.data_received(DATA)
        connection.data_received(b"more")
        await turns(10)
        assert b"".join(connection.taken) == DATA + b"more"
        assert transport.reads

    asyncio.run(scenario())


def test_nothing_is_decided_after_the_end() -> None:
    async def scenario() -> None:
        connection, _ = attached()
        connection.data_received(DATA)
        connection.closing = True
        await turns(10)
        assert connection.taken == [DATA[:TURN_BYTES_MAX]]

    asyncio.run(scenario())


def test_what_was_read_before_the_end_counts() -> None:
    """A DISCONNECT may be the last of it: without it the will would go out."""

    async def scenario() -> None:
        connection, _ = attached()
        door = connection._door
        door.connections, door.empty = {connection}, asyncio.Event()
        door.admission = Admission(ClientSettings(), Counters())
        door.ticks = NoTicks()
        connection.data_received(DATA)
        connection.connection_lost(ConnectionResetError())
        assert b"".join(connection.taken) == DATA
        await turns(10)
        assert b"".join(connection.taken) == DATA

    asyncio.run(scenario())


def test_over_tls_much_more_is_read_ahead_but_not_without_end() -> None:
    """What is left in there when the client closes is lost."""

    async def scenario() -> None:
        connection, transport = attached()
        transport.is_plain = False
        connection.data_received(b"x" * (REST_BYTES_MAX - TURN_BYTES_MAX))
        connection.data_received(b"x" * TURN_BYTES_MAX)
        was_read = transport.reads
        connection.data_received(b"x")
        assert (was_read, transport.reads) == (True, False)
        await turns(REST_BYTES_MAX // TURN_BYTES_MAX + 2)
        assert transport.reads
        assert sum(map(len, connection.taken)) == REST_BYTES_MAX + 1

    asyncio.run(scenario())
