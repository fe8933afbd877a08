"""Membership of several nodes in one process, by one clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from threading import RLock

from msgspec import Struct

from embermq.ports.membership import (
    ClusterView,
    MemberRefused,
    Membership,
    NodeAbout,
    NodeLease,
    NodeView,
    SharedTexts,
)


class _Registration(Struct):
    about: NodeAbout
    slots: tuple[int, ...]
    ends_s: float
    ttl_s: float


class MembershipInMemory(Membership):
    """Leases end by `clock`, when somebody asks."""

    place = ""

    def __init__(self, name: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._lock = RLock()
        self._by_lease: dict[int, _Registration] = {}
        self._last = 0
        self._watchers: list[Callable[[ClusterView], None]] = []

    def join(self, about: NodeAbout, slots: Sequence[int], ttl_s: float) -> NodeLease:
        with self._lock:
            self._end_leases()
            for one in self._by_lease.values():
                if one.about.node == about.node or not set(slots).isdisjoint(one.slots):
                    raise MemberRefused(self.view().nodes)
            self._last += 1
            self._by_lease[self._last] = _Registration(about, tuple(slots), self._clock() + ttl_s, ttl_s)
            self._tell()
            return NodeLease(self._last, ttl_s)

    def claim(self, lease: NodeLease, about: NodeAbout, slots: Sequence[int]) -> None:
        with self._lock:
            self._end_leases()
            found = self._by_lease.get(lease.id)
            others = [one for one in self._by_lease.values() if one is not found]
            if found is None or any(not set(slots).isdisjoint(one.slots) for one in others):
                raise MemberRefused(self.view().nodes)
            found.slots = tuple(sorted({*found.slots, *slots}))
            self._tell()

    def renew(self, lease: NodeLease, timeout_s: float) -> float:
        with self._lock:
            self._end_leases()
            found = self._by_lease.get(lease.id)
            if found is None:
                return 0.0
            found.ends_s = self._clock() + found.ttl_s
            return found.ttl_s

    def leave(self, lease: NodeLease) -> None:
        with self._lock:
            if self._by_lease.pop(lease.id, None) is not None:
                self._tell()

    def view(self) -> ClusterView:
        with self._lock:
            self._end_leases()
            now_s = self._clock()
            nodes = [
                NodeView(
                    about=one.about,
                    epoch=epoch,
                    lease_left_s=None if math.isinf(one.ends_s) else one.ends_s - now_s,
                    slots=one.slots,
                )
                for epoch, one in self._by_lease.items()
            ]
            return ClusterView(
                name=self.name, place="", nodes=sorted(nodes, key=lambda node: node.about.node)
            )

    def watch(self, changed: Callable[[ClusterView], None]) -> None:
        with self._lock:
            self._watchers.append(changed)
            changed(self.view())

    def secret(self) -> bytes:
        return b""

    def texts(self, kind: str) -> SharedTexts | None:
        return None

    def close(self) -> None:
        self._watchers.clear()

    def _end_leases(self) -> None:
        now_s = self._clock()
        over = [lease for lease, one in self._by_lease.items() if one.ends_s <= now_s]
        for lease in over:
            del self._by_lease[lease]
        if over:
            self._tell()

    def _tell(self) -> None:
        for changed in self._watchers:
            changed(self.view())
