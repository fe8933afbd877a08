"""Nodes that want one slot, in one process: each with a clock that runs at its own rate, pauses and a bad network."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random

from embermq.adapters.alone.membership import MembershipAlone
from embermq.cluster.kept_lease import KeptLease
from embermq.ports.membership import MemberRefused, NodeAbout, NodeLease

TTL_S = 5.0
PAUSE_S_MAX = 12.0
DELAY_S_MAX = 2.0
RETRY_S = 0.5
SLOT = 0


class World:
    """True time, what happens when, and the one service. `faults` can be ended."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_s = 0.0
        self.faults = True
        self.service = MembershipAlone("sim", lambda: self.now_s)
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        heappush(self._events, (self.now_s + delay_s, next(self._numbers), call))

    def run_until(self, end_s: float) -> None:
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, call = heappop(self._events)
            call()
        self.now_s = end_s

    def delay_s(self) -> float:
        """Of one message; mostly short."""
        slow = self.faults and self.random.random() < 0.2
        return self.random.uniform(0.0, DELAY_S_MAX if slow else 0.02)

    def is_lost(self) -> bool:
        return self.faults and self.random.random() < 0.2

    def holder(self) -> NodeAbout | None:
        """Who has the slot, as the service knows."""
        return next((each.about for each in self.service.view().nodes if SLOT in each.slots), None)


class SimulatedNode:
    """Joins, renews, answers clients, is paused, and begins anew when its lease may be over. `act` is called when it
    answers clients."""

    def __init__(
        self, world: World, name: str, lease: type[KeptLease], act: Callable[[NodeAbout], None]
    ) -> None:
        self._world = world
        self._name = name
        self._rate = world.random.uniform(0.94, 1.06)
        self._offset_s = world.random.uniform(0.0, 1_000.0)
        self._lease_kind = lease
        self._act = act
        self._paused_until_s = 0.0
        self._runs = 0
        self._asked = 0
        self.kept: KeptLease | None = None
        self._lease = NodeLease(0, 0.0)
        self.about = self._new_about()
        self._join()
        self._later(0.1, self._answer_client)
        world.after(world.random.uniform(0.0, 10.0), self._pause)

    def _new_about(self) -> NodeAbout:
        self._runs += 1
        return NodeAbout(node=self._name, version="0", started=str(self._runs), host=self._name)

    def clock_s(self) -> float:
        return self._world.now_s * self._rate + self._offset_s

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        """In seconds of its own clock; later, when it is paused then."""
        self._world.after(delay_s / self._rate, lambda: self._when_running(call))

    def _when_running(self, call: Callable[[], None]) -> None:
        wait_s = self._paused_until_s - self._world.now_s
        if wait_s > 0:
            self._world.after(wait_s, lambda: self._when_running(call))
        else:
            call()

    def _pause(self) -> None:
        if self._world.faults:
            self._paused_until_s = self._world.now_s + self._world.random.uniform(0.0, PAUSE_S_MAX)
            self._world.after(self._world.random.uniform(0.0, 3 * PAUSE_S_MAX), self._pause)

    def _ask(
        self, question: Callable[[], object], timeout_s: float, answered: Callable[[object], None]
    ) -> None:
        """One of a request, an answer or both may be lost; the first of answer and time-out counts."""
        self._asked += 1
        number, world = self._asked, self._world

        def once(answer: object) -> None:
            if self._asked == number:
                self._asked += 1
                answered(answer)

        def serve() -> None:
            answer = question()
            if not world.is_lost():
                world.after(world.delay_s(), lambda: self._when_running(lambda: once(answer)))

        if not world.is_lost():
            world.after(world.delay_s(), serve)
        self._later(max(0.01, timeout_s), lambda: once(None))

    def _join(self) -> None:
        asked_s, about = self.clock_s(), self.about

        def joined(answer: object) -> None:
            if isinstance(answer, NodeLease):
                self._lease, self.kept = answer, self._lease_kind(asked_s, answer.ttl_s)
                self._renew()
            else:
                self.about = self._new_about()
                self._later(RETRY_S, self._join)

        self._ask(lambda: self._try_to_join(about), TTL_S, joined)

    def _try_to_join(self, about: NodeAbout) -> NodeLease | None:
        try:
            return self._world.service.join(about, (SLOT,), TTL_S)
        except MemberRefused:
            return None

    def _renew(self) -> None:
        kept, lease, asked_s = self.kept, self._lease, self.clock_s()
        assert kept is not None
        if not kept.is_certain(asked_s):
            self._end()
            return
        if asked_s < kept.due_s:
            self._later(max(0.001, kept.due_s - asked_s), self._renew)
            return

        def renewed(answer: object) -> None:
            if isinstance(answer, float):
                kept.renewed(asked_s, answer)
            self._renew()

        self._ask(lambda: self._world.service.renew(lease, 1.0), kept.timeout_s(asked_s), renewed)

    def _end(self) -> None:
        self.kept, self.about = None, self._new_about()
        self._later(RETRY_S, self._join)

    def _answer_client(self) -> None:
        self._later(self._world.random.uniform(0.0, 0.2), self._answer_client)
        if self.kept is not None and self.kept.is_certain(self.clock_s()):
            self._act(self.about)
