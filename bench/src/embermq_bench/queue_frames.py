"""The layout of messages to and from a queue.

The payload begins with the sequence number and the intended send time (8 bytes each), the publisher and the run (4
each). What comes back has user properties of the broker's, so no fixed layout: it is searched for the two that count.
"""

from __future__ import annotations

import struct

from embermq.mqtt.wire.data_types import encode_text, encode_varint
from embermq.mqtt.wire.encoder import publish_frame
from embermq.mqtt.wire.properties import Properties, encode_properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.frames import OutgoingLayout
from embermq_bench.settings import QUEUE_STAMP_BYTES

STAMP = struct.Struct(">QQII")
PARTITION_KEY = "partition-key"
_USER_PROPERTY = b"\x26"
_ID_NAME = encode_text("message-id")
_COUNT_NAME = encode_text("delivery-count")
_FIRST = encode_text("1")


def keys_of(publisher: int, publishers: int, keys: int) -> list[str]:
    """The keys that one publisher uses in turn; none without keys."""
    return [f"k{number:07d}" for number in range(publisher, keys, publishers)]


class QueueFrames:
    """Of one run: queue, version and payload size are those of all its messages. `run` is a number of 4 bytes."""

    def __init__(self, queue: str, run: int, *, version: ProtocolVersion, payload_bytes: int) -> None:
        self.topic = f"$queue/{queue}"
        self.run = run
        self.payload_bytes = payload_bytes
        self._version = version
        self._ack_head = encode_text(f"{self.topic}/$ack")

    def outgoing(self, publisher: int, keys: list[str], qos: int) -> OutgoingLayout:
        """What one publisher sends; the key of a message is that of its sequence number, in turn."""
        middles: list[bytes] = []
        head = b""
        for key in keys or [""]:
            head, middle = self._ends(key, qos)
            middles.append(middle)
        padding = self.payload_bytes - QUEUE_STAMP_BYTES
        layout = struct.Struct(f">{len(head)}sH{len(middles[0])}sQQII{padding}x")
        count, run = len(middles), self.run

        def pack(head: bytes, packet_id: int, middle: bytes, sequence: int, intended_ns: int) -> bytes:
            key = middles[sequence % count]
            return layout.pack(head, packet_id, key, sequence, intended_ns, publisher, run)

        return OutgoingLayout(pack, head, middles[0])

    def ack(self, packet_id: int, message_ids: list[bytes]) -> bytes:
        """A PUBLISH to `$ack`, QoS 1; ids with their length in front, as `delivered` finds them."""
        properties = b"".join([_USER_PROPERTY + _ID_NAME + message_id for message_id in message_ids])
        body = b"".join(
            (self._ack_head, packet_id.to_bytes(2, "big"), encode_varint(len(properties)), properties)
        )
        return b"\x32" + encode_varint(len(body)) + body

    def _ends(self, key: str, qos: int) -> tuple[bytes, bytes]:
        """What stands before the packet id, and between it and the payload."""
        properties = b""
        if self._version is ProtocolVersion.V5:
            own = Properties(user_properties=((PARTITION_KEY, key),)) if key else None
            properties = encode_properties(own)
        payload = bytes(self.payload_bytes)
        head, before_payload, _ = publish_frame(
            self.topic, payload, qos=qos, retain=False, version=self._version, properties=properties
        )
        return head, before_payload


def packet_id_of(data: bytes, start: int) -> tuple[int, int]:
    """Of a PUBLISH at QoS 1 or 2 that begins at `start`: its packet id, and where that ends."""
    position = start + 1
    while data[position] & 0x80:
        position += 1
    position += 3 + (data[position + 1] << 8 | data[position + 2])
    return data[position] << 8 | data[position + 1], position + 2


def message_id_in(data: bytes, start: int, end: int) -> bytes:
    """The broker's id among the properties, with its length in front; empty when there is none. The broker's own
    properties come last, and nobody else may send one of that name."""
    found = data.rfind(_ID_NAME, start, end)
    if found < 0:
        return b""
    found += len(_ID_NAME)
    return data[found : found + 2 + (data[found] << 8 | data[found + 1])]


def is_repeat(data: bytes, start: int, end: int) -> bool:
    """Whether the broker says that it has delivered this message before."""
    found = data.rfind(_COUNT_NAME, start, end)
    return found >= 0 and not data.startswith(_FIRST, found + len(_COUNT_NAME))
