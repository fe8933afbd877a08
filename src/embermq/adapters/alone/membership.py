"""The only node there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from embermq.ports.membership import ClusterView, Membership, NodeAbout, NodeLease, NodeView, SharedTexts


class MembershipAlone(Membership):
    """Nobody refuses this node anything, and its lease ends when it leaves."""

    name = place = ""

    def __init__(self) -> None:
        self._nodes: tuple[NodeView, ...] = ()

    def join(self, about: NodeAbout, slots: Sequence[int], ttl_s: float) -> NodeLease:
        self._nodes = (NodeView(about=about, epoch=1, lease_left_s=None, slots=slots),)
        return NodeLease(1, ttl_s)

    def claim(self, lease: NodeLease, about: NodeAbout, slots: Sequence[int]) -> None:
        self._nodes = tuple(replace(node, slots=(*node.slots, *slots)) for node in self._nodes)

    def renew(self, lease: NodeLease, timeout_s: float) -> float:
        return lease.ttl_s

    def leave(self, lease: NodeLease) -> None:
        self._nodes = ()

    def view(self) -> ClusterView:
        return ClusterView(name=self.name, place=self.place, nodes=self._nodes)

    def watch(self, changed: Callable[[ClusterView], None]) -> None:
        changed(self.view())

    def secret(self) -> bytes:
        return b""

    def texts(self, kind: str) -> SharedTexts | None:
        return None

    def close(self) -> None:
        """Nothing was opened."""
