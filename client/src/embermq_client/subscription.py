"""Plain MQTT beside the queues: what comes on the topics of a filter."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from paho.mqtt.client import MQTTMessage

from embermq_client.inbox import Inbox
from embermq_client.message import Message, Pairs

LOG = logging.getLogger("embermq_client")
WAITING_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMessage:
    """A message of a plain topic. It is acknowledged as soon as it is here: what must not be lost with this program
    goes through a queue."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    """Whether it was there before the subscription."""
    properties: Pairs
    """The publisher's user properties."""
    content_type: str | None
    response_topic: str | None
    correlation: bytes | None
    expiry_s: int | None
    """Seconds until it would have expired; None for never."""
    is_text: bool
    """Whether the publisher says that the payload is UTF-8 (Payload Format Indicator)."""


class TopicSubscription(Inbox[TopicMessage]):
    """Made by `Client.subscribe`: `async for message in subscription`. What comes while there is no connection is not
    seen. At most `waiting_max` messages wait to be taken; newer ones are dropped then, and counted."""

    asked: Pairs = ()

    def __init__(self, identifier: int, qos: int, waiting_max: int) -> None:
        super().__init__()
        self.identifier = identifier
        self.qos = qos
        self.dropped = 0
        """Messages for which there was no room."""
        self._waiting_max = waiting_max

    def take(self, packet: MQTTMessage) -> None:
        """The connection has brought a message."""
        if len(self._waiting) >= self._waiting_max:
            if not self.dropped:
                LOG.warning(
                    "%s: %d messages wait to be taken, newer ones are dropped",
                    packet.topic,
                    self._waiting_max,
                )
            self.dropped += 1
            return
        self._put(read_topic_message(packet))

    def forget(self) -> None:
        """The connection is gone; what has come is here."""

    def settled(self, messages: Sequence[Message]) -> None:
        """Only messages of queues are settled."""


def read_topic_message(packet: MQTTMessage) -> TopicMessage:
    """A delivery as a value."""
    found = packet.properties
    correlation = getattr(found, "CorrelationData", None)
    return TopicMessage(
        topic=packet.topic,
        payload=bytes(packet.payload),
        qos=packet.qos,
        retain=bool(packet.retain),
        properties=tuple(getattr(found, "UserProperty", ())),
        content_type=getattr(found, "ContentType", None),
        response_topic=getattr(found, "ResponseTopic", None),
        correlation=None if correlation is None else bytes(correlation),
        expiry_s=getattr(found, "MessageExpiryInterval", None),
        is_text=getattr(found, "PayloadFormatIndicator", 0) == 1,
    )
