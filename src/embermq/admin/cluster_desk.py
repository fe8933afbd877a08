"""The cluster as an operator sees it from one of its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import asdict

from embermq.admin.forwarding import OtherNodes, SharedDesk, do_on_any_node
from embermq.admin.operations import LIST_NODE_FIGURES
from embermq.admin.session_values import NoRequest
from embermq.admin.values import ClusterStatus, NodeFigures, NodeStatus
from embermq.ports.membership import Membership


class ClusterDesk:
    """Called on the event loop. `own` are this node's figures, None while it stands by; `nodes` are those that serve,
    None where this node knows no others. Raises StoreError when nobody knows now."""

    def __init__(
        self, membership: Membership, own: Callable[[], NodeFigures] | None, nodes: OtherNodes | None
    ) -> None:
        self._membership = membership
        self._own = own
        self._nodes = nodes

    def figures(self) -> Sequence[NodeFigures]:
        """Of this node."""
        return [] if self._own is None else [self._own()]

    async def view(self) -> ClusterStatus:
        """Nodes with their leases, slots and figures."""
        view, figures = await asyncio.gather(asyncio.to_thread(self._membership.view), self._of_all())
        by_node = {each.node: each for each in figures}
        nodes = [NodeStatus(**asdict(each), figures=by_node.get(each.about.node)) for each in view.nodes]
        return ClusterStatus(name=view.name, place=view.place, nodes=nodes)

    async def _of_all(self) -> Sequence[NodeFigures]:
        if self._nodes is None:
            return self.figures()
        everywhere = SharedDesk(self, self._nodes)
        done = await do_on_any_node(LIST_NODE_FIGURES, everywhere, NoRequest(), by="", peer="")
        found: Sequence[NodeFigures] = done.answer
        return found
