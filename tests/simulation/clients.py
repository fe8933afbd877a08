"""MQTT clients of the simulation: what they send is by chance, how they answer and repeat is as the standard has it.

They keep what a client has to keep of its session over connections, and tell the `Oracle` what they saw.
"""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct
from tests.simulation.loop import Process, Transport, connect

from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
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
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

if TYPE_CHECKING:
    from tests.simulation.oracle import Oracle
    from tests.simulation.world import World

V5 = ProtocolVersion.V5
IN_FLIGHT_MAX = 8
DAY_S = 86_400
CONNECT_S = 8.0
"""A client that has no CONNACK by then tries again."""


class Broken(AssertionError):
    """A promise was not kept."""


class Sent(Struct):
    """A PUBLISH that is not over. `is_received`: PUBREC came."""

    packet: Publish
    sent_s: float
    is_received: bool = False


class Line(asyncio.Protocol):
    """One connection of a client, which may have begun another one meanwhile."""

    def __init__(self, client: SimulatedClient, transport: Transport) -> None:
        self._client = client
        self._transport = transport
        self._decoder = Decoder(Role.CLIENT, packet_bytes_max=1_000_000, version=V5)

    def data_received(self, data: bytes) -> None:
        for packet in self._decoder.feed(data):
            if self._client.transport is self._transport:
                self._client.take(packet)
        if self._decoder.error is not None:
            raise Broken(f"{self._client.name} is sent what is not MQTT: {self._decoder.error}")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost(self._transport)


class SimulatedClient:
    """Connects to one of the nodes, again and again, with one session that is kept."""

    def __init__(
        self,
        name: str,
        world: World,
        oracle: Oracle,
        *,
        filters: tuple[tuple[str, int], ...] = (),
        wishes: tuple[tuple[str, str], ...] = (),
        has_will: bool = False,
        is_kept: bool = True,
    ) -> None:
        self.name = name
        self.world = world
        self.oracle = oracle
        self.random: Random = world.random
        self.filters = filters
        self.wishes = wishes
        """User properties of its SUBSCRIBEs."""
        self.has_will = has_will
        self.is_kept = is_kept
        """Whether its session outlives a connection."""
        self.transport: Transport | None = None
        self.is_open = False
        """Whether CONNACK has come."""
        self._process: Process | None = None
        """Where it has connected to."""
        self.connects = 0
        self.entered = 0
        """Connections that got as far."""
        self.asks = 0
        """CONNECTs that may have reached a broker."""
        self.unsubscribed = deque(filters)
        self.subscribing: dict[int, tuple[str, int]] = {}
        self.in_flight: dict[int, Sent] = {}
        self.waiting: deque[Publish] = deque()
        self.received: set[int] = set()
        self.packet_id = 0
        self.wants_connection = True
        self.retain_handling = 1

    # The connection

    def dial(self) -> None:
        """Begin a connection, beside one that may still be there."""
        world, host = self.world, self.world.host_for(self)
        if host.is_away:
            if self.transport is None:
                self.connects += 1
                self._dial_later()
            return
        if self.transport is not None:
            self.oracle.ended(self, politely=False)
            self.subscribing.clear()
        self.connects += 1
        mine, theirs = connect(world.loop, None, host)
        self.transport, self.is_open, self._process = mine, False, host.process
        mine.begin(Line(self, mine))
        world.loop.call_soon(theirs.be_accepted, host, context=theirs.context)
        will = None
        if self.has_will:
            will = Will(f"wills/{self.name}", f"will:{self.name}:{self.connects}".encode(), 2)
        kept = Properties(session_expiry_interval=DAY_S if self.is_kept else 0, receive_maximum=20)
        self._write(Connect(self.name, V5, not self.is_kept, 0, None, None, will, kept))
        self.asks += 1
        self.oracle.begins(self)
        world.loop.call_later(CONNECT_S, self._look_at_connack, mine, context=world.loop.bare)

    def _dial_later(self) -> None:
        wait_s = 0.05 + self.random.random() * 0.4
        self.world.loop.call_later(wait_s, self._dial_if_wanted, self.connects, context=self.world.loop.bare)

    def _dial_if_wanted(self, connects: int) -> None:
        if self.transport is None and self.connects == connects and self.wants_connection:
            self.dial()

    def _look_at_connack(self, transport: Transport) -> None:
        if self.transport is transport and not self.is_open:
            self.drop()

    def drop(self) -> None:
        """The connection breaks."""
        if self.transport is not None:
            transport, self.transport = self.transport, None
            self._is_over(politely=False)
            transport.cut()

    def is_at(self, process: Process) -> bool:
        """Whether it is connected to that, or believes to be."""
        return self.transport is not None and self._process is process

    def leave(self) -> None:
        """DISCONNECT, and the connection is closed."""
        if self.transport is not None and self.is_open:
            transport = self.transport
            self._write(Disconnect())
            self.transport = None
            self._is_over(politely=True)
            transport.close()

    def _is_over(self, *, politely: bool) -> None:
        self.is_open = False
        self.subscribing.clear()
        self.oracle.ended(self, politely=politely)
        self._dial_later()

    def lost(self, transport: Transport) -> None:
        """The broker, or the network, has ended a connection."""
        if self.transport is transport:
            self.transport = None
            self._is_over(politely=False)

    def _write(self, packet: Packet) -> None:
        assert self.transport is not None
        self.world.note(self.name, ">", packet)
        self.transport.write(encode(packet, V5))

    # What comes

    def take(self, packet: Packet) -> None:
        """What the broker has sent."""
        self.world.note(self.name, "<", packet)
        self._take(packet)

    def _take(self, packet: Packet) -> None:
        match packet:
            case Connack():
                self._entered(packet)
            case Publish():
                self._got(packet)
            case Pubrel():
                self.received.discard(packet.packet_id)
                self._write(Pubcomp(packet.packet_id))
            case Puback():
                sent = self._sent(packet.packet_id)
                del self.in_flight[packet.packet_id]
                self.oracle.answered(self, sent, packet.reason_code)
                if packet.reason_code == ReasonCode.QUOTA_EXCEEDED and not sent.packet.payload:
                    self.waiting.append(sent.packet)  # the slot of the queue has no node now
                self.push()
            case Pubrec():
                sent = self._sent(packet.packet_id)
                if packet.reason_code >= 0x80:
                    del self.in_flight[packet.packet_id]
                    self.oracle.answered(self, sent, packet.reason_code)
                    self.push()
                else:
                    sent.is_received = True
                    self.oracle.answered(self, sent, packet.reason_code)
                    self._write(Pubrel(packet.packet_id))
            case Pubcomp():
                self.in_flight.pop(packet.packet_id, None)
                self.push()
            case Suback():
                self._subscribed(packet)
            case Unsuback():
                if self.subscribing.pop(packet.packet_id, None) is not None:
                    self._subscribe()
            case _:
                pass  # DISCONNECT: the connection ends

    def _sent(self, packet_id: int) -> Sent:
        sent = self.in_flight.get(packet_id)
        if sent is None:
            raise Broken(f"{self.name} is answered {packet_id}, which it has not asked")
        return sent

    def _entered(self, packet: Connack) -> None:
        if packet.reason_code:
            self.oracle.refused(self, packet.reason_code)
            self.drop()
            return
        self.is_open = True
        if not self.is_kept:
            self._forget()
        self.oracle.entered(self, is_present=packet.session_present)
        self.entered += 1
        for packet_id, sent in self.in_flight.items():
            if sent.is_received:
                self._write(Pubrel(packet_id))
            else:
                old = sent.packet
                self.oracle.sends_again(sent)
                self._write(
                    Publish(old.topic, old.payload, old.qos, packet_id, old.retain, True, old.properties)
                )
        self._subscribe()
        self.push()

    def _forget(self) -> None:
        """A session begins."""
        for topic_filter, _ in self.filters:
            self.oracle.unsubscribes(self, topic_filter)
        self.unsubscribed = deque(self.filters)
        self.received.clear()

    def resubscribe(self) -> None:
        """Unsubscribe, and subscribe again when that has been answered, or with the next connection."""
        found = [one for one in self.filters if one not in self.unsubscribed]
        if self.is_open and self.transport is not None and found and not self.subscribing:
            topic_filter, qos = self.random.choice(found)
            self.unsubscribed.append((topic_filter, qos))
            self.oracle.unsubscribes(self, topic_filter)
            packet_id = self._free_id()
            self.subscribing[packet_id] = topic_filter, qos
            self._write(Unsubscribe(packet_id, (topic_filter,)))

    def _subscribe(self) -> None:
        for topic_filter, qos in self.unsubscribed:
            packet_id = self._free_id()
            self.subscribing[packet_id] = topic_filter, qos
            wishes = Properties(user_properties=self.wishes) if self.wishes else None
            asked = Subscription(topic_filter, qos, retain_handling=self.retain_handling)
            self._write(Subscribe(packet_id, (asked,), wishes))

    def _subscribed(self, packet: Suback) -> None:
        found = self.subscribing.pop(packet.packet_id, None)
        if found is not None and packet.reason_codes[0] < 0x80:
            self.unsubscribed.remove(found)
            self.oracle.subscribed(self, *found)
        elif found is not None:
            self.drop()

    def _got(self, packet: Publish) -> None:
        if packet.qos == 2:
            is_new = packet.packet_id not in self.received
            self.received.add(packet.packet_id)
            if is_new:
                self.take_message(packet)
            if self.transport is not None:
                self._write(Pubrec(packet.packet_id))
            return
        self.take_message(packet)
        if packet.qos and self.transport is not None:
            self._write(Puback(packet.packet_id))

    def take_message(self, packet: Publish) -> None:
        """It is handed to the application."""
        self.oracle.delivered(self, packet)

    # What it sends

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        *,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """As soon as there is room."""
        self.waiting.append(Publish(topic, payload, qos, 0, retain, False, properties))
        self.push()

    def push(self) -> None:
        """Send what waits, as far as the window goes."""
        while (
            self.waiting
            and self.is_open
            and self.transport is not None
            and len(self.in_flight) < IN_FLIGHT_MAX
        ):
            old = self.waiting.popleft()
            packet_id = self._free_id()
            packet = Publish(old.topic, old.payload, old.qos, packet_id, old.retain, False, old.properties)
            sent = self.in_flight[packet_id] = Sent(packet, self.world.loop.now_s)
            self.oracle.sends(self, sent)
            self._write(packet)

    def _free_id(self) -> int:
        while True:
            self.packet_id = self.packet_id % 65_535 + 1
            if self.packet_id not in self.in_flight and self.packet_id not in self.subscribing:
                return self.packet_id

    @property
    def is_quiet(self) -> bool:
        """Nothing of it is owed an answer."""
        return self.is_open and not (
            self.in_flight or self.waiting or self.unsubscribed or self.subscribing or self.received
        )


class Visitor(SimulatedClient):
    """Comes once, and notes what is retained. `retained` is that by topic."""

    def __init__(self, name: str, world: World, oracle: Oracle, topic_filter: str) -> None:
        super().__init__(name, world, oracle, filters=((topic_filter, 1),), is_kept=False)
        self.retain_handling = 0
        self.retained: dict[str, bytes] = {}

    def take_message(self, packet: Publish) -> None:
        if packet.retain:
            self.retained[packet.topic] = packet.payload


class QueueConsumer(SimulatedClient):
    """Works on a queue: it acknowledges what it gets, most of the time, later, or leaves it, or gives it back."""

    def take_message(self, packet: Publish) -> None:
        said = dict(packet.properties.user_properties) if packet.properties is not None else {}
        message_id = said["message-id"]
        self.oracle.offered(self, packet, message_id, int(said["delivery-count"]))
        verb = "ack"
        if self.world.is_rough:
            verb = self.random.choice(("ack", "ack", "ack", "ack", "ack", "nack", ""))
        if verb:
            wait_s = self.random.choice((0.0, 0.01, 0.2))
            self.world.loop.call_later(
                wait_s, self._settle, packet.topic, message_id, verb, context=self.world.loop.bare
            )

    def _settle(self, topic: str, message_id: str, verb: str) -> None:
        properties: tuple[tuple[str, str], ...] = (("message-id", message_id),)
        if verb == "nack":
            properties = (*properties, ("delay", "200ms"))
        self.publish(f"{topic}/${verb}", b"", 1, properties=Properties(user_properties=properties))
