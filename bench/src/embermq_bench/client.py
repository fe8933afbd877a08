"""A black-box MQTT client on asyncio: connecting, framing, and what every role shares."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable, Iterable
from typing import cast

from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    Subscription,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.errors import ConnectionLostError, RefusedError
from embermq_bench.frames import frame_end
from embermq_bench.settings import Limits, Target
from embermq_bench.web_socket import WebSocket

REFUSED_FROM = 0x80
"""Reason codes from here on are refusals, in every version's SUBACK and in 5.0 everywhere."""


@functools.cache
def tls_context(ca: str) -> ssl.SSLContext:
    """One for all connections that trust this file."""
    return ssl.create_default_context(cafile=ca)


class BenchClient(asyncio.Protocol):
    """One connection. A role overrides `take_known` (its hot packets) and `take_packet` (everything else)."""

    def __init__(self, client_id: str, target: Target, limits: Limits) -> None:
        self.client_id = client_id
        self.target = target
        self.limits = limits
        self.receive_maximum = 65_535
        self.out: list[bytes] = []
        self.on_lost: Callable[[ConnectionLostError], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._decoder = self._make_decoder()
        self._rest = b""
        self._answer: asyncio.Future[Packet] | None = None
        self._closing = False
        self._gone: asyncio.Future[None] | None = None
        self._disconnect: Disconnect | None = None

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open; nothing of an earlier connection counts on it."""
        self._decoder = self._make_decoder()
        self._rest = b""
        self._closing = False
        self._disconnect = None
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are none by inheritance

    def data_received(self, data: bytes) -> None:
        """Handle all whole packets, keep the rest, write all answers in one piece."""
        if self._rest:
            data = self._rest + data
        position = 0
        try:
            while True:
                position = self.take_known(data, position)
                end = frame_end(data, position)
                if not end:
                    break
                self._take_slowly(data[position:end])
                position = end
        except ValueError as error:
            self._lose(ConnectionLostError(f"{self.client_id}: the broker sent {error}"))
            return
        self._rest = data[position:]
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report it, unless we closed ourselves."""
        self._transport = None
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        if self._closing:
            return
        said = f", it said 0x{self._disconnect.reason_code:02x}" if self._disconnect else ""
        self._lose(ConnectionLostError(f"{self.client_id}: the broker ended the connection{said}"))

    # roles override these

    def take_known(self, data: bytes, position: int) -> int:
        """Handle the packets of this role's hot layouts from `position` on; return where they end."""
        return position

    def take_packet(self, packet: Packet) -> None:
        """Handle a packet that is no answer to CONNECT or SUBSCRIBE."""

    # callers use these

    async def connect(self, *, clean_start: bool, expiry_s: int) -> Connack:
        """Open the connection and enter. Raises ConnectionLostError or RefusedError."""
        target = self.target
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                await self._open()
        except OSError as error:
            raise ConnectionLostError(f"{target.host}:{target.port} cannot be reached: {error}") from error
        v5 = target.version is ProtocolVersion.V5
        properties = Properties(session_expiry_interval=expiry_s) if v5 and expiry_s else None
        answer = await self._ask(
            Connect(
                self.client_id,
                target.version,
                clean_start,
                self.limits.keep_alive_s,
                target.username,
                target.password,
                None,
                properties,
            )
        )
        if not isinstance(answer, Connack) or answer.reason_code:
            code = f"0x{answer.reason_code:02x}" if isinstance(answer, Connack) else repr(answer)
            self.abort()
            raise RefusedError(f"{self.client_id}: CONNECT was answered with {code}")
        if answer.properties is not None and answer.properties.receive_maximum is not None:
            self.receive_maximum = answer.properties.receive_maximum
        return answer

    async def subscribe(self, topic_filter: str, qos: int, properties: Properties | None = None) -> None:
        """Subscribe and check that the QoS was granted. Raises ConnectionLostError or RefusedError."""
        answer = await self._ask(Subscribe(1, (Subscription(topic_filter, qos),), properties))
        if not isinstance(answer, Suback) or answer.reason_codes != (qos,):
            raise RefusedError(
                f"{self.client_id}: SUBSCRIBE {topic_filter} at QoS {qos} was answered {answer!r}"
            )

    def ping(self) -> None:
        """Send PINGREQ, so that the broker's keep-alive does not end an idle connection."""
        self.send(Pingreq())

    def send(self, packet: Packet) -> None:
        """Write one packet now."""
        if self._transport is not None:
            self._transport.write(encode(packet, self.target.version))

    def flush(self) -> None:
        """Write what handlers have put into `out`, in one piece."""
        out = self.out
        if out:
            if self._transport is not None:
                self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()

    def close(self) -> None:
        """Say DISCONNECT and close once it is written."""
        self._closing = True
        if self._transport is not None:
            self.send(Disconnect())
            self._transport.close()

    async def leave(self, *, cut_off: bool = False) -> None:
        """`close` (or `abort`) and see the connection end. Raises ConnectionLostError when that takes too long."""
        if self._transport is None:
            return
        self._gone = asyncio.get_running_loop().create_future()
        if cut_off:
            self.abort()
        else:
            self.close()
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                await self._gone
        except TimeoutError as error:
            self.abort()
            raise ConnectionLostError(
                f"{self.client_id}: the connection did not end within {self.limits.connect_timeout_s} s"
            ) from error

    def abort(self) -> None:
        """Drop the connection."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_open(self) -> bool:
        """Whether the connection stands."""
        return self._transport is not None

    async def _open(self) -> None:
        target = self.target
        loop = asyncio.get_running_loop()
        tls = tls_context(target.ca) if target.ca is not None else None
        if not target.web_socket:
            await loop.create_connection(lambda: self, target.host, target.port, ssl=tls)
            return
        place = f"{target.host}:{target.port}"
        _, web_socket = await loop.create_connection(
            lambda: WebSocket(self, place), target.host, target.port, ssl=tls
        )
        await web_socket.opened

    def _make_decoder(self) -> Decoder:
        return Decoder(
            Role.CLIENT, packet_bytes_max=self.limits.packet_bytes_max, version=self.target.version
        )

    async def _ask(self, packet: Packet) -> Packet:
        if self._transport is None:
            raise ConnectionLostError(f"{self.client_id}: the connection is gone")
        self._answer = asyncio.get_running_loop().create_future()
        self.send(packet)
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                return await self._answer
        except TimeoutError as error:
            self.abort()
            kind = type(packet).__name__.upper()
            raise ConnectionLostError(
                f"{self.client_id}: no answer to {kind} within {self.limits.connect_timeout_s} s"
            ) from error
        finally:
            self._answer = None

    def _take_slowly(self, frame: bytes) -> None:
        packets: Iterable[Packet] = self._decoder.feed(frame)
        for packet in packets:
            if isinstance(packet, Connack | Suback):
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(packet)
            elif isinstance(packet, Disconnect):
                self._disconnect = packet
            elif not isinstance(packet, Pingresp):
                self.take_packet(packet)
        if self._decoder.error is not None:
            raise ValueError(f"a bad packet: {self._decoder.error}")

    def _lose(self, error: ConnectionLostError) -> None:
        self.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        elif self.on_lost is not None:
            self.on_lost(error)
