"""A broker that breaks its promises on purpose, so that those who count are seen to notice."""

from __future__ import annotations

import asyncio
from types import TracebackType

import msgspec

from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode, puback, pubcomp, pubrec
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Packet,
    Publish,
    Pubrel,
    Suback,
    Subscribe,
)
from embermq.mqtt.wire.version import ProtocolVersion


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong with every `every`-th message (0: nothing)."""

    every: int = 0
    lose: bool = False
    double: bool = False
    swap: bool = False
    hang_up: bool = False
    connect_code: int = 0


class FaultyBroker:
    """MQTT 5 on a loopback port, one filter a subscriber, no sessions; acknowledges before it delivers."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.port = 0
        self.subscribers: dict[str, list[FaultyConnection]] = {}
        self._messages = 0
        self._held: Publish | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FaultyBroker:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FaultyConnection(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()

    def route(self, message: Publish) -> bool:
        """Deliver, unless it is this message's turn to suffer; False when the publisher is to be hung up on."""
        faults = self.faults
        self._messages += 1
        if not faults.every or self._messages % faults.every:
            self._deliver(message)
            held, self._held = self._held, None
            if held is not None:
                self._deliver(held)
        elif faults.double:
            self._deliver(message)
            self._deliver(message)
        elif faults.swap:
            self._held = message
        elif faults.hang_up:
            return False
        elif not faults.lose:
            self._deliver(message)
        return True

    def _deliver(self, message: Publish) -> None:
        for topic_filter, connections in self.subscribers.items():
            if topic_filter == message.topic or (
                topic_filter.endswith("/+") and message.topic.startswith(topic_filter[:-1])
            ):
                for connection in connections:
                    connection.deliver(message)


class FaultyConnection(asyncio.Protocol):
    """One client of it."""

    def __init__(self, broker: FaultyBroker) -> None:
        self._broker = broker
        self._decoder = Decoder(Role.SERVER, packet_bytes_max=1_000_000)
        self._transport: asyncio.WriteTransport | None = None
        self._packet_id = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        for packet in self._decoder.feed(data):
            self._handle(packet)

    def deliver(self, message: Publish) -> None:
        self._packet_id = self._packet_id % 65_535 + 1
        self._send(
            encode(Publish(message.topic, message.payload, message.qos, self._packet_id), ProtocolVersion.V5)
        )

    def _handle(self, packet: Packet) -> None:
        if isinstance(packet, Connect):
            self._send(encode(Connack(False, self._broker.faults.connect_code), ProtocolVersion.V5))
        elif isinstance(packet, Subscribe):
            (wanted,) = packet.subscriptions
            self._broker.subscribers.setdefault(wanted.topic_filter, []).append(self)
            self._send(encode(Suback(packet.packet_id, (wanted.qos,)), ProtocolVersion.V5))
        elif isinstance(packet, Publish):
            self._send((puback if packet.qos == 1 else pubrec)(packet.packet_id))
            if not self._broker.route(packet) and self._transport is not None:
                self._transport.close()
        elif isinstance(packet, Pubrel):
            self._send(pubcomp(packet.packet_id))

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
