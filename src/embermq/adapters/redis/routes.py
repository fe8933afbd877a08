"""Where an operation goes: to the one node there is, or to the one of a cluster that has its slot."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from embermq.adapters.redis.channel import Channel, Plan
from embermq.adapters.redis.slots import SLOTS, read_slots
from embermq.adapters.redis.wire import Kind, Operation, pack
from embermq.ports.store_node import Node

if TYPE_CHECKING:
    from embermq.adapters.redis.link import RedisLink

LOG = logging.getLogger("embermq.redis")
REFRESH_S = 0.1
"""Between two questions who has which slot."""
REFRESH_AGAIN_S = 0.25
"""The same while a node that has slots does not answer."""
REFRESH_ANSWER_S = 1.0
"""After that another node is asked."""
_SLOTS = pack(("CLUSTER", "SLOTS"))


class Routes(ABC):
    """Which channel an operation takes: the server that has the slot of its keys."""

    @abstractmethod
    def put(self, operation: Operation) -> None:
        """Send it where it belongs, behind all others."""

    @abstractmethod
    def channel_of(self, slot: int) -> Channel | None:
        """Who has a slot, None as long as nobody is known."""

    @abstractmethod
    def channel_at(self, node: Node) -> Channel:
        """The channel to a node by which operations of a slot go."""

    @property
    @abstractmethod
    def failing(self) -> str:
        """What is wrong with a node that is needed."""

    @abstractmethod
    def refresh(self, channel: Channel) -> None:
        """A node said that something has changed."""

    @abstractmethod
    def came(self, channel: Channel) -> None:
        """A channel is connected."""

    @abstractmethod
    def went(self, channel: Channel) -> None:
        """A channel is not connected."""

    @abstractmethod
    async def close(self) -> None:
        """End all connections; returns when they are closed."""


class OneNode(Routes):
    """A single Redis, which has every slot."""

    def __init__(self, plan: Plan, link: RedisLink) -> None:
        (self._node,) = plan.address.nodes
        self._channel = Channel(self._node, plan, link)

    def put(self, operation: Operation) -> None:
        self._channel.put(operation)

    def channel_of(self, slot: int) -> Channel | None:
        return self._channel

    def channel_at(self, node: Node) -> Channel:
        return self._channel

    @property
    def failing(self) -> str:
        return next(_troubles([self._channel]), "")

    def refresh(self, channel: Channel) -> None:
        """Nothing can have changed."""

    def came(self, channel: Channel) -> None:
        """It sends by itself what waits."""

    def went(self, channel: Channel) -> None:
        """It connects again by itself."""

    async def close(self) -> None:
        await self._channel.close()


class ClusterRoutes(Routes):
    """A Redis Cluster: finds its nodes by those of the address, and follows where slots go.

    The nodes of the address are tried again, by name, whenever no other answers.
    """

    def __init__(self, plan: Plan, link: RedisLink) -> None:
        self._plan = plan
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._channels: dict[Node, Channel] = {}
        self._owners: list[Channel | None] = [None] * SLOTS
        self._unrouted: deque[Operation] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._asked_s = float("-inf")
        self._turn = 0
        self._known = False
        self._closing: set[asyncio.Task[None]] = set()
        self._seek()

    def put(self, operation: Operation) -> None:
        channel = self._owners[operation.slot]
        if channel is None:
            self._unrouted.append(operation)
        else:
            channel.put(operation)

    def channel_of(self, slot: int) -> Channel | None:
        return self._owners[slot]

    def channel_at(self, node: Node) -> Channel:
        channel = self._channels.get(node)
        if channel is None:
            channel = self._channels[node] = Channel(node, self._plan, self._link)
        return channel

    @property
    def failing(self) -> str:
        if not self._known:
            return next(_troubles(self._channels.values()), "")
        missing = self._owners.count(None)
        text = next(_troubles(self._in_use()), "")
        return text or (f"no node has {missing} of the {SLOTS} slots" if missing else "")

    def refresh(self, channel: Channel) -> None:
        self._ask_soon(REFRESH_S, channel)

    def came(self, channel: Channel) -> None:
        if not self._known:
            self._ask_soon(0.0, channel)

    def went(self, channel: Channel) -> None:
        self._ask_soon(REFRESH_S, None)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*(channel.close() for channel in self._channels.values()), *self._closing)

    def _seek(self) -> None:
        for node in self._plan.address.nodes:
            self.channel_at(node)

    def _in_use(self) -> set[Channel]:
        return {channel for channel in self._owners if channel is not None}

    def _ask_soon(self, pause_s: float, channel: Channel | None) -> None:
        if self._timer is None:
            due_s = max(self._loop.time(), self._asked_s + pause_s)
            self._timer = self._loop.call_at(due_s, self._ask, channel)

    def _ask(self, channel: Channel | None) -> None:
        """Ask who has which slot: the node that said that something changed, or the next one that is there."""
        self._timer = None
        self._asked_s = self._loop.time()
        ready = [other for other in self._channels.values() if other.is_ready]
        if channel is None or not channel.is_ready:
            if not ready:
                self._seek()
                self._ask_soon(REFRESH_AGAIN_S, None)
                return
            self._turn += 1
            channel = ready[self._turn % len(ready)]
        asked = channel

        def then(answer: object) -> None:
            try:
                self._apply(read_slots(answer, asked.node))
            except ValueError as error:
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                LOG.debug("%s: %s", asked.node, error)
                self._ask_soon(REFRESH_AGAIN_S, None)

        channel.put_first([Operation("", _SLOTS, then, "CLUSTER SLOTS", kind=Kind.OWN)])
        self._timer = self._loop.call_later(REFRESH_ANSWER_S, self._ask, None)

    def _apply(self, masters: dict[int, Node]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        moved: set[int] = set()
        for slot, node in masters.items():
            before, channel = self._owners[slot], self.channel_at(node)
            if before is not None and before is not channel:
                moved.add(slot)
            self._owners[slot] = channel
        self._known = True
        for channel in list(self._channels.values()):
            self._reroute(channel)
        if moved:
            self._link.moved(moved)
        waiting, self._unrouted = self._unrouted, deque()
        for operation in waiting:
            self.put(operation)
        self._retire()
        if not all(channel.is_ready for channel in self._in_use()) or self._unrouted:
            self._ask_soon(REFRESH_AGAIN_S, None)

    def _reroute(self, channel: Channel) -> None:
        """Take from a channel what is not its any more; what is on the way there comes back by its lane."""
        owners = self._owners
        if channel.wire is not None:
            for operation in (*(entry[0] for entry in channel.wire.unsafe), *channel.wire.sent):
                if operation.kind == Kind.PLAIN and owners[operation.slot] is not channel:
                    self._link.hold(operation, channel)
        stays: list[Operation] = []
        for operation in channel.queue:
            if (
                operation.kind == Kind.PROBE
                and not operation.asking
                and owners[operation.slot] is not channel
            ):
                self._link.hold(operation, channel).failed(self._loop.time(), at_once=True)
            elif operation.kind == Kind.PLAIN and owners[operation.slot] is not channel:
                self._link.hold(operation, channel).later.append(operation)
            else:
                stays.append(operation)
        if len(stays) < len(channel.queue):
            channel.queue.clear()
            channel.queue.extend(stays)

    def _retire(self) -> None:
        """Close the channels that nobody needs."""
        in_use = self._in_use()
        for node, channel in list(self._channels.items()):
            if channel not in in_use and channel.is_idle:
                del self._channels[node]
                task = self._loop.create_task(channel.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)


def _troubles(channels: Iterable[Channel]) -> Iterator[str]:
    for channel in channels:
        if channel.failing or channel.shortfall:
            yield f"redis {channel.node}: {channel.failing or channel.shortfall}"
