"""From bytes to packets, one decoder a connection.

`Decoder.feed` is the hottest loop of the broker: PUBLISH and the four acknowledgements are read inside it,
all else by `packet_bodies`. Only the bytes of an unfinished packet are kept; a large packet in many pieces
is collected in one growing buffer and looked at again when it is whole.
"""

from __future__ import annotations

from typing import Final

from embermq.mqtt.value import replace
from embermq.mqtt.wire import packet_bodies
from embermq.mqtt.wire.data_types import encode_varint
from embermq.mqtt.wire.errors import (
    MalformedPacket,
    PacketTooLarge,
    ProtocolError,
    ProtocolViolation,
    UnsupportedVersion,
)
from embermq.mqtt.wire.packets import (
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from embermq.mqtt.wire.properties import Properties, PropertyPlace, decode_properties
from embermq.mqtt.wire.version import ProtocolVersion, Role

__all__ = ["Decoder", "Role"]

PACKET_BYTES_MAX: Final = 268_435_460
"""The largest packet that the protocol can say: 5 bytes of fixed header and 268,435,455 bytes after it."""

_PIECE_BYTES_MIN: Final = 4_096
_LARGE_BYTES: Final = 32_768
_HEAD_BYTES: Final = 2_048
_FIXED_HEAD_BYTES: Final = 5
_CACHED_TOPICS_MAX: Final = 65_536
_CACHED_TOPIC_BYTES_MAX: Final = 256
_CACHED_BLOCKS_MAX: Final = 4_096
_CACHED_BLOCK_BYTES_MAX: Final = 128

# Both caches are pure functions of their keys, shared by all connections; a full one is emptied.
_TOPICS: Final[dict[bytes, str]] = {}
_BLOCKS: Final[dict[bytes, Properties]] = {}

# By first byte of a PUBLISH: QoS, retain, dup. None for other packets and for flags that are not allowed.
_PUBLISH_FLAGS: Final = tuple(
    (first >> 1 & 3, bool(first & 1), bool(first & 8))
    if first >> 4 == 3 and first & 6 != 6 and not (first & 8 and not first & 6)
    else None
    for first in range(256)
)
# By first byte with the right reserved flags: the acknowledgement in its short form of two bytes.
_SHORT_FORMS: Final[dict[int, type[packet_bodies.Acknowledgement]]] = {
    0x40: Puback,
    0x50: Pubrec,
    0x62: Pubrel,
    0x70: Pubcomp,
}
_ACKNOWLEDGEMENTS: Final = tuple(_SHORT_FORMS.get(first) for first in range(256))

_CONNECT, _CONNACK, _PUBLISH, _PUBACK, _PUBREC, _PUBREL, _PUBCOMP, _SUBSCRIBE = range(1, 9)
_SUBACK, _UNSUBSCRIBE, _UNSUBACK, _PINGREQ, _PINGRESP, _DISCONNECT, _AUTH = range(9, 16)

_NAMES: Final = (
    "packet of reserved type 0",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
)
_FLAGS_CLAUSES: Final = {
    _PUBREL: "MQTT-3.6.1-1",
    _SUBSCRIBE: "MQTT-3.8.1-1",
    _UNSUBSCRIBE: "MQTT-3.10.1-1",
    _DISCONNECT: "MQTT-3.14.1-1",
    _AUTH: "MQTT-3.15.1-1",
}
_V31_OPENING: Final = b"\0\6MQIsdp\3"
_FOREIGN: Final = {
    Role.SERVER: frozenset({_CONNACK, _SUBACK, _UNSUBACK, _PINGRESP}),
    Role.CLIENT: frozenset({_CONNECT, _SUBSCRIBE, _UNSUBSCRIBE, _PINGREQ}),
}
_PINGREQ_PACKET: Final = Pingreq()
_PINGRESP_PACKET: Final = Pingresp()


class Decoder:
    """Reads one direction of one connection.

    ``packet_bytes_max`` limits a whole packet, fixed header included; a larger one is refused as soon as its
    fixed header is there. A SERVER starts without ``version`` and learns it from CONNECT; given one, it
    goes on after a CONNECT that was read elsewhere. A CLIENT must be given the version that it asked for.
    """

    __slots__ = (
        "_connected",
        "_ended",
        "_medium_max",
        "_packet_bytes_max",
        "_pending_bytes",
        "_pieces",
        "_role",
        "_short_max",
        "_wanted",
        "error",
        "version",
    )

    def __init__(
        self, role: Role, *, packet_bytes_max: int = PACKET_BYTES_MAX, version: ProtocolVersion | None = None
    ) -> None:
        if role is Role.CLIENT and version is None:
            raise ValueError("a decoder in the role CLIENT needs the version that its CONNECT asked for")
        if packet_bytes_max < 2:
            raise ValueError(f"packet_bytes_max is {packet_bytes_max}, no packet has less than 2 bytes")
        self.version: ProtocolVersion | None = None if version is None else ProtocolVersion(version)
        """The version of the connection; None until CONNECT has said it. Set even when CONNECT is refused."""
        self.error: ProtocolError | None = None
        """Why nothing more is read; None while all is well."""
        self._role = role
        self._connected = role is Role.SERVER and version is not None
        self._ended = False
        self._packet_bytes_max = packet_bytes_max
        # Longest bodies whose length has one byte and two bytes and that are not too large.
        self._short_max = min(127, packet_bytes_max - 2)
        self._medium_max = min(16_383, packet_bytes_max - 3)
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._pending_bytes = 0
        self._wanted = 0

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of an unfinished packet are held."""
        return self._pending_bytes

    @property
    def missing_bytes(self) -> int:
        """How many bytes more an unfinished packet takes at least; 0 when there is none."""
        return self._wanted - self._pending_bytes if self._pieces else 0

    def feed(self, data: bytes | memoryview) -> list[Packet]:
        """Take what the socket gave and return the packets that are complete with it, in order. `data` may be a
        view, of bytes that do not change: no byte of a large payload is copied twice then, where bytes are missing or
        one packet begins with the view and does not end before it.

        Never raises for what the peer sent: a bad packet ends the list, `error` says why, and further feeds
        return nothing. After a DISCONNECT further bytes are dropped [MQTT-3.14.4-1].
        """
        packets: list[Packet] = []
        if self.error is not None or self._ended:
            return packets
        if isinstance(data, memoryview) and not self._pieces:
            self._wanted = self.packet_bytes(data)
            if self._wanted < len(data):
                data = bytes(data)
        if isinstance(data, memoryview) or self._pieces:
            self._keep(data)
            if self._pending_bytes < self._wanted:
                return packets
            data = self._take_pieces(packets)
            if not data:
                return packets
        try:
            position = 0 if self._connected else self._read_opening(data, packets)
            if self._connected:
                position = self._read_packets(data, position, packets)
        except ProtocolError as error:
            # With its frames it would keep this decoder, and all that hangs on it, alive until a collection of cycles.
            error.__cause__ = error.__context__ = None
            self.error = error.with_traceback(None)
            return packets
        if position < len(data) and not self._ended:
            self._keep(data[position:] if position else data)
        return packets

    def packet_bytes(self, data: memoryview) -> int:
        """The size of the packet that begins with `data`, 0 when that cannot be told yet or the packet is refused for
        its first bytes. Only between packets, when no bytes are missing."""
        opening = bytes(data[:_FIXED_HEAD_BYTES])
        if not opening or not self._connected or self._ended:
            return 0
        try:
            length, body = self._read_length(opening, 0, opening[0])
        except ProtocolError:
            return 0
        return body + length if length >= 0 else 0

    def _keep(self, data: bytes | memoryview) -> None:
        """Small pieces gather in one buffer: a list of them would take more memory than what is in them."""
        self._pending_bytes += len(data)
        pieces = self._pieces
        if len(data) >= _PIECE_BYTES_MIN:
            pieces.append(data)
        elif pieces and isinstance(gathered := pieces[-1], bytearray):
            gathered += data
        else:
            pieces.append(bytearray(data))

    def _take_pieces(self, packets: list[Packet]) -> bytes:
        """The packet is whole: what is to be read now. The payload of a large PUBLISH is joined once, from the pieces
        as they came; the PUBLISH goes to `packets`, and what came behind it is left to be read."""
        pieces, self._pieces = self._pieces, []
        excess_bytes, self._pending_bytes = self._pending_bytes - self._wanted, 0
        first = bytes(pieces[0][:_HEAD_BYTES])
        if self._wanted < _LARGE_BYTES or _PUBLISH_FLAGS[first[0]] is None or not self._connected:
            return b"".join(pieces)
        # The same packet as if it ended with the first bytes of its payload; where not even these are in the first
        # piece it is malformed that way, and the whole is read.
        _, body = self._read_length(first, 0, first[0])
        cut: list[Packet] = []
        try:
            self._read_packets(first[:1] + encode_varint(len(first) - body) + first[body:], 0, cut)
        except ProtocolError:
            return b"".join(pieces)
        publish = cut[0]
        assert isinstance(publish, Publish), "its first byte says so"
        last = memoryview(pieces[-1])
        behind = bytes(last[len(last) - excess_bytes :])
        pieces[-1] = last[: len(last) - excess_bytes]
        pieces[0] = memoryview(pieces[0])[len(first) :]
        packets.append(replace(publish, payload=b"".join((publish.payload, *pieces))))
        return behind

    def _read_packets(self, data: bytes, position: int, packets: list[Packet]) -> int:
        """Append the complete packets from ``position`` on; returns where the first incomplete one begins."""
        short_max = self._short_max
        medium_max = self._medium_max
        size = len(data)
        v5 = self.version is ProtocolVersion.V5
        while position < size:
            first = data[position]
            body = position + 2
            if body > size:
                return self._incomplete(first, position, 2)
            length = data[position + 1]
            if length > short_max:
                # Two bytes of length are as usual as one; what is longer or wrong is read step by step.
                high = data[body] if body < size else 0
                if length > 127 and 0 < high < 128 and (length & 127 | high << 7) <= medium_max:
                    length = length & 127 | high << 7
                    body += 1
                else:
                    length, body = self._read_length(data, position, first)
                    if length < 0:
                        return position
            end = body + length
            if end > size:
                return self._incomplete(first, position, end - position)
            position = end
            flags = _PUBLISH_FLAGS[first]
            if flags is not None:
                if length < 2:
                    raise _truncated_publish(length)
                qos, retain, dup = flags
                body += 2
                start = body + (data[body - 2] << 8 | data[body - 1])
                raw = data[body:start]
                packet_id = 0
                if qos:
                    start += 2
                    if start > end:
                        raise _truncated_publish(length)
                    packet_id = data[start - 2] << 8 | data[start - 1]
                    if not packet_id:
                        raise ProtocolViolation("packet identifier 0 in PUBLISH", "MQTT-2.2.1-3")
                elif start > end:
                    raise _truncated_publish(length)
                topic = _TOPICS.get(raw)
                if v5:
                    if start == end:
                        raise _truncated_publish(length)
                    if data[start]:
                        properties, start = self._read_properties(data, start, end)
                        if topic is None:
                            topic = _topic_or_alias(raw, properties)
                        packets.append(
                            Publish(topic, data[start:end], qos, packet_id, retain, dup, properties)
                        )
                        continue
                    start += 1
                if topic is None:
                    topic = _topic_or_alias(raw, None)
                packets.append(Publish(topic, data[start:end], qos, packet_id, retain, dup))
            elif length == 2 and (acknowledgement := _ACKNOWLEDGEMENTS[first]) is not None:
                packet_id = data[body] << 8 | data[body + 1]
                if not packet_id:
                    raise ProtocolViolation(f"packet identifier 0 in {_NAMES[first >> 4]}", "MQTT-2.2.1-3")
                packets.append(acknowledgement(packet_id))
            else:
                packets.append(self._read_other(first, data[body:end]))
                if self._ended:
                    break
        return position

    def _incomplete(self, first: int, position: int, packet_bytes: int) -> int:
        """Wait for so many bytes from there on, unless the first one says that they would be refused."""
        self._check_type(first)
        self._wanted = packet_bytes
        return position

    def _read_length(self, data: bytes, position: int, first: int) -> tuple[int, int]:
        """The remaining length and where the body begins; length -1 while it is incomplete.

        Refuses what is too large, too long or, in 5.0, not in its shortest form [MQTT-1.5.5-1].
        """
        self._check_type(first)
        length = shift = 0
        body = position + 1
        while True:
            if body == len(data):
                self._wanted = body - position + 1
                return -1, body
            byte = data[body]
            body += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift == 28:
                raise MalformedPacket("remaining length of more than 4 bytes", "MQTT-1.5.5-1")
        if not byte and shift and self.version is ProtocolVersion.V5:
            raise MalformedPacket(f"remaining length {length} is not in its shortest form", "MQTT-1.5.5-1")
        packet_bytes = body - position + length
        if packet_bytes > self._packet_bytes_max:
            raise PacketTooLarge(packet_bytes, self._packet_bytes_max)
        return length, body

    def _read_opening(self, data: bytes, packets: list[Packet]) -> int:
        """The first packet: CONNECT of a client [MQTT-3.1.0-1], CONNACK or AUTH of a server
        [MQTT-3.2.0-1]."""
        position = 0
        while position < len(data) and not self._connected:
            first = data[position]
            length, body = self._read_length(data, position, first)
            if length < 0:
                break
            end = body + length
            if end > len(data):
                self._wanted = end - position
                break
            if self._role is Role.SERVER:
                padded = body - position > 2 and length < 1 << 7 * (body - position - 2)
                packets.append(self._read_connect(first & 0x0F, data[body:end], padded))
            else:
                packets.append(self._read_other(first, data[body:end]))
            position = end
            self._connected = first >> 4 != _AUTH
        return position

    def _read_connect(self, flags: int, data: bytes, padded: bool) -> Packet:
        # In 3.1 "the DUP, QoS, and RETAIN flags are not used in the CONNECT message" (3.1); 3.1.1 reserves them.
        if flags and not data.startswith(_V31_OPENING):
            raise _wrong_flags(_CONNECT, flags, 0)
        try:
            self.version, position = packet_bodies.read_protocol(data)
        except UnsupportedVersion as error:
            self.version = packet_bodies.guess_version(error)
            raise
        if padded and self.version is ProtocolVersion.V5:
            raise MalformedPacket("remaining length is not in its shortest form", "MQTT-1.5.5-1")
        return packet_bodies.read_connect(data, position, self.version)

    def _read_properties(self, data: bytes, start: int, end: int) -> tuple[Properties | None, int]:
        """The properties of a PUBLISH; small blocks, which repeat, are looked up before they are read."""
        block_end = start + 1 + data[start]
        block = data[start:block_end]
        known = _BLOCKS.get(block)
        if known is not None and block_end <= end:
            properties: Properties | None = known
        else:
            properties, block_end = decode_properties(data[start:end], 0, PropertyPlace.PUBLISH)
            block_end += start
            if properties is not None and len(block) <= _CACHED_BLOCK_BYTES_MAX:
                if len(_BLOCKS) >= _CACHED_BLOCKS_MAX:
                    _BLOCKS.clear()
                _BLOCKS[block] = properties
        if properties is not None and properties.subscription_identifiers and self._role is Role.SERVER:
            raise ProtocolViolation("PUBLISH of a client has a subscription identifier", "MQTT-3.3.4-6")
        return properties, block_end

    def _read_other(self, first: int, data: bytes) -> Packet:
        """Every packet that the hot loop does not read itself, and every PUBLISH that it refuses to."""
        self._check_type(first)
        kind = first >> 4
        version = self.version
        if version is None:
            raise ProtocolViolation(f"{_NAMES[kind]} before CONNECT", "MQTT-3.1.0-1")
        if kind == _PUBACK:
            return packet_bodies.read_acknowledgement(Puback, data, version)
        if kind == _PUBREC:
            return packet_bodies.read_acknowledgement(Pubrec, data, version)
        if kind == _PUBREL:
            return packet_bodies.read_acknowledgement(Pubrel, data, version)
        if kind == _PUBCOMP:
            return packet_bodies.read_acknowledgement(Pubcomp, data, version)
        if kind == _SUBSCRIBE:
            return packet_bodies.read_subscribe(data, version)
        if kind == _UNSUBSCRIBE:
            return packet_bodies.read_unsubscribe(data, version)
        if kind == _SUBACK:
            return packet_bodies.read_suback(data, version)
        if kind == _UNSUBACK:
            return packet_bodies.read_unsuback(data, version)
        if kind == _CONNACK:
            return packet_bodies.read_connack(data, version)
        if kind == _AUTH:
            return packet_bodies.read_auth(data, version, self._role)
        if kind == _DISCONNECT:
            packet = packet_bodies.read_disconnect(data, version, self._role)
            self._ended = True
            return packet
        if data:
            raise MalformedPacket(f"{len(data)} bytes too many in {_NAMES[kind]}", "MQTT-4.13.1-1")
        return _PINGREQ_PACKET if kind == _PINGREQ else _PINGRESP_PACKET

    def _check_type(self, first: int) -> None:
        """Refuse by the first byte what may not come: wrong flags, wrong direction, wrong moment."""
        kind = first >> 4
        flags = first & 0x0F
        if kind == 0 or (kind == _AUTH and self.version not in (None, ProtocolVersion.V5)):
            raise MalformedPacket(f"packet type {kind} is reserved", "MQTT 5.0, 2.1.2")
        if not self._connected:
            expected = (_CONNECT,) if self._role is Role.SERVER else (_CONNACK, _AUTH)
            if kind not in expected:
                clause = "MQTT-3.1.0-1" if self._role is Role.SERVER else "MQTT-3.2.0-1"
                raise ProtocolViolation(f"first packet is {_NAMES[kind]}", clause)
        elif kind in _FOREIGN[self._role]:
            raise ProtocolViolation(f"{_NAMES[kind]} in the wrong direction", "MQTT 5.0, 2.1.2")
        elif kind in (_CONNECT, _CONNACK):
            raise ProtocolViolation(f"a second {_NAMES[kind]}", "MQTT-3.1.0-2")
        if kind == _PUBLISH:
            if flags & 6 == 6:
                raise MalformedPacket("QoS is 3 in PUBLISH", "MQTT-3.3.1-4")
            if flags & 8 and not flags & 6:
                raise MalformedPacket("DUP is set in a PUBLISH of QoS 0", "MQTT-3.3.1-2")
            return
        if kind == _CONNECT:  # which flags it may have says its version
            return
        needed = 2 if kind in (_PUBREL, _SUBSCRIBE, _UNSUBSCRIBE) else 0
        # In 3.1 these three may be repeated, then with DUP [MQTT 3.1, 2.1].
        if flags != needed and not (needed and flags == 0x0A and self.version is ProtocolVersion.V31):
            raise _wrong_flags(kind, flags, needed)


def _wrong_flags(kind: int, flags: int, needed: int) -> MalformedPacket:
    text = f"reserved flags of {_NAMES[kind]} are 0x{flags:X}, not 0x{needed:X}"
    return MalformedPacket(text, _FLAGS_CLAUSES.get(kind, "MQTT-2.1.3-1"))


def _topic_or_alias(raw: bytes, properties: Properties | None) -> str:
    """The topic of a PUBLISH that is not in the cache; it may be empty when an alias stands for it."""
    if not raw:
        if properties is not None and properties.topic_alias is not None:
            return ""
        raise ProtocolViolation("PUBLISH without a topic and without a topic alias", "MQTT-4.7.3-1")
    topic = packet_bodies.read_topic(raw)
    if len(raw) <= _CACHED_TOPIC_BYTES_MAX:
        if len(_TOPICS) >= _CACHED_TOPICS_MAX:
            _TOPICS.clear()
        _TOPICS[raw] = topic
    return topic


def _truncated_publish(length: int) -> MalformedPacket:
    return MalformedPacket(f"PUBLISH ends too early, its remaining length is {length}", "MQTT-4.13.1-1")
