"""One connection to the broker: paho's protocol on this event loop. When it ends, `client` makes another."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from embermq_client.errors import ConnectFailed, ConnectionLost, ConnectRefused

TAKEN_OVER = 0x8E
PACKET_TOO_LARGE = 0x95
REFUSED_FROM = 0x80
MISC_S = 1.0
RECEIVE_MAXIMUM = 65_535
"""What a broker may have under way that does not say otherwise [MQTT-3.2.2.3.3]."""
PACKET_BYTES_MAX = 268_435_460
"""What MQTT can say [MQTT-1.5.5]."""
TEXT_BYTES_MAX = 65_535
OUTSTANDING_MAX = 1_000
"""Publishes that wait for their PUBACK; one more waits for its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to reach the broker and enter."""

    host: str
    port: int
    client_id: str
    username: str | None
    password: str | None = field(repr=False)
    tls: ssl.SSLContext | None
    keepalive_s: int
    connect_timeout_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Reason code and reason string of a PUBACK, SUBACK or UNSUBACK."""

    code: int
    reason: str

    @property
    def is_refusal(self) -> bool:
        """Whether the broker says no."""
        return self.code >= REFUSED_FROM


class Link:
    """`on_message` gets each PUBLISH, `on_lost` the error when an open link ends by itself."""

    def __init__(
        self,
        options: Options,
        on_message: Callable[[mqtt.MQTTMessage], None],
        on_lost: Callable[[Link, Exception], None],
    ) -> None:
        self._options = options
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._entered: asyncio.Future[None] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._room = asyncio.Semaphore(OUTSTANDING_MAX)
        self._outstanding: set[int] = set()
        """Publishes without a PUBACK. Who waits for it may leave earlier, and the broker counts it all the same."""
        self._packet_max = PACKET_BYTES_MAX
        self.has_identifiers = True
        """Whether the broker tells which subscription a message is for."""
        self._misc: asyncio.TimerHandle | None = None
        self._writing = False
        self.is_open = False
        self._over = False
        self._paho = self._make_paho()

    async def open(self) -> None:
        """Connect and enter. Raises ConnectFailed, ConnectRefused."""
        options = self._options
        connecting = self._loop.run_in_executor(
            None,
            partial(self._paho.connect, options.host, options.port, options.keepalive_s, clean_start=True),
        )
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                await asyncio.shield(connecting)
                await self._entered
            if self._over:  # between the two
                raise ConnectFailed(f"{self._place}: the connection ended as soon as it was made")
        except BaseException as error:
            self._over = True
            self._entered.cancel()
            connecting.add_done_callback(self._give_up)
            if isinstance(error, TimeoutError):
                raise ConnectFailed(f"{self._place}: no answer in {options.connect_timeout_s:g} s") from None
            if isinstance(error, OSError | ValueError):
                raise ConnectFailed(f"{self._place}: {error}") from error
            raise
        self.is_open = True
        self._look_after()

    async def publish(
        self,
        topic: str,
        payload: bytes,
        properties: Properties | None,
        *,
        qos: int = 1,
        retain: bool = False,
    ) -> Answer:
        """At QoS 1 returns what the PUBACK says, or why it need not be sent; at QoS 0, as soon as it is on its way.
        Raises ConnectionLost."""
        size = _size(topic, payload, properties)
        if size > self._packet_max:  # the broker would end the connection, and the next, and the next
            return Answer(PACKET_TOO_LARGE, f"{size} bytes, the broker takes {self._packet_max}")
        if not qos:
            self._check_open()
            self._paho.publish(topic, payload, qos=0, retain=retain, properties=properties)
            return Answer(0, "")
        await self._room.acquire()
        try:
            self._check_open()
            info = self._paho.publish(topic, payload, qos=1, retain=retain, properties=properties)
        except BaseException:
            self._room.release()
            raise
        self._outstanding.add(info.mid)
        return await self._answer(info.mid)

    async def subscribe(self, topic_filter: str, properties: Properties | None, *, qos: int = 1) -> Answer:
        """Returns what the SUBACK says. Raises ConnectionLost."""
        self._check_open()
        _, mid = self._paho.subscribe(topic_filter, options=SubscribeOptions(qos=qos), properties=properties)
        return await self._answer(mid)

    async def unsubscribe(self, topic_filter: str) -> Answer:
        """Returns what the UNSUBACK says. Raises ConnectionLost."""
        self._check_open()
        _, mid = self._paho.unsubscribe(topic_filter)
        return await self._answer(mid)

    def leave(self, topic_filter: str) -> None:
        """Unsubscribe without waiting for the answer."""
        if self.is_open:
            self._paho.unsubscribe(topic_filter)

    def close(self) -> None:
        """Say DISCONNECT, if the broker reads, and close."""
        self.is_open = False
        self._end(ConnectionLost("the client was closed"))

    @property
    def _place(self) -> str:
        return f"{self._options.host}:{self._options.port}"

    def _make_paho(self) -> mqtt.Client:
        options = self._options
        paho = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=options.client_id,
            protocol=mqtt.MQTTv5,
            reconnect_on_failure=False,
        )
        if options.username is not None:
            paho.username_pw_set(options.username, options.password)
        if options.tls is not None:
            paho.tls_set_context(options.tls)
        paho.connect_timeout = options.connect_timeout_s
        paho.max_inflight_messages = 0  # the limit is ours: see `_room`
        paho.on_socket_open = lambda client, userdata, sock: self._here(self._watch, sock)
        paho.on_socket_close = lambda client, userdata, sock: self._here(self._unwatch, sock)
        paho.on_socket_register_write = lambda client, userdata, sock: self._here(self._write_soon, sock)
        paho.on_socket_unregister_write = lambda client, userdata, sock: self._here(self._written, sock)
        paho.on_connect = self._take_connack
        paho.on_disconnect = self._take_end
        paho.on_publish = self._take_answer
        paho.on_subscribe = self._take_answers
        paho.on_unsubscribe = self._take_answers
        paho.on_message = lambda client, userdata, message: self._on_message(message)
        return paho

    def _check_open(self) -> None:
        if not self.is_open:
            raise ConnectionLost("the connection is gone")

    def _answer(self, mid: int | None) -> Awaitable[Answer]:
        answer: asyncio.Future[Answer] = self._loop.create_future()
        if mid is None or not self.is_open:
            answer.set_exception(ConnectionLost("the connection ended while it was written to"))
        else:
            self._waiting[mid] = answer
        return answer

    # paho calls these: while it connects from its thread, later from the loop's.

    def _here(self, step: Callable[[socket.socket], None], sock: Any) -> None:
        if threading.get_ident() == self._thread:
            step(sock)
        else:
            self._loop.call_soon_threadsafe(step, sock)

    def _watch(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self._loop.add_reader(sock.fileno(), self._read)

    def _unwatch(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())
        self._writing = False

    def _write_soon(self, sock: socket.socket) -> None:
        if not self._writing and sock.fileno() >= 0:
            self._writing = True
            self._loop.add_writer(sock.fileno(), self._paho.loop_write)

    def _written(self, sock: socket.socket) -> None:
        self._writing = False
        if sock.fileno() >= 0:
            self._loop.remove_writer(sock.fileno())

    def _read(self) -> None:
        self._paho.loop_read()
        sock = self._paho.socket()
        while isinstance(sock, ssl.SSLSocket) and sock.pending():
            self._paho.loop_read()
            sock = self._paho.socket()

    def _take_connack(
        self, client: object, userdata: object, flags: object, code: ReasonCode, properties: Properties | None
    ) -> None:
        if self._entered.done():
            return
        if code.value >= REFUSED_FROM:
            text = f"{self._place}: CONNECT was refused: {reason_of(code, properties)}"
            told = getattr(properties, "ReasonString", "")
            self._entered.set_exception(ConnectRefused(text, code.value, told))
            return
        allowed = getattr(properties, "ReceiveMaximum", RECEIVE_MAXIMUM)
        self._room = asyncio.Semaphore(min(allowed, OUTSTANDING_MAX))
        self._packet_max = getattr(properties, "MaximumPacketSize", PACKET_BYTES_MAX)
        self.has_identifiers = getattr(properties, "SubscriptionIdentifierAvailable", 1) == 1
        self._entered.set_result(None)

    def _take_end(
        self, client: object, userdata: object, flags: object, code: ReasonCode, properties: Properties | None
    ) -> None:
        """paho holds a lock while it tells of this, and may still use the socket."""
        error: Exception
        if code.value == TAKEN_OVER:
            error = ConnectFailed(f"another client has entered as {self._options.client_id!r}")
        else:
            error = ConnectionLost(f"{self._place}: the connection ended: {reason_of(code, properties)}")
        self._loop.call_soon_threadsafe(self._end, error)

    def _take_answer(
        self, client: object, userdata: object, mid: int, code: ReasonCode, properties: Properties | None
    ) -> None:
        self._release(mid)
        waiting = self._waiting.pop(mid, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(Answer(code.value, getattr(properties, "ReasonString", "")))

    def _release(self, mid: int) -> None:
        if mid in self._outstanding:
            self._outstanding.discard(mid)
            self._room.release()

    def _take_answers(
        self,
        client: object,
        userdata: object,
        mid: int,
        codes: list[ReasonCode],
        properties: Properties | None,
    ) -> None:
        for code in codes[:1]:  # each of our packets asks for one thing
            self._take_answer(client, userdata, mid, code, properties)

    def _look_after(self) -> None:
        if not self._over:
            self._misc = self._loop.call_later(MISC_S, self._look_after)
            self._paho.loop_misc()

    def _end(self, error: Exception) -> None:
        """Once: whoever waits hears of it."""
        if not self._entered.done():
            self._entered.set_exception(ConnectFailed(str(error)))
        if self._over:
            return
        self._over = True
        was_open, self.is_open = self.is_open, False
        self._drop()
        for mid in tuple(self._outstanding):
            self._release(mid)  # who waits for room hears of it too
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(
                    error if isinstance(error, ConnectionLost) else ConnectionLost(str(error))
                )
        if was_open:
            self._on_lost(self, error)

    def _give_up(self, connecting: asyncio.Future[Any]) -> None:
        """Nobody waits for the connection any more, but its thread may have made one."""
        if not connecting.cancelled() and connecting.exception() is None:
            self._drop()

    def _drop(self) -> None:
        """Write what can be written now, a DISCONNECT last, and close the socket."""
        if self._misc is not None:
            self._misc.cancel()
        if self._paho.socket() is None:
            return
        self._paho.disconnect()
        self._paho.loop_write()
        sock = self._paho.socket()
        if isinstance(sock, socket.socket):  # it did not take all
            self._unwatch(sock)
            sock.close()


def reason_of(code: ReasonCode, properties: Properties | None) -> str:
    """Name and code of a reason, and the broker's text when it gave one."""
    text = getattr(properties, "ReasonString", "")
    return f"{code.getName()} (0x{code.value:02x}){f', {text}' if text else ''}"


def properties_of(
    packet: int, user_properties: tuple[tuple[str, str], ...], **others: str | int | bytes
) -> Properties:
    """Properties of a PUBLISH or SUBSCRIBE (`PacketTypes`); `others` by paho's names. Raises ValueError for texts that
    MQTT does not have: the broker would end the connection."""
    properties = Properties(packet)  # type: ignore[no-untyped-call]
    for name, text in user_properties:
        check_text(f"user property {name[:80]!r}", name)
        check_text(f"user property {name[:80]!r}", text)
    for name, value in others.items():
        setattr(properties, name, value)
    if user_properties:
        properties.UserProperty = list(user_properties)
    return properties


def check_text(what: str, text: str) -> None:
    """Raise ValueError for what is no text of MQTT [MQTT-1.5.4-1] [MQTT-1.5.4-2]."""
    size = len(text.encode())
    if "\0" in text or size > TEXT_BYTES_MAX:
        raise ValueError(f"{what}: has U+0000, or {size} bytes where {TEXT_BYTES_MAX} may be")


def _size(topic: str, payload: bytes, properties: Properties | None) -> int:
    """Of a PUBLISH at QoS 1, the longest one: topic, packet id, properties, payload, fixed header."""
    more = len(properties.pack()) if properties is not None else 1  # type: ignore[no-untyped-call]
    rest = 2 + len(topic.encode()) + 2 + more + len(payload)
    return 2 + sum(rest >= 1 << bits for bits in (7, 14, 21)) + rest


PUBLISH = PacketTypes.PUBLISH
SUBSCRIBE = PacketTypes.SUBSCRIBE
