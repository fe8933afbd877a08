"""A session that the broker keeps, with each message seen through to its end: for `sub --keep` and `pub --qos 2`.

The library underneath answers a message of QoS 2 before anybody has seen it, and begins a new session with each
connection. Here a message is answered when it was taken, and a lost connection is made anew on the same session, with
what was under way. The packets are those of `embermq`, which is there as this program is.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.errors import EncodeError
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_client.errors import (
    LASTING,
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    PublishRefused,
    SubscribeRefused,
    Unconfirmed,
)
from embermq_client.link import Options

READ_BYTES = 65_536
CONFIRM_S = 30.0
LAST_S = 5.0
"""For the end of exchanges that are under way when the session is left."""
PAUSE_S, PAUSE_S_MAX = 0.05, 5.0
PACKET_BYTES_MAX = 268_435_460
REFUSED_FROM = 0x80
LASTING_ENDS = LASTING | {0x8F, 0x90, 0x99, 0x9A, 0x9B, 0x9E, 0xA1, 0xA2}
"""Reason codes of DISCONNECT that what this client says has led to, and would again."""


class KeptSession:
    """`async with KeptSession(...)` connects, and raises ConnectFailed when that fails at first. `take` is called with
    each message and says whether it was taken; one that was not comes again to whoever enters next as `client_id`.
    """

    def __init__(
        self,
        options: Options,
        *,
        expiry_s: int,
        is_new: bool,
        take: Callable[[Publish], bool] = lambda _: False,
    ) -> None:
        self._options = options
        self._expiry_s = expiry_s
        self._is_new = is_new
        """Whether the first connection begins a session, and the end of the block ends it."""
        self._take = take
        self._writer: asyncio.StreamWriter | None = None
        self._is_up = asyncio.Event()
        self._news = asyncio.Event()
        self._seen: set[int] = set()
        """Packet ids of QoS 2 that were taken and that the broker has not released."""
        self._sent: dict[int, Publish] = {}
        """QoS 2 without an answer."""
        self._released: set[int] = set()
        """QoS 2 that the broker has, until it says that it has forgotten the packet id."""
        self._answers: dict[int, asyncio.Future[tuple[int, str]]] = {}
        self._limits = Properties()
        """What the broker has said in its last CONNACK."""
        self._spoke_at = 0.0
        self._running: asyncio.Task[None] | None = None
        self._filters: tuple[Subscription, ...] = ()
        self._renewal = 0
        """Packet id of the question for all filters again, 0 for none."""
        self._leaves = False

    async def __aenter__(self) -> Self:
        reader = await self._open(clean_start=self._is_new)
        self._running = asyncio.ensure_future(self._run(reader))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._running is not None
        self._leaves = True
        try:
            if self._writer is not None and not self._running.done():
                async with asyncio.timeout(LAST_S):
                    while self._seen and self._writer is not None:
                        self._news.clear()
                        await self._news.wait()
        except TimeoutError:
            pass  # the broker asks again when this client id comes again
        finally:
            self._running.cancel()
            await asyncio.wait((self._running,))
            if not self._running.cancelled():
                self._running.exception()  # whoever asked has been told, or nobody has
            if self._writer is not None:
                left = Properties(session_expiry_interval=0) if self._is_new else None
                self._send(Disconnect(0, left))
                self._writer.close()

    async def failed(self) -> None:
        """Returns never; raises ClientError when there will be no further connection."""
        assert self._running is not None
        await asyncio.shield(self._running)

    async def subscribe(self, filters: Sequence[str], *, qos: int, retain_handling: int) -> None:
        """Of the session, so it holds over all connections and longer. Raises SubscribeRefused, Unconfirmed."""
        self._filters = tuple(Subscription(each, qos, retain_handling=retain_handling) for each in filters)
        for each in self._filters:
            code, reason = await self._asked(lambda number, each=each: Subscribe(number, (each,)))  # type: ignore[misc]
            if code >= REFUSED_FROM:
                raise SubscribeRefused(each.topic_filter, code, reason)

    async def publish(
        self, topic: str, payload: bytes, properties: Properties | None, *, retain: bool
    ) -> None:
        """At QoS 2: when it returns the broker has it, once, over however many connections. Raises PublishRefused;
        Unconfirmed when that is not known; ValueError."""
        self._check_features(topic, retain=retain)
        packet_id = self._free_id()
        packet = Publish(topic, payload, 2, packet_id, retain, properties=properties)
        try:
            size = len(encode(packet, ProtocolVersion.V5))
        except EncodeError as error:
            raise ValueError(str(error)) from None
        packet_bytes_max = self._limits.maximum_packet_size or PACKET_BYTES_MAX
        if size > packet_bytes_max:
            told = f"{size} bytes, the broker takes {packet_bytes_max}"
            raise PublishRefused(topic, ReasonCode.PACKET_TOO_LARGE, told)
        self._sent[packet_id] = packet
        code, reason = await self._answered(packet_id, packet)
        if code >= REFUSED_FROM:
            raise PublishRefused(topic, code, reason)

    def _check_features(self, topic: str, *, retain: bool) -> None:
        """The broker would end the connection, and the next. Raises PublishRefused."""
        qos_max = self._limits.maximum_qos
        if qos_max is not None:
            raise PublishRefused(
                topic, ReasonCode.QOS_NOT_SUPPORTED, f"the broker takes QoS {qos_max} at most"
            )
        if retain and self._limits.retain_available is False:
            raise PublishRefused(topic, ReasonCode.RETAIN_NOT_SUPPORTED, "the broker retains nothing")

    async def _asked(self, packet: Callable[[int], Packet]) -> tuple[int, str]:
        """What the broker answers over this connection, or the next."""
        while True:
            packet_id = self._free_id()
            try:
                return await self._answered(packet_id, packet(packet_id))
            except ConnectionLost:
                continue

    async def _answered(self, packet_id: int, packet: Packet) -> tuple[int, str]:
        answer: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(CONFIRM_S):
                await self._connected()
                self._answers[packet_id] = answer
                self._send(packet)
                return await answer
        except TimeoutError:
            raise Unconfirmed(f"no confirmation in {CONFIRM_S:g} s") from None
        finally:
            self._answers.pop(packet_id, None)
            self._sent.pop(packet_id, None)

    async def _connected(self) -> None:
        assert self._running is not None
        while self._writer is None:
            up = asyncio.ensure_future(self._is_up.wait())
            try:
                await asyncio.wait((up, self._running), return_when=asyncio.FIRST_COMPLETED)
            finally:
                up.cancel()
            if self._running.done():
                self._running.result()

    def _free_id(self) -> int:
        return next(
            number
            for number in range(1, 65_536)
            if number not in self._answers
            and number not in self._sent
            and number not in self._released
            and number != self._renewal
        )

    async def _run(self, reader: asyncio.StreamReader) -> None:
        """Read, and connect anew whenever that ends. Raises ClientError when it would end the same way again."""
        now = asyncio.get_running_loop().time
        pause_s = PAUSE_S
        try:
            while True:
                began = now()
                try:
                    await self._read(reader)
                except ConnectionLost:
                    self._down()
                # A broker that ends connections as soon as they are made is left alone for longer and longer.
                pause_s = PAUSE_S if now() - began > PAUSE_S_MAX else min(pause_s * 2, PAUSE_S_MAX)
                reader = await self._again(pause_s)
        except Exception as error:  # of whoever takes messages, too
            self._down()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(error)
            raise

    async def _again(self, pause_s: float) -> asyncio.StreamReader:
        while True:
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
            try:
                return await self._open(clean_start=False)
            except ConnectFailed as error:
                if isinstance(error, ConnectRefused) and error.is_lasting:
                    raise

    async def _open(self, *, clean_start: bool) -> asyncio.StreamReader:
        """Connect and enter. Raises ConnectFailed, ConnectRefused."""
        options = self._options
        place = f"{options.host}:{options.port}"
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                reader, writer = await asyncio.open_connection(options.host, options.port, ssl=options.tls)
                try:
                    connack = await self._entered(reader, writer, clean_start=clean_start)
                except BaseException:
                    writer.close()
                    raise
        except TimeoutError:
            raise ConnectFailed(f"{place}: no answer in {options.connect_timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise ConnectFailed(f"{place}: certificate verify failed: {error.verify_message}") from error
        except ConnectionRefusedError as error:
            raise ConnectFailed(f"{place}: Connection refused") from error
        except (OSError, ConnectionLost) as error:
            raise ConnectFailed(f"{place}: {getattr(error, 'strerror', '') or error}") from error
        properties = connack.properties or Properties()
        if connack.reason_code >= REFUSED_FROM:
            writer.close()
            told = properties.reason_string or ""
            name = _name(connack.reason_code) + (f", {told}" if told else "")
            text = f"{place}: CONNECT was refused: {name}"
            raise ConnectRefused(text, connack.reason_code, told)
        self._limits = properties
        self._writer = writer
        self._go_on(is_there=connack.session_present)
        self._is_up.set()
        return reader

    async def _entered(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, clean_start: bool
    ) -> Connack:
        options = self._options
        password = None if options.password is None else options.password.encode()
        connect = Connect(
            options.client_id,
            ProtocolVersion.V5,
            clean_start,
            options.keepalive_s,
            options.username,
            password,
            properties=Properties(session_expiry_interval=self._expiry_s),
        )
        writer.write(encode(connect, ProtocolVersion.V5))
        self._spoke_at = asyncio.get_running_loop().time()
        self._decoder = Decoder(Role.CLIENT, packet_bytes_max=PACKET_BYTES_MAX, version=ProtocolVersion.V5)
        self._early: list[Packet] = []
        while True:
            data = await reader.read(READ_BYTES)
            packets = self._decoder.feed(data)
            if packets and isinstance(packets[0], Connack):
                self._early = packets[1:]
                return packets[0]
            if packets or not data or self._decoder.error is not None:
                raise ConnectionLost("the connection ended before CONNACK")

    def _go_on(self, *, is_there: bool) -> None:
        """With what was under way. Without its session nobody knows what became of it."""
        if not is_there:
            self._seen.clear()
            for packet_id, answer in self._answers.items():
                if packet_id not in self._sent or answer.done():
                    continue
                if packet_id in self._released:  # it had it before
                    answer.set_result((0, ""))
                else:
                    answer.set_exception(Unconfirmed("the broker has lost the session meanwhile"))
            self._released.clear()
            if self._filters:
                self._renewal = self._free_id()
                self._send(Subscribe(self._renewal, self._filters))
        for packet_id, packet in tuple(self._sent.items()):
            if packet_id in self._released:
                self._send(Pubrel(packet_id))
            elif packet_id in self._answers and not self._answers[packet_id].done():
                self._send(
                    Publish(
                        packet.topic, packet.payload, 2, packet_id, packet.retain, True, packet.properties
                    )
                )

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Raises ConnectionLost; ConnectFailed when another client has taken the client id, or the broker ends it for
        what this one says; SubscribeRefused when filters do not hold in a session that had to be made anew."""
        half_s = (self._limits.server_keep_alive or self._options.keepalive_s) / 2  # [MQTT-3.2.2-21]
        now = asyncio.get_running_loop().time
        heard_at = now()
        packets = self._early
        while True:
            for packet in packets:
                self._handle(packet)
            if self._decoder.error is not None:
                raise ConnectionLost(f"what came is no MQTT: {self._decoder.error}")
            packets = []
            try:
                async with asyncio.timeout(half_s):
                    data = await reader.read(READ_BYTES)
            except TimeoutError:
                if now() - heard_at > 3 * half_s:
                    raise ConnectionLost("the broker says nothing") from None
            except OSError as error:
                raise ConnectionLost(str(error)) from error
            else:
                if not data:
                    raise ConnectionLost("the connection ended")
                heard_at = now()
                packets = self._decoder.feed(data)
            if now() - self._spoke_at >= half_s:
                self._send(Pingreq())

    def _handle(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._receive(packet)
        elif isinstance(packet, Pubrel):
            self._seen.discard(packet.packet_id)
            self._send(Pubcomp(packet.packet_id))
        elif isinstance(packet, Pubrec):
            self._receive_pubrec(packet)
        elif isinstance(packet, Pubcomp):
            self._released.discard(packet.packet_id)
            self._answer(packet.packet_id, 0, None)
        elif isinstance(packet, Suback) and packet.packet_id == self._renewal:
            self._check_renewed(packet)
        elif isinstance(packet, Suback):
            self._answer(packet.packet_id, packet.reason_codes[0], packet.properties)
        elif isinstance(packet, Disconnect):
            if packet.reason_code == ReasonCode.SESSION_TAKEN_OVER:
                raise ConnectFailed(f"another client has entered as {self._options.client_id!r}")
            if packet.reason_code in LASTING_ENDS:
                told = (packet.properties and packet.properties.reason_string) or ""
                name = _name(packet.reason_code) + (f", {told}" if told else "")
                raise ConnectFailed(f"the broker has ended the connection: {name}")
            raise ConnectionLost(_name(packet.reason_code))
        self._news.set()

    def _receive(self, packet: Publish) -> None:
        """What was not taken is not answered, so it comes again to whoever enters next."""
        number = packet.packet_id
        if packet.qos == 2 and number in self._seen:
            self._send(Pubrec(number))
        elif not self._leaves and self._take(packet):
            if packet.qos == 1:
                self._send(Puback(number))
            elif packet.qos == 2:
                self._seen.add(number)
                self._send(Pubrec(number))

    def _check_renewed(self, packet: Suback) -> None:
        self._renewal = 0
        reason = (packet.properties and packet.properties.reason_string) or ""
        for each, code in zip(self._filters, packet.reason_codes, strict=False):
            if code >= REFUSED_FROM:
                raise SubscribeRefused(each.topic_filter, code, reason)

    def _receive_pubrec(self, packet: Pubrec) -> None:
        if packet.reason_code >= REFUSED_FROM:
            self._answer(packet.packet_id, packet.reason_code, packet.properties)
            return
        self._released.add(packet.packet_id)
        self._send(Pubrel(packet.packet_id))

    def _answer(self, packet_id: int, code: int, properties: Properties | None) -> None:
        answer = self._answers.get(packet_id)
        if answer is not None and not answer.done():
            answer.set_result((code, (properties and properties.reason_string) or ""))

    def _send(self, packet: Packet) -> None:
        if self._writer is not None:
            self._spoke_at = asyncio.get_running_loop().time()
            self._writer.write(encode(packet, ProtocolVersion.V5))

    def _down(self) -> None:
        """The connection is gone. Questions that may be asked anew are; a publish goes on over the next one."""
        self._is_up.clear()
        self._renewal = 0
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for packet_id, answer in self._answers.items():
            if packet_id not in self._sent and not answer.done():
                answer.set_exception(ConnectionLost("the connection ended before the answer came"))
        self._news.set()


def _name(code: int) -> str:
    """Of a reason code, as people read it."""
    try:
        return f"{ReasonCode(code).name.replace('_', ' ').capitalize()} (0x{code:02x})"
    except ValueError:
        return f"0x{code:02x}"
