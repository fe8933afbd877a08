"""A published message as it travels from accept to delivery."""

from msgspec import Struct

from embermq.mqtt.wire.properties import Properties

PAIR_BYTES = 170
"""What one user property takes in memory besides its text."""


class Message(Struct, frozen=True, gc=False):
    """One accepted PUBLISH.

    `accepted_ms` and `expires_ms` are Unix milliseconds; `expires_ms` is the absolute deadline made from the
    Message Expiry Interval at accept time, 0 when the message never expires [MQTT-3.3.2-5].
    `properties` are the publisher's, None for MQTT 3.x publishers and for empty property blocks.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    publisher: str
    version: int
    accepted_ms: int
    expires_ms: int = 0
    properties: Properties | None = None

    def is_expired(self, now_ms: int) -> bool:
        """True when the deadline is reached; an interval of 0 expires at once."""
        return self.expires_ms != 0 and now_ms >= self.expires_ms


def said_bytes(message: Message) -> int:
    """What the publisher has said, and memory has to hold: topic, payload, and the properties, which may be more."""
    size, properties = len(message.topic) + len(message.payload), message.properties
    if properties is not None:
        size += len(properties.correlation_data or b"") + len(properties.response_topic or "")
        size += len(properties.content_type or "")
        pairs = properties.user_properties
        if pairs:
            size += PAIR_BYTES * len(pairs) + sum([len(name) + len(value) for name, value in pairs])
    return size
