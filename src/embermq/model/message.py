"""A published message as it travels from accept to delivery."""

from msgspec import Struct

from embermq.protocol.properties import Properties


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
