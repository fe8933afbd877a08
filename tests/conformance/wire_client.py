"""A blocking client on any transport: sends packets or any bytes, and takes what comes packet by packet.

Nothing is acknowledged by itself. What the broker sends is decoded and checked by the codec on the way.
"""

from __future__ import annotations

import time
from typing import TypeVar

from tests.conformance.wires import Wire

from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
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
QUIET_S = 0.12
"""How long nothing must come for a test to believe that nothing does."""
NO_PROPERTIES = Properties()
Wanted = TypeVar("Wanted", bound=Packet)


class WireClient:
    """One connection. A receive that takes longer than `ANSWER_S` raises TimeoutError, and one after the end
    ConnectionError."""

    def __init__(
        self, wire: Wire, version: ProtocolVersion = ProtocolVersion.V5, client_id: str = ""
    ) -> None:
        self.version = version
        self.client_id = client_id
        self._wire = wire
        self._decoder = Decoder(Role.CLIENT, version=version)
        self._packets: list[Packet] = []
        self._last_id = 0
        self.sizes: list[int] = []
        """Bytes of each read: never more than one packet's when the broker has little to say."""

    # Sending

    def send(self, *packets: Packet) -> None:
        """Write packets in one piece."""
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        self._wire.sendall(data)

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    # Receiving

    def next(self, timeout_s: float = ANSWER_S) -> Packet:
        """The next packet, whatever it is."""
        end_s = time.monotonic() + timeout_s
        while not self._packets:
            self._wire.settimeout(max(0.001, end_s - time.monotonic()))
            data = self._wire.recv(65_536)
            if not data:
                raise ConnectionError("the broker has closed the connection")
            self.sizes.append(len(data))
            self._packets += self._decoder.feed(data)
            assert self._decoder.error is None, self._decoder.error
        return self._packets.pop(0)

    def expect(self, kind: type[Wanted]) -> Wanted:
        """The next packet, which is of this kind."""
        packet = self.next()
        assert isinstance(packet, kind), f"{packet} instead of {kind.__name__}"
        return packet

    def message(self, *, answers: bool = True) -> Publish:
        """The next PUBLISH, completely acknowledged unless `answers` is False."""
        message = self.expect(Publish)
        if answers:
            self.acknowledge(message)
        return message

    def messages(self, count: int) -> list[Publish]:
        """As many PUBLISHes, acknowledged; PUBRELs between them are answered."""
        taken: list[Publish] = []
        releases = 0
        while len(taken) < count or releases:
            packet = self.next()
            if isinstance(packet, Publish):
                taken.append(packet)
                releases += packet.qos == 2
                if packet.qos:
                    self.send((Puback if packet.qos == 1 else Pubrec)(packet.packet_id))
            else:
                assert isinstance(packet, Pubrel), packet
                releases -= 1
                self.send(Pubcomp(packet.packet_id))
        return taken

    def acknowledge(self, message: Publish) -> None:
        """PUBACK, or PUBREC, PUBREL and PUBCOMP."""
        if message.qos == 1:
            self.send(Puback(message.packet_id))
        elif message.qos == 2:
            self.send(Pubrec(message.packet_id))
            assert self.expect(Pubrel).packet_id == message.packet_id
            self.send(Pubcomp(message.packet_id))

    def nothing(self, quiet_s: float = QUIET_S) -> None:
        """Nothing has come and nothing comes for a while; the connection stays."""
        self.ping()
        try:
            packet = self.next(quiet_s)
        except TimeoutError:
            return
        raise AssertionError(f"{packet} came")

    def end(self, timeout_s: float = ANSWER_S) -> Disconnect | None:
        """Wait for the broker to end the connection; returns its DISCONNECT. Nothing else comes before."""
        said: Disconnect | None = None
        try:
            packet = self.next(timeout_s)
            assert isinstance(packet, Disconnect), f"{packet} before the end"
            said = packet
            surplus = self.next(timeout_s)
            raise AssertionError(f"{surplus} after {said}")
        except ConnectionError:
            return said

    def ended_with(self) -> int:
        """The reason code of the DISCONNECT that ends the connection."""
        said = self.end()
        assert said is not None, "closed without DISCONNECT"
        return said.reason_code

    # Usual exchanges

    def connect(
        self,
        *,
        clean: bool = True,
        expiry: int | None = None,
        keep_alive: int = 0,
        will: Will | None = None,
        username: str | None = None,
        password: bytes | None = None,
        properties: Properties = NO_PROPERTIES,
    ) -> Connack:
        """CONNECT; the answer may be a refusal. `expiry` is the Session Expiry Interval."""
        if expiry is not None:
            assert properties == NO_PROPERTIES
            properties = Properties(session_expiry_interval=expiry)
        asked = properties if self.version is ProtocolVersion.V5 and properties != NO_PROPERTIES else None
        packet = Connect(self.client_id, self.version, clean, keep_alive, username, password, will, asked)
        self.send(packet)
        return self.expect(Connack)

    def subscribe(
        self,
        *filters: str,
        qos: int = 2,
        identifier: int = 0,
        no_local: bool = False,
        as_published: bool = False,
        handling: int = 0,
    ) -> tuple[int, ...]:
        """SUBSCRIBE; returns the reason codes. Retained messages may follow."""
        asked = tuple(Subscription(text, qos, no_local, as_published, handling) for text in filters)
        packet_id = self.next_id()
        properties = Properties(subscription_identifiers=(identifier,)) if identifier else None
        self.send(Subscribe(packet_id, asked, properties))
        answer = self.expect(Suback)
        assert answer.packet_id == packet_id
        return answer.reason_codes

    def unsubscribe(self, *filters: str) -> tuple[int, ...]:
        packet_id = self.next_id()
        self.send(Unsubscribe(packet_id, filters))
        answer = self.expect(Unsuback)
        assert answer.packet_id == packet_id
        return answer.reason_codes

    def publish(
        self,
        topic: str,
        payload: bytes = b"x",
        *,
        qos: int = 1,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """PUBLISH and its whole exchange; returns the reason code of PUBACK or PUBREC."""
        packet_id = self.next_id() if qos else 0
        self.send(Publish(topic, payload, qos, packet_id, retain, False, properties))
        if not qos:
            return 0
        if qos == 1:
            acknowledgement = self.expect(Puback)
            assert acknowledgement.packet_id == packet_id
            return acknowledgement.reason_code
        received = self.expect(Pubrec)
        assert received.packet_id == packet_id
        if received.reason_code < 0x80:
            self.send(Pubrel(packet_id))
            assert self.expect(Pubcomp) == Pubcomp(packet_id)
        return received.reason_code

    def ping(self) -> None:
        """PINGREQ, and nothing comes before its PINGRESP."""
        self.send(Pingreq())
        self.expect(Pingresp)

    def leave(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        """DISCONNECT, and wait until the broker has closed the connection."""
        self.send(Disconnect(reason_code, properties))
        try:
            while True:
                self.next()
        except ConnectionError:
            self.close()

    def drop(self) -> None:
        """Break the connection as a lost network would: with a reset."""
        self._wire.drop()

    def finish_sending(self) -> None:
        """Half-close, where the transport has it: the broker reads the end, we still read."""
        self._wire.finish_sending()

    def close(self) -> None:
        self._wire.close()
