"""An etcd of the simulation, as `ports.membership` has it: leases that end by its clock, and who has which slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from tests.simulation.loop import Process, SimulatedLoop, context_of, current_process

from embermq.ports.errors import StoreUnavailable
from embermq.ports.membership import (
    ClusterView,
    MemberRefused,
    Membership,
    NodeAbout,
    NodeLease,
    NodeView,
    SharedTexts,
)

MACHINE = "etcd"
"""Nodes may be cut off from it."""
SECRET = b"of the nodes"
LOOK_AGAIN_S = 0.2
Changed = Callable[[ClusterView], None]


class _Registered(Struct):
    about: NodeAbout
    lease: NodeLease
    ends_s: float
    slots: tuple[int, ...]


class SimulatedEtcd:
    """`away`: it answers nobody, and its clock goes on. `loses_answers`: so many are done and not answered."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.away = False
        self.loses_answers = 0
        self._nodes: dict[str, _Registered] = {}
        self._leases = 0
        self._watchers: list[SimulatedMembership] = []

    def reaches(self, process: Process) -> bool:
        """Whether it hears a process and is heard."""
        loop, here = self.loop, process.machine
        return not (self.away or loop.is_cut(here, MACHINE) or loop.is_cut(MACHINE, here))

    def view(self) -> ClusterView:
        """Who is there now."""
        self._end_leases()
        nodes = [
            NodeView(
                about=one.about,
                epoch=one.lease.id,
                lease_left_s=one.ends_s - self.loop.now_s,
                slots=one.slots,
            )
            for one in self._nodes.values()
        ]
        return ClusterView(name="cars", place=MACHINE, nodes=nodes)

    def join(self, about: NodeAbout, slots: Sequence[int], ttl_s: float) -> NodeLease:
        """Register a node."""
        nodes = self.view().nodes
        if about.node in self._nodes or _taken(nodes, slots):
            raise MemberRefused(nodes)
        self._leases += 1
        lease = NodeLease(self._leases, ttl_s)
        self._nodes[about.node] = _Registered(about, lease, self.loop.now_s + ttl_s, tuple(slots))
        self._change()
        return lease

    def claim(self, lease: NodeLease, slots: Sequence[int]) -> None:
        """Give slots to a node that is there."""
        found, nodes = self._of(lease), self.view().nodes
        if found is None or _taken(nodes, slots):
            raise MemberRefused(nodes)
        found.slots = tuple(slots)
        self._change()

    def renew(self, lease: NodeLease) -> float:
        """Seconds that it lasts from now on."""
        self._end_leases()
        found = self._of(lease)
        if found is None:
            return 0.0
        found.ends_s = self.loop.now_s + lease.ttl_s
        return lease.ttl_s

    def forget(self, node: str) -> None:
        """A node's lease ends: it said so, or an operator has deleted its keys."""
        if self._nodes.pop(node, None) is not None:
            self._change()

    def leave(self, lease: NodeLease) -> None:
        """A node goes."""
        found = self._of(lease)
        if found is not None:
            self.forget(found.about.node)

    def watch(self, watcher: SimulatedMembership) -> None:
        """Tell it of every change."""
        self._watchers.append(watcher)

    def look(self) -> None:
        """End what is over; again and again, for the whole run."""
        self._end_leases()
        self.loop.call_later(LOOK_AGAIN_S, self.look, context=self.loop.bare)

    def _of(self, lease: NodeLease) -> _Registered | None:
        return next((one for one in self._nodes.values() if one.lease is lease), None)

    def _end_leases(self) -> None:
        now_s = self.loop.now_s
        for name, one in list(self._nodes.items()):
            if one.ends_s <= now_s:
                self.forget(name)

    def _change(self) -> None:
        self._watchers = [one for one in self._watchers if not one.process.is_dead]
        for watcher in self._watchers:
            watcher.has_news()


def _taken(nodes: Sequence[NodeView], slots: Sequence[int]) -> bool:
    return any(slot in node.slots for node in nodes for slot in slots)


class SimulatedMembership(Membership):
    """Of the process that makes it."""

    name = "cars"
    place = MACHINE

    def __init__(self, etcd: SimulatedEtcd) -> None:
        process = current_process()
        assert process is not None, "a broker runs in a process"
        self.process = process
        self._etcd = etcd
        self._context = context_of(process)
        self._changed: Changed | None = None
        self._has_news = False

    def _begin(self) -> SimulatedEtcd:
        self.process.step()
        if not self._etcd.reaches(self.process):
            raise StoreUnavailable("etcd does not answer")
        return self._etcd

    def _answer(self) -> None:
        """It is done; that may not be heard."""
        if self._etcd.loses_answers:
            self._etcd.loses_answers -= 1
            raise StoreUnavailable("etcd has not answered")
        self.process.step()

    def join(self, about: NodeAbout, slots: Sequence[int], ttl_s: float) -> NodeLease:
        lease = self._begin().join(about, slots, ttl_s)
        self._answer()
        return lease

    def claim(self, lease: NodeLease, about: NodeAbout, slots: Sequence[int]) -> None:
        self._begin().claim(lease, slots)
        self._answer()

    def renew(self, lease: NodeLease, timeout_s: float) -> float:
        left_s = self._begin().renew(lease)
        self._answer()
        return left_s

    def leave(self, lease: NodeLease) -> None:
        self._begin().leave(lease)

    def view(self) -> ClusterView:
        return self._begin().view()

    def watch(self, changed: Changed) -> None:
        if self._changed is None:
            self._etcd.watch(self)
        self._changed = changed
        changed(self.view())

    def has_news(self) -> None:
        """Soon it is told, of all that has changed by then."""
        if not self._has_news:
            self._has_news = True
            self._tell_later(self._etcd.loop.delay_s())

    def _tell_later(self, wait_s: float) -> None:
        due_s = self._etcd.loop.now_s + wait_s
        self._etcd.loop.call_later(wait_s, self._tell, due_s, context=self._context)

    def _tell(self, due_s: float) -> None:
        loop = self._etcd.loop
        if not self._etcd.reaches(self.process):
            self._tell_later(LOOK_AGAIN_S)
        elif loop.now_s > due_s:  # it stood still: its loop goes on before its thread has heard
            self._tell_later(loop.delay_s())
        else:
            self._has_news = False
            assert self._changed is not None, "it watches"
            self._changed(self._etcd.view())

    def secret(self) -> bytes:
        return SECRET

    def texts(self, kind: str) -> SharedTexts | None:
        return None

    def close(self) -> None:
        """The process ends."""
