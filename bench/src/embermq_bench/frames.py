"""The layout of a run's PUBLISH packets.

All packets of a run have one length: topics end in a number of fixed width, payloads have one size. So a
packet is one `struct` to write and one to read; whatever does not look like it goes to the codec. The payload
begins with the sequence number and the intended send time (ns, monotonic clock), big-endian, 8 bytes each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from embermq.mqtt.wire.encoder import publish_frame
from embermq.mqtt.wire.properties import encode_properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.settings import STAMP_BYTES

INDEX_DIGITS = 6
PUBLISHERS_MAX = 10**INDEX_DIGITS

_STAMP = struct.Struct(">QQ")


def topic_index(publisher: int) -> str:
    """The last level of the topic that the publisher of this number writes to."""
    return f"{publisher:0{INDEX_DIGITS}d}"


def read_stamp(payload: bytes) -> tuple[int, int] | None:
    """Sequence number and intended send time (ns); None when the payload is too short to be ours."""
    if len(payload) < STAMP_BYTES:
        return None
    sequence, intended_ns = _STAMP.unpack_from(payload)
    return sequence, intended_ns


class OutgoingLayout(msgspec.Struct, frozen=True):
    """`pack(head, packet_id, middle, sequence, intended_ns)` is a PUBLISH; at QoS 0 `packet_id` is b""."""

    pack: Callable[..., bytes]
    head: bytes
    middle: bytes


class IncomingLayout(msgspec.Struct, frozen=True):
    """`row` reads (start, index, packet_id, middle, sequence, intended_ns); start and middle mark ours."""

    row: struct.Struct
    start: bytes
    middle: bytes


class FrameFamily:
    """The layouts of one run: topic prefix, QoS, version and payload size are those of all its packets."""

    def __init__(self, topic_prefix: str, *, qos: int, version: ProtocolVersion, payload_bytes: int) -> None:
        self.topic_prefix = topic_prefix
        self._qos = qos
        self._version = version
        self._payload_bytes = payload_bytes

    def outgoing(self, publisher: int) -> OutgoingLayout:
        """The layout of what one publisher sends."""
        head, middle = self._ends(publisher)
        padding = self._payload_bytes - STAMP_BYTES
        identifier = "H" if self._qos else "0s"
        layout = struct.Struct(f">{len(head)}s{identifier}{len(middle)}sQQ{padding}x")
        return OutgoingLayout(layout.pack, head, middle)

    def incoming(self) -> IncomingLayout:
        """The layout of what the broker delivers, when it changes nothing but the packet id."""
        head, middle = self._ends(0)
        start = head[:-INDEX_DIGITS]
        padding = self._payload_bytes - STAMP_BYTES
        identifier = "H" if self._qos else "0s"
        layout = f">{len(start)}s{INDEX_DIGITS}s{identifier}{len(middle)}sQQ{padding}x"
        return IncomingLayout(struct.Struct(layout), start, middle)

    def _ends(self, publisher: int) -> tuple[bytes, bytes]:
        """What stands before the packet id (QoS 0: before the properties), and between it and the payload."""
        properties = encode_properties(None) if self._version is ProtocolVersion.V5 else b""
        head, before_payload, _ = publish_frame(
            self.topic_prefix + topic_index(publisher),
            bytes(self._payload_bytes),
            qos=self._qos,
            retain=False,
            version=self._version,
            properties=properties,
        )
        if not self._qos and not head.endswith(topic_index(publisher).encode()):
            # At QoS 0 the two halves may be cut anywhere: move the properties behind the cut.
            whole = head + before_payload
            cut = len(whole) - len(properties)
            return whole[:cut], whole[cut:]
        return head, before_payload


def frame_end(data: bytes, start: int) -> int:
    """Where the packet that begins at `start` ends; 0 when incomplete. Raises ValueError on a bad length."""
    length = shift = 0
    position = start + 1
    end = len(data)
    while position < end:
        byte = data[position]
        position += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return position + length if position + length <= end else 0
        shift += 7
        if shift > 21:
            raise ValueError("a remaining length of more than 4 bytes")
    return 0
