"""Clients that keep their side of MQTT over any number of broken connections, and what they saw.

A publisher keeps every flow until it is complete and resends in order, with DUP and the same packet ids; a subscriber
keeps the packet ids of QoS 2 messages until their PUBREL. So whatever is lost, doubled or swapped was it by the broker.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from random import Random

import msgspec
from tests.support.mqtt_client import ConnectionEnded, MqttClient

from embermq.mqtt.wire.encoder import encode, puback, pubcomp, pubrec, pubrel
from embermq.mqtt.wire.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

KEPT_S = 3_600
RETRY_S = 0.02
FIRST_ERROR = 0x80
PACKET_IDS = 65_535
PAYLOAD_BYTES_MAX = 200
LARGE_BYTES_MAX = 150_000
LAPSE_S = 0.05

Key = tuple[str, int]
"""A message of a run: its topic, and its number within the topic."""


def payload_of(number: int, size: int) -> bytes:
    return b"%d:" % number + b"." * size


def number_of(payload: bytes) -> int:
    return int(payload.partition(b":")[0])


class Place:
    """Where the broker listens; the same for all clients of a run."""

    def __init__(self, port: int) -> None:
        self.port = port


class ReturningClient:
    """Enters again and again, always into the same session, until it is told to stop."""

    def __init__(self, place: Place, client_id: str, version: ProtocolVersion) -> None:
        self.place = place
        self.client_id = client_id
        self.version = version
        self.receive_maximum: int | None = None
        self.username: str | None = None
        self.password: bytes | None = None
        self.client: MqttClient | None = None
        self.connections = 0
        self.stopping = False
        self.failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name=self.client_id)

    async def stop(self) -> None:
        """Leave; raises what went wrong inside."""
        self.stopping = True
        if self.client is not None:
            self.client.abort()
        if self._task is not None:
            await asyncio.wait_for(self._task, 30)

    def come_back(self) -> None:
        """After a stop."""
        self.stopping = False
        self.start()

    def check(self) -> None:
        """Raise what went wrong so far."""
        if self.failure is not None:
            raise AssertionError(f"{self.client_id}: {self.failure!r}") from self.failure
        if self._task is not None and self._task.done() and not self.stopping:
            self._task.result()
            raise AssertionError(f"{self.client_id} ended early")

    async def _live(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        # wait_for of Python 3.11 forgets that it was cancelled when what it waits for ends at that moment.
        while not self.stopping and not task.cancelling():
            client = MqttClient(self.client_id, version=self.version, acknowledges=False, keeps=False)
            client.on_packet = partial(self._take_watched, client)
            with suppress(ConnectionEnded, OSError, TimeoutError):
                await self._enter(client)
                if not self.stopping:
                    await client.ended
            client.abort()
            self.client = None
            if not self.stopping:
                await asyncio.sleep(RETRY_S)

    def _take_watched(self, client: MqttClient, packet: Packet) -> None:
        """An assertion that fails inside a protocol callback would only be logged."""
        try:
            self.take(client, packet)
        except (AssertionError, KeyError, IndexError) as error:
            self.failure = self.failure or error
            raise

    async def _enter(self, client: MqttClient) -> None:
        v5 = self.version is ProtocolVersion.V5
        properties = (
            Properties(session_expiry_interval=KEPT_S, receive_maximum=self.receive_maximum) if v5 else None
        )
        connack = await client.connect(
            self.place.port,
            clean_start=False,
            properties=properties,
            username=self.username,
            password=self.password,
        )
        if connack.reason_code:
            raise ConnectionEnded(f"CONNECT was refused with 0x{connack.reason_code:02x}")
        if self.connections:
            assert connack.session_present, f"{self.client_id}: the session is lost"
        self.connections += 1
        self.client = client
        await self.entered(client, connack.properties)

    async def entered(self, client: MqttClient, properties: Properties | None) -> None:
        """CONNACK has come."""
        raise NotImplementedError

    def take(self, client: MqttClient, packet: Packet) -> None:
        """Any packet has come."""
        raise NotImplementedError


class Flow(msgspec.Struct):
    """One QoS 1 or 2 message on its way to the broker."""

    key: Key
    packet_id: int
    released: bool = False


class Publisher(ReturningClient):
    """Keeps `window` messages in flight, on topics in turn, as long as it has an `allowance`."""

    def __init__(
        self,
        place: Place,
        client_id: str,
        version: ProtocolVersion,
        *,
        qos: int,
        topics: Iterable[str],
        window: int = 100,
    ) -> None:
        super().__init__(place, client_id, version)
        self.qos = qos
        self.topics = list(topics)
        self.window = window
        self.large_every = 0
        """When > 0: one message in so many is large."""
        self.lapses_s = 0.0
        """When > 0: after up to so long the connection ends, in one way or another."""
        self.random = Random(client_id)
        self.retain_rounds = 0
        """When > 0: messages are retained, and after so many of them each topic is left for a new one."""
        self.allowance = 0
        """How many new messages may still be sent."""
        self.finishing = False
        self.sent: dict[str, int] = dict.fromkeys(self.topics, 0)
        self.acknowledged: set[Key] = set()
        self.refused: list[tuple[Key, int]] = []
        self._flows: dict[int, Flow] = {}
        self._expected: deque[int] = deque()
        self._last_id = 0
        self._turn = 0
        self._others: set[asyncio.Task[None]] = set()

    @property
    def is_done(self) -> bool:
        return self.finishing and not self._flows

    @property
    def in_flight(self) -> int:
        return len(self._flows)

    def allow(self, messages: int) -> None:
        """Send so many more, at full speed."""
        self.allowance += messages
        if self.client is not None:
            self._fill(self.client)

    def finish(self) -> None:
        """Send nothing new; what is in flight is brought to its end."""
        self.finishing = True

    async def entered(self, client: MqttClient, properties: Properties | None) -> None:
        self._expected.clear()
        for flow in self._flows.values():
            if flow.released:
                client.send_bytes(pubrel(flow.packet_id))
            else:
                self._send(client, flow, dup=True)
        self._fill(client)
        if self.lapses_s and not self.stopping:
            lapse = self.random.choice((client.abort, client.half_close, self._open_another))
            asyncio.get_running_loop().call_later(self.random.uniform(0, self.lapses_s), lapse)

    def _open_another(self) -> None:
        """The session is taken over: the task that lives on the present connection sees its end, and enters itself."""
        other = MqttClient(self.client_id, version=self.version, acknowledges=False, keeps=False)
        self._others.add(asyncio.create_task(self._enter_and_leave(other)))

    async def _enter_and_leave(self, other: MqttClient) -> None:
        with suppress(ConnectionEnded, OSError, TimeoutError):
            properties = (
                Properties(session_expiry_interval=KEPT_S) if self.version is ProtocolVersion.V5 else None
            )
            await other.connect(self.place.port, clean_start=False, properties=properties)
        other.abort()

    def _fill(self, client: MqttClient) -> None:
        while self.allowance and not self.finishing and len(self._flows) < self.window:
            self.allowance -= 1
            self._send(client, self._next_flow(), dup=False)

    def _next_flow(self) -> Flow:
        self._turn = (self._turn + 1) % len(self.topics)
        topic = self.topics[self._turn]
        number = self.sent[topic]
        if self.retain_rounds and number == self.retain_rounds:
            base, _, generation = topic.rpartition("-")
            topic = self.topics[self._turn] = f"{base}-{int(generation) + 1}"
            number = self.sent[topic] = 0
        self.sent[topic] = number + 1
        self._last_id = self._last_id % PACKET_IDS + 1
        while self._last_id in self._flows:
            self._last_id = self._last_id % PACKET_IDS + 1
        flow = Flow((topic, number), self._last_id)
        self._flows[flow.packet_id] = flow
        return flow

    def _send(self, client: MqttClient, flow: Flow, *, dup: bool) -> None:
        topic, number = flow.key
        is_large = self.large_every and number % self.large_every == 1
        payload = payload_of(number, number * 37 % (LARGE_BYTES_MAX if is_large else PAYLOAD_BYTES_MAX))
        packet = Publish(topic, payload, self.qos, flow.packet_id, self.retain_rounds > 0, dup)
        self._expected.append(flow.packet_id)
        client.send_bytes(encode(packet, self.version))

    def take(self, client: MqttClient, packet: Packet) -> None:
        if isinstance(packet, Puback | Pubrec):
            assert self._expected.popleft() == packet.packet_id, (
                f"{self.client_id}: acknowledged out of order"
            )
            flow = self._flows[packet.packet_id]
            if packet.reason_code >= FIRST_ERROR:
                self.refused.append((flow.key, packet.reason_code))
                del self._flows[packet.packet_id]
            else:
                self.acknowledged.add(flow.key)
                if isinstance(packet, Pubrec):
                    flow.released = True
                    client.send_bytes(pubrel(packet.packet_id))
                else:
                    del self._flows[packet.packet_id]
        elif isinstance(packet, Pubcomp):
            if packet.reason_code not in (0, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND):
                raise AssertionError(f"{self.client_id}: PUBCOMP with 0x{packet.reason_code:02x}")
            del self._flows[packet.packet_id]
        else:
            return
        if 2 * len(self._flows) <= self.window:
            self._fill(client)


class Subscriber(ReturningClient):
    """Takes everything, acknowledges at once or, with `slow_s`, later; leaves at random times when `restless_s` says
    how long it stays. A packet id that is in use and comes with another message is a failure."""

    def __init__(
        self, place: Place, client_id: str, version: ProtocolVersion, *, topic_filter: str, random: Random
    ) -> None:
        super().__init__(place, client_id, version)
        self.topic_filter = topic_filter
        self.restless_s = 0.0
        self.sleepy_s = 0.0
        """When > 0: now and then it reads nothing for up to so long."""
        self.subscribed = asyncio.Event()
        self.seen: dict[Key, int] = defaultdict(int)
        """How often each message was handed over to the application."""
        self.swapped: list[tuple[Key, int]] = []
        """First deliveries that came after one with a higher number (the second value) of their topic."""
        self.qos2_doubled: list[Key] = []
        self.last_at = 0.0
        self._highest: dict[str, int] = {}
        self.slow_s = 0.0
        """When > 0: up to so long passes between two times at which it acknowledges."""
        self._receiving: dict[int, Key] = {}
        self._unanswered: dict[int, Key] = {}
        """On the present connection."""
        self._answers: list[bytes] = []
        self._connection: MqttClient | None = None
        self._random = random

    def wants(self, topic: str) -> bool:
        """Its filter is a prefix and `#`."""
        return topic.startswith(self.topic_filter.removesuffix("#"))

    async def entered(self, client: MqttClient, properties: Properties | None) -> None:
        if not self.subscribed.is_set():
            codes = await client.subscribe(Subscription(self.topic_filter, 2))
            assert list(codes) == [2]
            self.subscribed.set()
        if self.restless_s and not self.stopping:
            stay_s = self._random.uniform(0, self.restless_s)
            leave = client.abort if self._random.random() < 0.7 else client.close
            asyncio.get_running_loop().call_later(stay_s, leave)
        if self.sleepy_s:
            self._fall_asleep(client)

    def _fall_asleep(self, client: MqttClient) -> None:
        if client.is_open and self.sleepy_s:
            client.pause_reading()
            self._later(self._wake_up, client)

    def _wake_up(self, client: MqttClient) -> None:
        if client.is_open:
            client.resume_reading()
            self._later(self._fall_asleep, client)

    def _later(self, call: Callable[[MqttClient], None], client: MqttClient) -> None:
        asyncio.get_running_loop().call_later(self._random.uniform(0, self.sleepy_s), call, client)

    def take(self, client: MqttClient, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self.last_at = asyncio.get_running_loop().time()
            self._watch_id(client, packet)
            if packet.qos == 2:
                if packet.packet_id not in self._receiving:
                    self._receiving[packet.packet_id] = (packet.topic, number_of(packet.payload))
                    self._hand_over(packet)
                answer = pubrec(packet.packet_id)
            else:
                self._hand_over(packet)
                answer = puback(packet.packet_id)
            self._answer(client, answer)
        elif isinstance(packet, Pubrel):
            self._receiving.pop(packet.packet_id, None)
            client.send_bytes(pubcomp(packet.packet_id))

    def _watch_id(self, client: MqttClient, packet: Publish) -> None:
        """QoS 2 keeps a packet id over connections; what is QoS 1 and was never stored may come again with another
        one when the broker was killed [MQTT-2.2.1-3]."""
        if client is not self._connection:
            self._connection = client
            self._unanswered.clear()
            self._answers.clear()
        key = (packet.topic, number_of(packet.payload))
        for used in (self._receiving, self._unanswered):
            assert used.get(packet.packet_id, key) == key, (
                f"{self.client_id}: packet id {packet.packet_id} is that of {used[packet.packet_id]}, "
                f"and comes with {key}, QoS {packet.qos}"
            )
        self._unanswered[packet.packet_id] = key

    def _answer(self, client: MqttClient, answer: bytes) -> None:
        if not self._answers:
            if self.slow_s:
                pause_s = self._random.uniform(0, self.slow_s)
                asyncio.get_running_loop().call_later(pause_s, self._acknowledge, client)
            else:
                asyncio.get_running_loop().call_soon(self._acknowledge, client)
        self._answers.append(answer)

    def _acknowledge(self, client: MqttClient) -> None:
        if client is self._connection and client.is_open:
            for answer in self._answers:
                client.send_bytes(answer)
            self._answers.clear()
            self._unanswered.clear()

    def _hand_over(self, packet: Publish) -> None:
        key = (packet.topic, number_of(packet.payload))
        self.seen[key] += 1
        if self.seen[key] > 1:
            if packet.qos == 2:
                self.qos2_doubled.append(key)
            return
        highest = self._highest.get(packet.topic, -1)
        if key[1] < highest:
            self.swapped.append((key, highest))
        else:
            self._highest[packet.topic] = key[1]
