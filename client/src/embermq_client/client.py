"""The client: one connection at a time, made anew when it is lost, and who consumes what over it."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar
from uuid import uuid4

from paho.mqtt.client import MQTTMessage, topic_matches_sub

from embermq_client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    PublishRefused,
    ReplyImpossible,
    SettleRefused,
    SubscribeRefused,
    Unconfirmed,
)
from embermq_client.link import PUBLISH, SUBSCRIBE, Answer, Link, Options, check_text, properties_of
from embermq_client.message import (
    CORRELATION_ID,
    QUEUE_PREFIX,
    RESPONSE_PREFIX,
    Message,
    Pairs,
    Response,
    as_bytes,
)
from embermq_client.queue import Queue
from embermq_client.responses import Responses
from embermq_client.subscription import WAITING_MAX, TopicSubscription

LOG = logging.getLogger("embermq_client")
T = TypeVar("T")
REASON_CHARACTERS_MAX = 256
NACK, EXTEND = "$nack", "$extend"
SHARED = "$share/"
GONE = Answer(0x87, "the connection that it came over is gone, and that was its failure")
"""What the broker says of a message that is not this client's any more."""


class Receiver(Protocol):
    """Who gets what comes on one topic."""

    asked: Pairs
    """User properties of its SUBSCRIBE."""
    qos: int
    identifier: int
    """The broker gives it back with each message; 0 for what comes on one topic."""

    def take(self, packet: MQTTMessage) -> None:
        """A PUBLISH has come."""

    def settled(self, messages: Sequence[Message]) -> None:
        """Somebody has settled these, or tried to."""

    def forget(self) -> None:
        """The connection is gone."""

    def end(self, error: ClientError) -> None:
        """Nothing will come any more."""


class Client:
    """A connection to an EmberMQ broker, over MQTT 5: `async with Client("broker.example") as client`.

    Entering the block connects once and raises ConnectFailed when that fails. From then on a lost connection is made
    anew, with growing pauses up to `reconnect_s_max`, and consumers go on over the next one. A refusal that would come
    again, such as that of a password, ends the client: whoever waits for it gets ConnectRefused. What waits for the
    broker's confirmation is sent again there, for `confirm_timeout_s` at most: a message may then be enqueued twice,
    unless it has a `dedup_id`. Two clients with one `client_id` push each other out; the one pushed out ends.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 1883,
        *,
        client_id: str | None = None,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        keepalive_s: int = 30,
        connect_timeout_s: float = 10.0,
        confirm_timeout_s: float = 30.0,
        reconnect_s_max: float = 5.0,
    ) -> None:
        self._options = Options(
            host=host,
            port=port,
            client_id=client_id or f"python-{uuid4().hex[:12]}",
            username=username,
            password=password,
            tls=tls,
            keepalive_s=keepalive_s,
            connect_timeout_s=connect_timeout_s,
        )
        self._confirm_timeout_s = confirm_timeout_s
        self._reconnect_s_max = reconnect_s_max
        self._receivers: dict[str, Receiver] = {}
        self._identifiers = count(1)
        self._subscribed: set[str] = set()
        """Topics whose SUBSCRIBE was answered: a new connection asks for them again."""
        self._link: Link | None = None
        self._is_up = asyncio.Event()
        self._end: ClientError | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self.connection = 0
        """The number of the newest connection: only what came over it is this client's still."""
        self.responses = Responses(self)
        self.reconnects = 0
        """Connections that were made after the first."""

    @property
    def client_id(self) -> str:
        """As the broker knows this client."""
        return self._options.client_id

    async def __aenter__(self) -> Self:
        self._take_up(await self._open())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._finish(ClientError("the client was closed"))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait((self._reconnecting,))
        if self._link is not None:
            self._link.close()

    def queue(self, name: str) -> Queue:
        """The queue of this name, with or without the prefix `$queue/`."""
        return Queue(self, name)

    async def request(self, queue: str, payload: bytes | str, *, timeout_s: float) -> Response:
        """See `Queue.request`."""
        return await self.queue(queue).request(payload, timeout_s=timeout_s)

    async def publish(
        self,
        topic: str,
        payload: bytes | str,
        user_properties: Pairs = (),
        *,
        qos: int = 1,
        retain: bool = False,
        **others: str | int | bytes,
    ) -> None:
        """Publish to any topic and, at QoS 1, wait for the confirmation; at QoS 0 there is none. `others` are
        properties by paho's names, such as `ContentType`. QoS 2 is not offered: what is sent again after a lost
        connection is a new message.

        Raises PublishRefused, Unconfirmed; ValueError for another QoS.
        """
        if qos not in (0, 1):
            raise ValueError(f"qos is {qos}; it is 0 or 1")
        check_text("the topic", topic)
        properties = properties_of(PUBLISH, user_properties, **others)
        data = as_bytes(payload)
        answer = await self._repeat(
            lambda link: link.publish(topic, data, properties, qos=qos, retain=retain)
        )
        if answer.is_refusal:
            raise PublishRefused(topic, answer.code, answer.reason)

    @asynccontextmanager
    async def subscribe(
        self, topic_filter: str, *, qos: int = 1, waiting_max: int = WAITING_MAX
    ) -> AsyncIterator[TopicSubscription]:
        """Receive what is published to the topics of a filter, `$share/...` too, for as long as the block lasts. Queues
        have `Queue.consume`. The subscription is made again over a new connection; what was published meanwhile does
        not come. `waiting_max`: see `TopicSubscription`.

        Raises SubscribeRefused, Unconfirmed; ClientError when this client has subscribed to it already; ValueError.
        """
        if qos not in (0, 1, 2):
            raise ValueError(f"qos is {qos}; it is 0, 1 or 2")
        if _plain(topic_filter).startswith(QUEUE_PREFIX):
            raise ValueError(f"{topic_filter!r} is a queue: Client.queue(...).consume() settles its messages")
        check_text("the topic filter", topic_filter)
        subscription = TopicSubscription(next(self._identifiers), qos, waiting_max)
        await self.attach(topic_filter, subscription)
        try:
            yield subscription
        finally:
            await self.detach(topic_filter, subscription)

    async def settle(
        self, verb: str, messages: Sequence[Message], *, reason: str = "", delay_s: float | None = None
    ) -> None:
        """Of one queue and one group; `Message` and `Queue` have a method for each verb. Raises SettleRefused,
        Unconfirmed."""
        asked = [("group-id", messages[0].group)]
        if reason:
            asked.append(("reason", _sayable(reason)))
        if delay_s is not None:
            asked.append(("delay", f"{delay_s:.3f}"))
        topic = f"{QUEUE_PREFIX}{messages[0].queue}/{verb}"

        async def operation(link: Link) -> Answer:
            some = messages
            if verb == NACK:  # it has come again meanwhile, and would fail twice for one reason
                some = self._own(messages)
            if not some:
                return GONE
            pairs = (*(("message-id", message.id) for message in some), *asked)
            told = await link.publish(topic, b"", properties_of(PUBLISH, pairs))
            return told if told.is_refusal or len(some) == len(messages) else GONE

        try:
            answer = await self._repeat(operation)
        finally:
            receiver = self._receivers.get(QUEUE_PREFIX + messages[0].queue)
            if receiver is not None and verb != EXTEND:
                receiver.settled(self._own(messages) if verb == NACK else messages)
        if answer.is_refusal:
            what = (
                f"{verb} of {messages[0].id}" if len(messages) == 1 else f"{verb} of {len(messages)} messages"
            )
            raise SettleRefused(what, answer.code, answer.reason)

    def _own(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Those that came over the newest connection."""
        return [message for message in messages if message.connection == self.connection]

    async def answer(self, message: Message, payload: bytes, properties: Pairs) -> None:
        """Reply to a request; `Message.reply` is the way to it. Raises ReplyImpossible, PublishRefused, Unconfirmed."""
        topic = message.response_topic
        if topic is None:
            raise ReplyImpossible(f"message {message.id} asks for no reply")
        if not topic.startswith(RESPONSE_PREFIX):  # who asks must not borrow our right to publish
            raise ReplyImpossible(
                f"message {message.id}: response topic {topic[:80]!r} is not below {RESPONSE_PREFIX}"
            )
        pairs = properties + tuple(pair for pair in message.properties if pair[0] == CORRELATION_ID)
        more: dict[str, Any] = {}
        if message.correlation is not None:
            more["CorrelationData"] = message.correlation
        await self.publish(topic, payload, pairs, **more)

    async def attach(self, topic: str, receiver: Receiver) -> None:
        """Subscribe until `detach`, over all connections. Raises SubscribeRefused, Unconfirmed."""
        if self._end is not None:
            raise self._end
        if topic in self._receivers:
            raise ClientError(
                f"this client consumes {topic} already; a second consumer needs a client of its own"
            )
        self._receivers[topic] = receiver
        try:
            await self._repeat(lambda link: self._subscribe(link, topic, receiver))
        except BaseException as error:
            self._receivers.pop(topic, None)
            if self._link is not None and not isinstance(error, SubscribeRefused):
                self._link.leave(topic)  # the broker may have taken it; nobody would settle what it sends
            raise
        self._subscribed.add(topic)

    async def detach(self, topic: str, receiver: Receiver) -> None:
        """Unsubscribe; the broker gives what is not settled to others. Without a connection there is nothing to do, nor
        when `receiver` is not attached any more."""
        if self._receivers.get(topic) is not receiver:
            return
        del self._receivers[topic]
        self._subscribed.discard(topic)
        link = self._link
        if link is None or not link.is_open:
            return
        try:
            async with asyncio.timeout(self._confirm_timeout_s):
                await link.unsubscribe(topic)
        except (ConnectionLost, TimeoutError):
            LOG.info("%s: no answer to UNSUBSCRIBE; the consumer leaves with the connection", topic)

    async def _subscribe(self, link: Link, topic: str, receiver: Receiver) -> None:
        more: dict[str, int] = {}
        if receiver.identifier and link.has_identifiers:
            more["SubscriptionIdentifier"] = receiver.identifier
        properties = properties_of(SUBSCRIBE, receiver.asked, **more)
        answer = await link.subscribe(topic, properties, qos=receiver.qos)
        if answer.is_refusal:
            raise SubscribeRefused(topic, answer.code, answer.reason)

    async def _repeat(self, operation: Callable[[Link], Awaitable[T]]) -> T:
        """Carry it out on this connection, and on the next when it was lost before the answer came."""
        try:
            async with asyncio.timeout(self._confirm_timeout_s):
                while True:
                    link = await self._connected()
                    try:
                        return await operation(link)
                    except ConnectionLost:
                        await asyncio.sleep(0)
        except TimeoutError:
            raise Unconfirmed(f"no confirmation in {self._confirm_timeout_s:g} s") from None

    async def _connected(self) -> Link:
        while True:
            if self._end is not None:
                raise self._end
            if self._link is not None and self._link.is_open:
                return self._link
            await self._is_up.wait()

    async def _open(self) -> Link:
        self.connection += 1
        link = Link(self._options, self._take, self._lost)
        await link.open()
        return link

    def _take(self, packet: MQTTMessage) -> None:
        """To whom it is for: by the identifiers that the broker gives back, else by the topic."""
        identifiers = getattr(packet.properties, "SubscriptionIdentifier", ())
        if not identifiers and (receiver := self._receivers.get(packet.topic)) is not None:
            receiver.take(packet)
            return
        for topic_filter, receiver in tuple(self._receivers.items()):
            if (
                receiver.identifier in identifiers
                if identifiers
                else receiver.identifier and topic_matches_sub(_plain(topic_filter), packet.topic)
            ):
                receiver.take(packet)

    def _take_up(self, link: Link) -> None:
        self._link = link
        self._is_up.set()

    def _lost(self, link: Link, error: Exception) -> None:
        if link is not self._link or self._end is not None:
            return
        self._is_up.clear()
        self._forget()
        if isinstance(error, ClientError) and not isinstance(error, ConnectionLost):
            self._finish(error)
            return
        LOG.warning("%s", error)
        self._reconnecting = asyncio.ensure_future(self._reconnect())
        self._reconnecting.add_done_callback(self._reconnected)

    def _forget(self) -> None:
        for receiver in self._receivers.values():
            receiver.forget()

    def _reconnected(self, task: asyncio.Task[None]) -> None:
        """Nobody waits for this task, and whoever waits for a connection would wait for ever after a fault in it."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ConnectRefused):
            self._finish(error)
        elif error is not None:
            self._finish(ConnectFailed(f"there will be no new connection: {error!r}"))

    async def _reconnect(self) -> None:
        """Until a connection stands and everything is subscribed to again. Raises ConnectRefused for a refusal that
        would come again."""
        pause_s = 0.05
        while True:
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # many clients do not all come at once
            pause_s = min(pause_s * 2, self._reconnect_s_max)
            try:
                link = await self._open()
            except ConnectFailed as error:
                if isinstance(error, ConnectRefused) and error.is_lasting:
                    raise
                LOG.info("%s", error)
                continue
            try:
                await self._subscribe_again(link)
            except ConnectionLost as error:
                LOG.info("%s", error)
            except (
                BaseException
            ):  # cancelled: it is not the client's link yet, and nobody else would close it
                link.close()
                raise
            if link.is_open:
                self.reconnects += 1
                self._take_up(link)
                return
            self._forget()  # what it brought before it was lost

    async def _subscribe_again(self, link: Link) -> None:
        asked: list[tuple[str, Receiver]] = []
        for topic, receiver in tuple(self._receivers.items()):
            if topic not in self._subscribed or self._receivers.get(topic) is not receiver:
                continue
            asked.append((topic, receiver))
            try:
                await self._subscribe(link, topic, receiver)
            except SubscribeRefused as error:
                self._subscribed.discard(topic)
                if self._receivers.get(topic) is receiver:
                    del self._receivers[topic]
                receiver.end(error)
        for topic, receiver in asked:
            if self._receivers.get(topic) is not receiver:  # detached meanwhile
                link.leave(topic)

    def _finish(self, error: ClientError) -> None:
        self._end = error
        self._is_up.set()
        for receiver in tuple(self._receivers.values()):
            receiver.end(error)


def _plain(topic_filter: str) -> str:
    """A filter without `$share` and its group."""
    return topic_filter.split("/", 2)[-1] if topic_filter.startswith(SHARED) else topic_filter


def _sayable(reason: str) -> str:
    """As a text of MQTT: reasons are often errors, which may hold anything. The broker keeps 256 characters."""
    cut = reason[:REASON_CHARACTERS_MAX].replace("\0", "\ufffd")
    return cut.encode(errors="replace").decode()
