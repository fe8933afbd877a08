"""Which node a client of a cluster belongs to, and what operators ask of the other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256

from embermq.admin.errors import OperationRefused
from embermq.admin.forwarding import answered
from embermq.admin.trail import Trail
from embermq.app.cluster_side import ClusterSide, node_tls
from embermq.app.config import Settings
from embermq.app.desks import Desks
from embermq.cluster.slots import own_id, slot_of, slot_of_queue
from embermq.edge.node_link import OPERATION_BYTES_MAX, OperationAsked, ask_node
from embermq.edge.node_tls import NodeTls
from embermq.edge.settings import Address
from embermq.mqtt.wire.packets import Connect
from embermq.ports.errors import StoreUnavailable
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


MUTE_S = 5.0
"""How long the part of a node that did not answer in time is left out of lists."""


class NodesAsked:
    """See `admin.forwarding.OtherNodes`. Of a cluster with so many slots; all are others' where this node has none."""

    def __init__(self, homes: ClusterHomes, slots: int, *, serves: bool = True) -> None:
        self._homes = homes
        self._slots = slots
        self._serves = serves
        self._mute: dict[int, tuple[Address, float]] = {}
        """By slot whose node did not answer in time, and until when it is left out."""

    @property
    def slot(self) -> int:
        return self._homes.slot if self._serves else -1

    @property
    def others(self) -> Sequence[int]:
        return [slot for slot in range(self._slots) if slot != self.slot]

    def slot_of_client(self, client_id: str) -> int:
        return slot_of(client_id, self._slots)

    def slot_of_queue(self, name: str) -> int:
        return slot_of_queue(name, self._slots)

    def is_mute(self, slot: int) -> bool:
        address, until = self._mute.get(slot, (None, 0.0))
        return address == self._homes.address_of(slot) and asyncio.get_running_loop().time() < until

    async def ask(self, slot: int, told: bytes, answer_s: float) -> bytes:
        if len(told) > OPERATION_BYTES_MAX:
            raise OperationRefused(
                f"slot {slot} has it, whose node is asked {OPERATION_BYTES_MAX} bytes at most and not {len(told)}: ask "
                "that one"
            )
        address = self._homes.address_of(slot)
        if address is None:
            raise StoreUnavailable(
                f"slot {slot} of the cluster has it, which no node has now: ask again later"
            )
        asked = OperationAsked(slot=slot, size=len(told), digest=sha256(told).hexdigest())
        try:
            found = await ask_node(
                address, self._homes.tls, asked, self._homes.secret(), answer_s, behind=told
            )
        except (OSError, EOFError) as error:
            if isinstance(error, TimeoutError):
                self._mute[slot] = address, asyncio.get_running_loop().time() + MUTE_S
            why = str(error) or "too slow"
            raise StoreUnavailable(f"the node of slot {slot}, {address}, does not answer: {why}") from None
        self._mute.pop(slot, None)
        return found


class AskedByNodes:
    """What other nodes ask of this one."""

    def __init__(self, desks: Desks, trail: Trail) -> None:
        self._answered = partial(answered, desks, trail)
        self._under_way: set[asyncio.Task[bytes]] = set()

    def do(self, told: bytes, then: Callable[[bytes], None]) -> None:
        """See `edge.node_door.Operate`."""
        task = asyncio.get_running_loop().create_task(self._answered(told))
        self._under_way.add(task)

        def is_done(done: asyncio.Task[bytes]) -> None:
            self._under_way.discard(done)
            if not done.cancelled():
                then(done.result())

        task.add_done_callback(is_done)
