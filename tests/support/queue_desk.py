"""The desk of queues over the core alone: commits happen when the event loop comes to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from tests.support.queue_bench import Bench

from embermq.admin.queue_desk import QueueDesk
from embermq.model.message import Message
from embermq.ports.errors import StoreError
from embermq.sessions.tick import Tick


class DeskBench(Bench):
    """`failing` commits are refused before one is made."""

    def __init__(
        self, queues_max: int = 100, groups_max: int = 100, check_here: Callable[[str], object] = str
    ) -> None:
        self.tick = Tick()
        self.failing = 0
        self.commits = 0
        self.bodies: dict[int, Message | None] = {}
        self._is_due = False
        super().__init__()
        self.desk = QueueDesk(
            self.queues,
            self.tick,
            self,
            self,
            queues_max=queues_max,
            groups_max=groups_max,
            check_here=check_here,
        )

    # What the desk sees of the broker.

    def look_at_clock(self) -> int:
        self.tick.now_ms = self.now_ms
        return self.now_ms

    def wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._commit)

    def ask(
        self,
        queue: int,
        messages: Sequence[tuple[int, int]],
        then: Callable[[Mapping[int, Message | None] | StoreError], None],
    ) -> None:
        for offset, _ in messages:
            asyncio.get_running_loop().call_soon(then, {offset: self.bodies.get(offset)})

    def _commit(self) -> None:
        self._is_due = False
        self.commits += 1
        batch = self.tick.take()
        deliveries = self.queues.run(self.now_ms)
        writes = self.gathered.take()
        if self.failing:
            self.failing -= 1
            self.gathered.give_back(writes)
            self.tick.give_back(batch)
            self.wake()
            return
        self.rows.apply(writes, self.log_end)
        self.sent += deliveries
        for delivery in deliveries:
            self.queues.written((delivery,), self.now_ms)
        for _, call in batch.after_commit:
            call()
