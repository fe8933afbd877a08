"""What has come and nobody has taken yet."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Self, TypeVar

from embermq_client.errors import ClientError

T = TypeVar("T")


class Inbox(Generic[T]):
    """Messages as they come: `async for message in inbox`, or `await anext(inbox)`, in one task or in several."""

    def __init__(self) -> None:
        self._waiting: deque[T] = deque()
        self._news = asyncio.Event()
        self._end: ClientError | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """The next message. Raises ClientError when the client has ended, or a new connection is refused the topic."""
        while not self._waiting:
            if self._end is not None:
                raise self._end
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()

    def end(self, error: ClientError) -> None:
        """No more will come."""
        self._end = error
        self._news.set()

    def _put(self, message: T) -> None:
        self._waiting.append(message)
        self._news.set()
