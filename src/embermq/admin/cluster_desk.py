"""The cluster as an operator sees it from one of its nodes."""

from __future__ import annotations

import asyncio

from embermq.ports.membership import ClusterView, Membership


class ClusterDesk:
    """Called on the event loop. Raises StoreError when nobody knows now."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    async def view(self) -> ClusterView:
        """Nodes with their leases and slots."""
        return await asyncio.to_thread(self._membership.view)
