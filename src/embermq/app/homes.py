"""Which node a client of a cluster belongs to."""

from __future__ import annotations

from functools import partial

from embermq.app.cluster_side import ClusterSide, node_tls
from embermq.app.config import Settings
from embermq.cluster.slots import own_id, slot_of, slot_of_queue
from embermq.edge.node_tls import NodeTls
from embermq.edge.settings import Address
from embermq.mqtt.wire.packets import Connect
from embermq.sessions.state import BrokerState


class ClusterHomes:
    """By the client's slot, and the node that has that now. Raises StartError for certificates that cannot be used."""

    def __init__(self, settings: Settings, cluster: ClusterSide) -> None:
        self._slots = settings.cluster.slots
        self._by_user = settings.clients.username_as_client_id
        self._cluster = cluster
        self._tls = node_tls(settings.cluster)
        self.here = settings.cluster.advertise or settings.cluster.listen
        """See `edge.node_link.Homes`."""

    @property
    def slot(self) -> int:
        """Whose clients belong here."""
        return self._cluster.slot

    def home_of(self, packet: Connect) -> tuple[int, Address | None] | None:
        """See `edge.node_link.Homes`. Who brings no client id is served here and gets one that belongs here."""
        client_id = (packet.username if self._by_user else packet.client_id) or ""
        if not client_id or self._is_own(client_id):
            return None
        slot = slot_of(client_id, self._slots)
        return slot, self._cluster.address_of(slot)

    def address_of(self, slot: int) -> Address | None:
        """See `edge.node_link.Homes`."""
        return self._cluster.address_of(slot)

    def has_slot(self, node: str, slot: int) -> bool:
        """See `edge.node_link.Homes`."""
        return str(self._cluster.address_of(slot)) == node

    def secret(self) -> bytes:
        """See `edge.node_link.Homes`."""
        return self._cluster.secret

    @property
    def tls(self) -> NodeTls | None:
        """See `edge.node_link.Homes`."""
        return self._tls

    def queue_elsewhere(self, name: str) -> str:
        """Which node has a durable queue of another slot, in words; "" for one of this slot."""
        slot = slot_of_queue(name, self._slots)
        if slot == self._cluster.slot:
            return ""
        node = self._cluster.name_of(slot)
        whose = f"which node {node} has: ask that one" if node else "which no node has now: ask again later"
        return f"queue {name[:255]!r} belongs to slot {slot} of the cluster, {whose}"

    def divide(self, state: BrokerState) -> None:
        """Have the broker serve this node's clients alone."""
        state.share.is_own = self._is_own
        state.share.elsewhere = self._elsewhere
        state.share.own_id = partial(own_id, slot=self._cluster.slot, slots=self._slots)
        state.share.packet_ids = self._slots, self._cluster.slot

    def _elsewhere(self, client_id: str) -> str:
        slot = slot_of(client_id, self._slots)
        if slot == self._cluster.slot:
            return ""
        name = self._cluster.name_of(slot)
        whose = f"node {name} has: ask that one" if name else "no node has now"
        return f" on this node: it belongs to slot {slot} of the cluster, which {whose}"

    def _is_own(self, client_id: str) -> bool:
        return slot_of(client_id, self._slots) == self._cluster.slot
