"""The same for programs without asyncio: every call waits until it is done.

    with SyncClient("broker.example", client_id="mailer-1") as client:
        queue = client.queue("tasks/email")
        queue.publish("hello", key="user-7")
        with queue.consume(concurrency=1) as messages:
            for message in messages:
                message.ack()

A thread with an event loop of its own carries the asyncio client. Calls may come from several threads at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from embermq_client.client import Client
from embermq_client.errors import ClientError
from embermq_client.inbox import Inbox
from embermq_client.message import Message, Pairs, QueueMessage, Response
from embermq_client.queue import Consumer, Queue
from embermq_client.subscription import WAITING_MAX, TopicMessage

T = TypeVar("T")
M = TypeVar("M")
CLOSED = "the client was closed"
ENDING_S = 1.0
"""Until calls that a closed client has not ended are cancelled."""
_VALUES = tuple(part.name for part in fields(QueueMessage))


class _Loop:
    """An event loop on a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="embermq-client", daemon=True)
        self._entry = threading.Lock()
        self._is_closed = False
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry it out there and wait for it; an interrupt of this thread cancels it. Raises ClientError when the
        client was closed."""
        with self._entry:
            if self._is_closed:
                work.close()
                raise ClientError(CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClientError(CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    @contextmanager
    def entered(self, block: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """What `async with` gives, for a `with`."""

        async def enter() -> T:
            return await block.__aenter__()

        async def leave() -> None:
            await block.__aexit__(None, None, None)

        found = self.call(enter())
        try:
            yield found
        finally:
            self.call(leave())

    def close(self) -> None:
        """Once nobody waits for a call any more: on a loop that has stopped they would wait for ever."""
        with self._entry:
            self._is_closed = True
            ending = asyncio.run_coroutine_threadsafe(self._end_calls(), self._loop)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_calls(self) -> None:
        """The client has ended, so most of them end by themselves."""
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        if calls:
            _, left = await asyncio.wait(calls, timeout=ENDING_S)
            for call in left:
                call.cancel()
            if left:
                await asyncio.wait(left)
        await self._loop.shutdown_asyncgens()


class _Taking(Generic[M]):
    """Messages as they come: `for message in ...`, or one of them by `next`."""

    def __init__(self, loop: _Loop, inbox: Inbox[M]) -> None:
        self._loop = loop
        self._inbox = inbox

    def _take(self, timeout_s: float | None) -> M | None:
        async def take() -> M | None:
            try:
                async with asyncio.timeout(timeout_s):
                    return await anext(self._inbox)
            except TimeoutError:
                return None

        return self._loop.call(take())


class SyncClient:
    """See `Client`, which takes the same arguments: `with SyncClient("broker.example") as client`."""

    def __init__(self, host: str = "localhost", port: int = 1883, **options: Any) -> None:
        self._host = host
        self._port = port
        self._options = options
        self._carried: tuple[_Loop, Client] | None = None

    def __enter__(self) -> Self:
        loop = _Loop()
        try:
            self._carried = loop, loop.call(self._open())
        except BaseException:
            loop.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        loop, client = self._inside()
        self._carried = None
        try:
            loop.call(client.__aexit__(kind, error, traceback))
        finally:
            loop.close()

    @property
    def client_id(self) -> str:
        """As the broker knows this client."""
        return self._inside()[1].client_id

    def queue(self, name: str) -> SyncQueue:
        """The queue of this name, with or without the prefix `$queue/`."""
        loop, client = self._inside()
        return SyncQueue(loop, client.queue(name))

    def publish(self, topic: str, payload: bytes | str, user_properties: Pairs = (), **others: Any) -> None:
        """See `Client.publish`."""
        loop, client = self._inside()
        loop.call(client.publish(topic, payload, user_properties, **others))

    @contextmanager
    def subscribe(
        self, topic_filter: str, *, qos: int = 1, waiting_max: int = WAITING_MAX
    ) -> Iterator[SyncSubscription]:
        """See `Client.subscribe`."""
        loop, client = self._inside()
        with loop.entered(client.subscribe(topic_filter, qos=qos, waiting_max=waiting_max)) as found:
            yield SyncSubscription(loop, found)

    def request(self, queue: str, payload: bytes | str, *, timeout_s: float) -> Response:
        """See `Queue.request`."""
        return self.queue(queue).request(payload, timeout_s=timeout_s)

    async def _open(self) -> Client:
        return await Client(self._host, self._port, **self._options).__aenter__()

    def _inside(self) -> tuple[_Loop, Client]:
        if self._carried is None:
            raise RuntimeError("the client is not connected; use it in a with block")
        return self._carried


class SyncQueue:
    """See `Queue`."""

    def __init__(self, loop: _Loop, queue: Queue) -> None:
        self._loop = loop
        self._queue = queue

    @property
    def name(self) -> str:
        """Without `$queue/`."""
        return self._queue.name

    def publish(self, payload: bytes | str, **asked: Any) -> None:
        """See `Queue.publish`, which takes the same arguments."""
        self._loop.call(self._queue.publish(payload, **asked))

    @contextmanager
    def consume(
        self,
        *,
        group: str | None = None,
        prefetch: int | None = None,
        start: str | int | datetime | None = None,
        concurrency: int | None = None,
        lease_s: float = 30.0,
    ) -> Iterator[SyncConsumer]:
        """See `Queue.consume`; with a concurrency, as many threads take messages from the consumer."""
        block = self._queue.consume(
            group=group, prefetch=prefetch, start=start, concurrency=concurrency, lease_s=lease_s
        )
        with self._loop.entered(block) as found:
            yield SyncConsumer(self._loop, found)

    def request(self, payload: bytes | str, *, timeout_s: float, **asked: Any) -> Response:
        """See `Queue.request`."""
        return self._loop.call(self._queue.request(payload, timeout_s=timeout_s, **asked))

    def ack(self, *messages: SyncMessage) -> None:
        """See `Queue.ack`."""
        self._loop.call(self._queue.ack(*(message._message for message in messages)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncMessage(QueueMessage):
    """See `Message`."""

    _message: Message = field(repr=False, compare=False)
    _loop: _Loop = field(repr=False, compare=False)

    def ack(self) -> None:
        """See `Message.ack`."""
        self._loop.call(self._message.ack())

    def nack(self, reason: str = "", *, delay_s: float | None = None) -> None:
        """See `Message.nack`."""
        self._loop.call(self._message.nack(reason, delay_s=delay_s))

    def reject(self, reason: str = "") -> None:
        """See `Message.reject`."""
        self._loop.call(self._message.reject(reason))

    def extend(self) -> None:
        """See `Message.extend`."""
        self._loop.call(self._message.extend())

    def reply(self, payload: bytes | str, *, properties: Pairs = ()) -> None:
        """See `Message.reply`."""
        self._loop.call(self._message.reply(payload, properties=properties))


class SyncConsumer(_Taking[Message]):
    """See `Consumer`; made by `SyncQueue.consume`."""

    def __init__(self, loop: _Loop, consumer: Consumer) -> None:
        super().__init__(loop, consumer)

    def __iter__(self) -> Iterator[SyncMessage]:
        while (message := self.next()) is not None:
            yield message

    def next(self, timeout_s: float | None = None) -> SyncMessage | None:
        """The next message; None when none comes in time. Raises ClientError as `Consumer` does."""
        message = self._take(timeout_s)
        if message is None:
            return None
        values = {name: getattr(message, name) for name in _VALUES}
        return SyncMessage(**values, _message=message, _loop=self._loop)


class SyncSubscription(_Taking[TopicMessage]):
    """See `TopicSubscription`; made by `SyncClient.subscribe`."""

    def __iter__(self) -> Iterator[TopicMessage]:
        while (message := self.next()) is not None:
            yield message

    def next(self, timeout_s: float | None = None) -> TopicMessage | None:
        """The next message; None when none comes in time. Raises ClientError."""
        return self._take(timeout_s)
