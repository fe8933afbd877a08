"""A small asyncio MQTT client over the project's own codec: every packet can be seen, held back or sent by hand."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TypeVar, cast
from weakref import WeakSet

import uvloop
from tests.support.waiting import wait_for

from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode, puback, pubcomp, pubrec, pubrel
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

ANSWER_S = 60.0
RUN_S = 560.0
"""Less than the limit of a test, so that what it waits for is told."""
PACKET_BYTES_MAX = 268_435_460
Wanted = TypeVar("Wanted", bound=Packet)


class ConnectionEnded(ConnectionError):
    """The broker ended the connection, or it was killed; `disconnect` is what it said, if it did."""

    def __init__(self, text: str, disconnect: Disconnect | None = None) -> None:
        super().__init__(text)
        self.disconnect = disconnect


_OPEN: WeakSet[MqttClient] = WeakSet()


def run(scenario: Coroutine[None, None, None], deadline_s: float = RUN_S) -> None:
    """Run on an event loop of its own, with a deadline; connections that it left open are dropped.

    The loop itself watches the deadline: what a signal handler raises inside a callback would only be logged.
    """
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        runner.run(_run(scenario, deadline_s))
    finally:
        # A warning that is raised in there leaves the socket open, and the loop waits for it for ever.
        with warnings.catch_warnings(record=True) as left_open:
            warnings.simplefilter("always", ResourceWarning)
            runner.close()
        _OPEN.clear()  # what could not be dropped went with its loop, and is no concern of the next test
    assert not left_open, [str(warning.message) for warning in left_open]


async def _run(scenario: Coroutine[None, None, None], deadline_s: float) -> None:
    try:
        await asyncio.wait_for(scenario, deadline_s)
    finally:
        left = [client for client in _OPEN if client.is_open]
        for client in left:
            client.abort()
        await wait_for(
            lambda: not any(client.is_open for client in left), what="what was left open is closed"
        )


class MqttClient(asyncio.Protocol):
    """One connection.

    Incoming PUBLISHes are acknowledged unless `acknowledges` is False, PUBREL is answered in the same way. Every packet
    is seen by `on_packet` first. When `keeps` is True all are kept in `received`, PUBLISHes in `messages` as well.
    """

    def __init__(
        self,
        client_id: str,
        *,
        version: ProtocolVersion = ProtocolVersion.V5,
        acknowledges: bool = True,
        keeps: bool = True,
    ) -> None:
        self.client_id = client_id
        self.version = version
        self.acknowledges = acknowledges
        self.keeps = keeps
        self.received: list[Packet] = []
        self.messages: list[Publish] = []
        self.connack: Connack | None = None
        self.disconnect_received: Disconnect | None = None
        self.on_packet: Callable[[Packet], None] = lambda _packet: None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._decoder = Decoder(Role.CLIENT, packet_bytes_max=PACKET_BYTES_MAX, version=version)
        self._transport: asyncio.Transport | None = None
        self._waiting: list[tuple[Callable[[Packet], bool], asyncio.Future[Packet]]] = []
        self._last_id = 0
        self._out: list[bytes] = []
        self._has_said_all = False

    # Connecting

    async def connect(
        self,
        port: int,
        *,
        clean_start: bool = True,
        expiry_s: int = 0,
        keep_alive_s: int = 0,
        will: Will | None = None,
        username: str | None = None,
        password: bytes | None = None,
        properties: Properties | None = None,
    ) -> Connack:
        """Open and enter; `expiry_s` is for MQTT 5. A refusal is returned, not raised.

        Raises ConnectionEnded when the connection ends first, OSError when nobody listens.
        """
        await self.open(port)
        if properties is None and expiry_s and self.version is ProtocolVersion.V5:
            properties = Properties(session_expiry_interval=expiry_s)
        answer = self.expect(Connack)
        self.send(
            Connect(
                self.client_id, self.version, clean_start, keep_alive_s, username, password, will, properties
            )
        )
        self.connack = await answer
        return self.connack

    async def open(self, port: int) -> None:
        """Open the socket only."""
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.create_connection(lambda: self, "127.0.0.1", port), ANSWER_S)

    def close(self) -> None:
        """DISCONNECT and close: no will goes out."""
        if self._transport is not None:
            self.send(Disconnect())
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection as a broken network would."""
        if self._transport is not None:
            self._transport.abort()

    def half_close(self) -> None:
        """Say that nothing more comes, and go on listening. What is sent from now on goes nowhere."""
        if self._transport is not None and not self._transport.is_closing():
            self._flush()
            self._transport.write_eof()
            self._has_said_all = True

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def pause_reading(self) -> None:
        """Take nothing from the socket any more, as a client that hangs."""
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()

    # Speaking

    def send(self, packet: Packet) -> None:
        """Write one packet at the end of this turn of the event loop, together with what else was sent in it."""
        self.send_bytes(encode(packet, self.version))

    def send_bytes(self, data: bytes) -> None:
        """The same with bytes of any kind."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        if self._transport is not None and not (self._has_said_all or self._transport.is_closing()):
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def next_id(self) -> int:
        """Packet ids in turn; whoever has more than 65,534 in flight must choose for itself."""
        self._last_id = self._last_id % 65_535 + 1
        return self._last_id

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Publish and wait until the flow is complete; returns the first reason code (PUBACK's, PUBREC's)."""
        packet_id = self.next_id() if qos else 0
        packet = Publish(topic, payload, qos, packet_id, retain, False, properties)
        if not qos:
            self.send(packet)
            return 0
        if qos == 1:
            acknowledged = self.expect(Puback, packet_id)
            self.send(packet)
            return (await acknowledged).reason_code
        received = self.expect(Pubrec, packet_id)
        self.send(packet)
        code = (await received).reason_code
        if code < 0x80:
            completed = self.expect(Pubcomp, packet_id)
            self.send_bytes(pubrel(packet_id))
            await completed
        return code

    async def subscribe(
        self, *subscriptions: Subscription, properties: Properties | None = None
    ) -> Sequence[int]:
        """Subscribe; returns the reason codes."""
        packet_id = self.next_id()
        answer = self.expect(Suback, packet_id)
        self.send(Subscribe(packet_id, subscriptions, properties))
        return (await answer).reason_codes

    async def unsubscribe(self, *topic_filters: str) -> Sequence[int]:
        packet_id = self.next_id()
        answer = self.expect(Unsuback, packet_id)
        self.send(Unsubscribe(packet_id, topic_filters))
        return (await answer).reason_codes

    async def ping(self) -> None:
        """PINGREQ to PINGRESP: what the broker had written before has arrived then."""
        answer = self.expect(Pingresp)
        self.send(Pingreq())
        await answer

    # Listening

    def expect(self, kind: type[Wanted], packet_id: int | None = None) -> Awaitable[Wanted]:
        """The next packet of a kind, and with that id, that comes after this call; await it within `ANSWER_S`.

        Awaiting raises ConnectionEnded when the connection ends first, TimeoutError when the packet does not come.
        """
        future: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        if self.ended.done():
            future.set_exception(self._ended())
        else:
            self._waiting.append((partial(_is_wanted, kind, packet_id), future))
        return _within(cast("asyncio.Future[Wanted]", future))

    def _ended(self) -> ConnectionEnded:
        said = self.disconnect_received
        return ConnectionEnded(
            f"{self.client_id}: the connection ended" + (f", 0x{said.reason_code:02x}" if said else ""), said
        )

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _OPEN.add(self)

    def data_received(self, data: bytes) -> None:
        for packet in self._decoder.feed(data):
            self._take(packet)
        if self._decoder.error is not None:
            error, self._transport = self._decoder.error, None
            raise AssertionError(f"{self.client_id}: the broker sent a bad packet: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.ended.done():
            self.ended.set_result(None)
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(self._ended())

    def _take(self, packet: Packet) -> None:
        if self.keeps:
            self.received.append(packet)
        self.on_packet(packet)
        if isinstance(packet, Publish):
            if self.keeps:
                self.messages.append(packet)
            if self.acknowledges and packet.qos:
                self.send_bytes(puback(packet.packet_id) if packet.qos == 1 else pubrec(packet.packet_id))
        elif isinstance(packet, Pubrel):
            if self.acknowledges:
                self.send_bytes(pubcomp(packet.packet_id))
        elif isinstance(packet, Disconnect):
            self.disconnect_received = packet
        for waiting in self._waiting:
            if waiting[0](packet):
                self._waiting.remove(waiting)
                if not waiting[1].done():
                    waiting[1].set_result(packet)
                break


def _is_wanted(kind: type[object], packet_id: int | None, packet: Packet) -> bool:
    return isinstance(packet, kind) and (packet_id is None or getattr(packet, "packet_id", None) == packet_id)


async def _within(future: asyncio.Future[Wanted]) -> Wanted:
    return await asyncio.wait_for(future, ANSWER_S)
