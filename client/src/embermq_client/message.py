"""What a consumer gets: values, and the ways to settle them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from paho.mqtt.client import MQTTMessage

Pairs = tuple[tuple[str, str], ...]
"""User properties in their order; a name may come more than once [MQTT-3.3.2-18]."""

QUEUE_PREFIX = "$queue/"
RESPONSE_PREFIX = "$queue/responses/"
RESPONSE_TOPIC = "response-topic"
CORRELATION_ID = "correlation-id"
KEY = "partition-key"

_STAMPED = frozenset(
    {"message-id", "group-id", "delivery-count", "partition", "sequence", "first-delivered-at"}
)


class Settling(Protocol):
    """Who carries the consumer's decisions to the broker."""

    connection: int
    """The number of the connection that messages come over now."""

    async def settle(
        self, verb: str, messages: Sequence[Message], *, reason: str = "", delay_s: float | None = None
    ) -> None:
        """One of `$ack`, `$nack`, `$reject`, `$extend`. Raises SettleRefused, Unconfirmed."""

    async def answer(self, message: Message, payload: bytes, properties: Pairs) -> None:
        """Publish a reply. Raises ReplyImpossible, PublishRefused, Unconfirmed."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Where a dead letter came from. `message_id` is the one that it had there; `group` is "" when none had failed it,
    and `first_delivered_at` None when it was never delivered."""

    queue: str
    group: str
    reason: str
    attempts: int
    first_delivered_at: datetime | None
    moved_at: datetime
    last_error: str
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMessage:
    """What one delivery says, whoever settles it."""

    queue: str
    """The name of the queue, without `$queue/`."""
    payload: bytes
    id: str
    """The same each time that the message comes, in every group."""
    group: str
    """The consumer group that it was delivered to."""
    delivery_count: int
    """1 at the first delivery to this group."""
    partition: int
    sequence: int
    """Its place in the queue: later messages have greater ones."""
    first_delivered_at: datetime
    """When this group got it for the first time, in UTC."""
    key: str | None
    """The publisher's partition key; None without one."""
    properties: Pairs
    """The publisher's user properties, without those that are the broker's."""
    content_type: str | None
    response_topic: str | None
    """Where a reply goes; None when nobody waits for one."""
    correlation: bytes | None
    """What a reply has to carry for whoever waits for it."""
    expiry_s: int | None
    """Seconds until it expires; None for as long as the queue keeps it."""
    is_text: bool
    """Whether the publisher says that the payload is UTF-8 (Payload Format Indicator)."""
    dead_letter: DeadLetter | None
    """Where it came from; None unless the queue is one of dead letters."""
    connection: int = field(repr=False, compare=False)
    """The number of the client's connection that it came over."""

    @property
    def topic(self) -> str:
        """The topic of its queue, `$queue/<name>`."""
        return QUEUE_PREFIX + self.queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(QueueMessage):
    """One delivery. The lease runs: settle it (`ack`, `nack`, `reject`), or `extend`, before it is over.

    It can come again after you have seen it: when the lease was over, when the connection was lost before the broker
    had your answer. `id` is the same each time, `delivery_count` is not.
    """

    _settling: Settling = field(repr=False, compare=False)

    async def ack(self) -> None:
        """Done: this group never sees it again. Acking twice is no error. Raises SettleRefused, Unconfirmed."""
        await self._settling.settle("$ack", (self,))

    async def nack(self, reason: str = "", *, delay_s: float | None = None) -> None:
        """Failed: again later, after `delay_s` or as the queue's retry policy says; too often, and it is a dead letter.

        Not over another connection than it came over: the end of that one was a failure already.
        Raises SettleRefused, Unconfirmed.
        """
        await self._settling.settle("$nack", (self,), reason=reason, delay_s=delay_s)

    async def reject(self, reason: str = "") -> None:
        """No retry would help: to the dead letters at once. Raises SettleRefused, Unconfirmed."""
        await self._settling.settle("$reject", (self,), reason=reason)

    async def extend(self) -> None:
        """The lease begins anew. Raises SettleRefused, Unconfirmed."""
        await self._settling.settle("$extend", (self,))

    async def reply(self, payload: bytes | str, *, properties: Pairs = ()) -> None:
        """Answer a request. Does not settle it.

        Raises ReplyImpossible when nobody waits for an answer, PublishRefused, Unconfirmed.
        """
        await self._settling.answer(self, as_bytes(payload), properties)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The answer to a request."""

    payload: bytes
    properties: Pairs
    content_type: str | None


def as_bytes(payload: bytes | str) -> bytes:
    """Text as UTF-8."""
    return payload.encode() if isinstance(payload, str) else payload


def read_message(packet: MQTTMessage, settling: Settling) -> Message:
    """A delivery as a value. Raises ValueError when a property of the broker's is missing or has no sense."""
    pairs: Pairs = tuple(getattr(packet.properties, "UserProperty", ()))
    stamps: dict[str, str] = {}
    publishers: list[tuple[str, str]] = []
    for name, value in pairs:
        if name in _STAMPED or name.startswith("dlq-"):
            stamps[name] = value
        else:
            publishers.append((name, value))
    given = dict(publishers)
    try:
        return Message(
            queue=packet.topic.removeprefix(QUEUE_PREFIX),
            payload=bytes(packet.payload),
            id=stamps["message-id"],
            group=stamps["group-id"],
            delivery_count=int(stamps["delivery-count"]),
            partition=int(stamps["partition"]),
            sequence=int(stamps["sequence"]),
            first_delivered_at=_moment(stamps["first-delivered-at"]),
            key=given.get(KEY),
            properties=tuple(publishers),
            content_type=getattr(packet.properties, "ContentType", None),
            response_topic=getattr(packet.properties, "ResponseTopic", given.get(RESPONSE_TOPIC)),
            correlation=read_correlation(packet, given),
            expiry_s=getattr(packet.properties, "MessageExpiryInterval", None),
            is_text=getattr(packet.properties, "PayloadFormatIndicator", 0) == 1,
            dead_letter=_dead_letter(stamps),
            connection=settling.connection,
            _settling=settling,
        )
    except KeyError as error:
        raise ValueError(f"a delivery without {error.args[0]}: is this queue's broker an EmberMQ?") from None


def read_response(packet: MQTTMessage) -> tuple[bytes | None, Response]:
    """Correlation data, None without any, and the answer."""
    pairs: Pairs = tuple(getattr(packet.properties, "UserProperty", ()))
    kept = tuple(pair for pair in pairs if pair[0] not in _STAMPED)
    content_type = getattr(packet.properties, "ContentType", None)
    response = Response(payload=bytes(packet.payload), properties=kept, content_type=content_type)
    return read_correlation(packet, dict(pairs)), response


def read_correlation(packet: MQTTMessage, given: dict[str, str]) -> bytes | None:
    """Correlation Data, or the user property of clients that cannot set it."""
    data: bytes | None = getattr(packet.properties, "CorrelationData", None)
    if data is not None:
        return bytes(data)
    text = given.get(CORRELATION_ID)
    return None if text is None else text.encode()


def _dead_letter(stamps: dict[str, str]) -> DeadLetter | None:
    if "dlq-queue" not in stamps:
        return None
    first = stamps["dlq-first-delivered-at"]
    return DeadLetter(
        queue=stamps["dlq-queue"],
        group=stamps["dlq-group"],
        reason=stamps["dlq-reason"],
        attempts=int(stamps["dlq-attempts"]),
        first_delivered_at=None if first in ("", "0") else _moment(first),
        moved_at=_moment(stamps["dlq-moved-at"]),
        last_error=stamps["dlq-last-error"],
        message_id=stamps.get("dlq-message-id", ""),
    )


def _moment(text: str) -> datetime:
    """From Unix milliseconds."""
    return datetime.fromtimestamp(int(text) / 1_000, UTC)
