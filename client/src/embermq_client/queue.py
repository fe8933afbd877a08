"""A queue by its name: publishing to it, consuming it, asking who consumes it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from paho.mqtt.client import MQTTMessage

from embermq_client.errors import ClientError
from embermq_client.message import KEY, QUEUE_PREFIX, Message, Pairs, Response, as_bytes, read_message

if TYPE_CHECKING:
    from embermq_client.client import Client

BATCH_MAX = 500
"""Message ids in one control message; the broker takes 1,000."""


class Queue:
    """A queue of the broker. It comes into being with its first use, and `Client.queue` asks nobody."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    @property
    def topic(self) -> str:
        """What any MQTT client publishes to."""
        return QUEUE_PREFIX + self.name

    async def publish(
        self,
        payload: bytes | str,
        *,
        key: str | None = None,
        dedup_id: str | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | None = None,
        expiry_s: int | None = None,
        content_type: str | None = None,
        properties: Pairs = (),
    ) -> None:
        """Enqueue a message; it is durable when this returns.

        `key`: messages of one key are consumed in order, one at a time. `dedup_id`: a message with an id that the queue
        has seen lately is not enqueued again; without one a message is enqueued twice when its confirmation was lost
        with the connection. `delay_s`, `deliver_at`: not before that. `expiry_s`: not after that.
        Raises PublishRefused, Unconfirmed; ValueError for a time without zone.
        """
        asked: list[tuple[str, str]] = list(properties)
        if key is not None:
            asked.append((KEY, key))
        if dedup_id is not None:
            asked.append(("dedup-id", dedup_id))
        if delay_s is not None:
            asked.append(("delay", _seconds(delay_s)))
        if deliver_at is not None:
            asked.append(("deliver-at", str(_unix_ms(deliver_at))))
        more: dict[str, str | int | bytes] = {}
        if expiry_s is not None:
            more["MessageExpiryInterval"] = expiry_s
        if content_type is not None:
            more["ContentType"] = content_type
        await self._client.publish(self.topic, as_bytes(payload), tuple(asked), **more)

    @asynccontextmanager
    async def consume(
        self,
        *,
        group: str | None = None,
        prefetch: int | None = None,
        start: str | int | datetime | None = None,
    ) -> AsyncIterator[Consumer]:
        """Join a consumer group for as long as the block lasts.

        `group` None: the client id up to its first "-". `prefetch`: messages the broker may give before the first is
        settled, None for the queue's own. `start` counts for a group that is new: "earliest" (the default), "latest", a
        sequence, or a time. Raises SubscribeRefused, Unconfirmed; ClientError when this client consumes it already.
        """
        asked: list[tuple[str, str]] = []
        if group is not None:
            asked.append(("consumer-group", group))
        if prefetch is not None:
            asked.append(("prefetch", str(prefetch)))
        if start is not None:
            asked.append(("start-position", _position(start)))
        consumer = Consumer(self, tuple(asked))
        await self._client.attach(self.topic, consumer)
        try:
            yield consumer
        finally:
            await self._client.detach(self.topic, consumer)

    async def request(
        self, payload: bytes | str, *, timeout_s: float, key: str | None = None, properties: Pairs = ()
    ) -> Response:
        """Ask one of the consumers and wait for its reply. The request expires when nobody waits for it any more.

        Raises RequestTimeout, PublishRefused, Unconfirmed.
        """
        pairs = properties if key is None else (*properties, (KEY, key))
        return await self._client.responses.ask(
            self.topic, as_bytes(payload), timeout_s=timeout_s, properties=pairs
        )

    async def ack(self, *messages: Message) -> None:
        """Ack many at once: one packet each 500. Raises SettleRefused, Unconfirmed."""
        await self._settle_all("$ack", messages)

    async def nack(self, *messages: Message, reason: str = "", delay_s: float | None = None) -> None:
        """See `Message.nack`. Raises SettleRefused, Unconfirmed."""
        await self._settle_all("$nack", messages, reason=reason, delay_s=delay_s)

    async def reject(self, *messages: Message, reason: str = "") -> None:
        """See `Message.reject`. Raises SettleRefused, Unconfirmed."""
        await self._settle_all("$reject", messages, reason=reason)

    async def extend(self, *messages: Message) -> None:
        """See `Message.extend`. Raises SettleRefused, Unconfirmed."""
        await self._settle_all("$extend", messages)

    async def _settle_all(
        self, verb: str, messages: Sequence[Message], *, reason: str = "", delay_s: float | None = None
    ) -> None:
        strange = next((message for message in messages if message.queue != self.name), None)
        if strange is not None:
            raise ValueError(f"message {strange.id} is of queue {strange.queue}, not of {self.name}")
        groups: dict[str, list[Message]] = {}
        for message in messages:
            groups.setdefault(message.group, []).append(message)
        for group in groups.values():
            for first in range(0, len(group), BATCH_MAX):
                some = group[first : first + BATCH_MAX]
                await self._client.settle(verb, some, reason=reason, delay_s=delay_s)


class Consumer:
    """Messages as they come: `async for message in consumer`, or `await anext(consumer)`; made by `Queue.consume`.

    What waits here when the connection is lost is forgotten, since the broker gives it out again.
    """

    def __init__(self, queue: Queue, asked: Pairs) -> None:
        self.asked = asked
        self._queue = queue
        self._waiting: deque[Message] = deque()
        self._news = asyncio.Event()
        self._end: ClientError | None = None

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        """The next message. Raises ClientError when the client has ended, or a new connection is refused the queue."""
        while not self._waiting:
            if self._end is not None:
                raise self._end
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()

    def take(self, packet: MQTTMessage) -> None:
        """The connection has brought a delivery."""
        try:
            self._waiting.append(read_message(packet, self._queue._client))
        except ValueError as error:
            self.end(ClientError(f"queue {self._queue.name}: {error}"))
        self._news.set()

    def forget(self) -> None:
        """The connection is gone, and with it the leases of what waits."""
        self._waiting.clear()

    def end(self, error: ClientError) -> None:
        """No more will come."""
        self._end = error
        self._news.set()


def _seconds(delay_s: float) -> str:
    if not 0 <= delay_s < 1e9:
        raise ValueError(f"a delay of {delay_s} s; it is 0 or more")
    return f"{delay_s:.3f}"


def _unix_ms(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone")
    return round(moment.timestamp() * 1_000)


def _position(start: str | int | datetime) -> str:
    if not isinstance(start, datetime):
        return str(start)
    _unix_ms(start)
    return start.astimezone(UTC).isoformat()
