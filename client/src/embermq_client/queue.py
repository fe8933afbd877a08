"""A queue by its name: publishing to it, consuming it, asking who consumes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import MQTTMessage

from embermq_client.errors import ClientError, SettleRefused
from embermq_client.inbox import Inbox
from embermq_client.message import KEY, QUEUE_PREFIX, Message, Pairs, Response, as_bytes, read_message

if TYPE_CHECKING:
    from embermq_client.client import Client

LOG = logging.getLogger("embermq_client")
EXTENDED_AFTER = 1 / 3
"""Of a lease: it may fail to be extended once, and the broker's answer may be late."""
BATCH_MAX = 500
"""Message ids in one control message; the broker takes 1,000."""
CONCURRENCY_MAX = 65_535
"""As many messages as a consumer may have at all."""


class Queue:
    """A queue of the broker. It comes into being with its first use, and `Client.queue` asks nobody."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name.removeprefix(QUEUE_PREFIX)

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
        more: dict[str, Any] = {}
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
        concurrency: int | None = None,
        lease_s: float = 30.0,
    ) -> AsyncIterator[Consumer]:
        """Join a consumer group for as long as the block lasts.

        `group` None: the client id up to its first "-". `prefetch`: messages the broker may give before the first is
        settled, None for the queue's own. `start` counts for a group that is new: "earliest" (the default), "latest", a
        sequence, or a time.

        `concurrency`: so many messages are worked on at a time, by as many tasks that take them from the consumer. The
        broker is told, leases run for that many, the oldest first, and they are extended until the message is settled,
        for as long as this program lives. `lease_s` is the queue's `performance.delivery_timeout`. None: the broker's
        lease of one message at a time runs, and nothing extends it but `Message.extend`.

        Raises SubscribeRefused, Unconfirmed; ClientError when this client consumes it already; ValueError.
        """
        if concurrency is not None and not 1 <= concurrency <= CONCURRENCY_MAX:
            raise ValueError(f"a concurrency of {concurrency}; it is 1 to {CONCURRENCY_MAX}")
        if not lease_s > 0:
            raise ValueError(f"a lease of {lease_s} s; it is more than 0")
        asked: list[tuple[str, str]] = []
        if group is not None:
            asked.append(("consumer-group", group))
        if prefetch is not None:
            asked.append(("prefetch", str(prefetch)))
        if start is not None:
            asked.append(("start-position", _position(start)))
        if concurrency is not None:
            asked.append(("concurrency", str(concurrency)))
        consumer = Consumer(self, tuple(asked))
        await self._client.attach(self.topic, consumer)
        extending = None
        if concurrency is not None:
            extending = asyncio.ensure_future(consumer.extend_leases(concurrency, lease_s * EXTENDED_AFTER))
        try:
            yield consumer
        finally:
            if extending is not None:
                extending.cancel()
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


class Consumer(Inbox[Message]):
    """Messages as they come: `async for message in consumer`, or `await anext(consumer)`; made by `Queue.consume`.

    What waits here when the connection is lost is forgotten, since the broker gives it out again.
    """

    qos = 1
    identifier = 0

    def __init__(self, queue: Queue, asked: Pairs) -> None:
        super().__init__()
        self.asked = asked
        self._queue = queue
        self._held: dict[str, Message] = {}
        """By id: taken and not settled, in their order."""

    async def __anext__(self) -> Message:
        """The next message. Raises ClientError when the client has ended, or a new connection is refused the queue."""
        message = await super().__anext__()
        self._held[message.id] = message
        return message

    def take(self, packet: MQTTMessage) -> None:
        """The connection has brought a delivery."""
        try:
            self._put(read_message(packet, self._queue._client))
        except ValueError as error:
            self.end(ClientError(f"queue {self._queue.name}: {error}"))

    def settled(self, messages: Sequence[Message]) -> None:
        """These are done with, whatever the broker said."""
        for message in messages:
            self._held.pop(message.id, None)

    def forget(self) -> None:
        """The connection is gone, and with it the leases of what it brought."""
        self._waiting.clear()
        self._held.clear()

    async def extend_leases(self, count: int, every_s: float) -> None:
        """Until it is cancelled: of the oldest `count` messages, which are those whose leases run."""
        while True:
            await asyncio.sleep(every_s)
            oldest = tuple(islice(chain(self._held.values(), self._waiting), count))
            try:
                await self._queue.extend(*oldest)
            except SettleRefused:
                await self._extend_singly(oldest)
            except ClientError as error:
                LOG.info("queue %s: leases were not extended: %s", self._queue.name, error)

    async def _extend_singly(self, messages: Sequence[Message]) -> None:
        """One of them is not this client's any more: which one, the answer for all does not tell."""
        for message in messages:
            try:
                await message.extend()
            except SettleRefused as error:
                LOG.info("queue %s: %s", self._queue.name, error)
                self._held.pop(message.id, None)
                with suppress(ValueError):
                    self._waiting.remove(message)
            except ClientError as error:
                LOG.info("queue %s: leases were not extended: %s", self._queue.name, error)


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
