"""A Redis Cluster of six real nodes on loopback: three masters, each with a replica."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import redis
from msgspec import Struct
from tests.support.broker_process import free_port
from tests.support.redis_server import Fsync, RedisServer
from tests.support.waiting import wait_until

MASTERS = 3
SLOTS = 16_384
UP_S = 40.0
NODE_TIMEOUT_MS = 2_000


class NodeView(Struct, frozen=True):
    """One line of CLUSTER NODES, as one node sees it."""

    node_id: str
    port: int
    flags: Sequence[str]
    master_id: str
    connected: bool
    slots: Sequence[tuple[int, int]]

    @property
    def is_master(self) -> bool:
        return "master" in self.flags

    @property
    def failed(self) -> bool:
        return "fail" in self.flags or "fail?" in self.flags


class RedisCluster:
    """Six nodes below one folder, masters first in `nodes`; they keep ports and data over restarts.

    Tests that change roles or slots need not change them back: `heal` waits for three masters with a replica each,
    whichever they are, and `flush` empties them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        appendfsync: Fsync = "everysec",
        node_timeout_ms: int = NODE_TIMEOUT_MS,
        password: str = "",
    ) -> None:
        self.password = password
        self.nodes = [
            RedisServer(
                folder / f"node-{number}",
                appendfsync=appendfsync,
                password=password,
                settings={
                    "cluster-enabled": "yes",
                    "cluster-port": str(free_port()),
                    "cluster-node-timeout": str(node_timeout_ms),
                    "cluster-replica-validity-factor": "0",
                    "cluster-allow-replica-migration": "no",
                },
            )
            for number in range(2 * MASTERS)
        ]

    def __enter__(self) -> RedisCluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """As `stores.session` takes it: two of the six addresses are enough to find all."""
        user = f":{self.password}@" if self.password else ""
        return f"redis+cluster://{user}" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])

    def start(self) -> None:
        """Start all nodes and make a cluster of them; takes about 3 s."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait()
        first = self.nodes[0]
        for number, master in enumerate(self.nodes[:MASTERS]):
            master.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            low, high = SLOTS * number // MASTERS, SLOTS * (number + 1) // MASTERS - 1
            master.ask("CLUSTER", "ADDSLOTSRANGE", low, high)
        for node in self.nodes[1:]:
            first.ask("CLUSTER", "MEET", "127.0.0.1", node.port, node.settings["cluster-port"])
        wait_until(lambda: all(len(self.view(node)) == len(self.nodes) for node in self.nodes), UP_S, "met")
        for number, replica in enumerate(self.nodes[MASTERS:]):
            replica.ask("CLUSTER", "REPLICATE", self.node_id(self.nodes[number]))
        wait_until(self.is_whole, UP_S, "three masters with a replica each")

    def close(self) -> None:
        """End all nodes. May be called again."""
        for node in self.nodes:
            node.close()

    def view(self, node: RedisServer) -> list[NodeView]:
        """The cluster as this node sees it."""
        lines = bytes(node.ask("CLUSTER", "NODES")).decode().splitlines()
        return [_node_view(line) for line in lines]

    def node_id(self, node: RedisServer) -> str:
        return next(view.node_id for view in self.view(node) if view.port == node.port)

    def masters(self) -> list[RedisServer]:
        """The running nodes that are masters with slots, in their own eyes."""
        return [node for node in self.nodes if node.is_running and self._own(node).slots]

    def master_of(self, key: str) -> RedisServer:
        """Who has the slot of a key."""
        slot = self.slot_of(key)
        for node in self.masters():
            if any(low <= slot <= high for low, high in self._own(node).slots):
                return node
        raise AssertionError(f"no node has slot {slot}")

    def slot_of(self, key: str) -> int:
        node = next(node for node in self.nodes if node.is_running)
        return int(node.ask("CLUSTER", "KEYSLOT", key))

    def replica_of(self, master: RedisServer) -> RedisServer:
        master_id = self.node_id(master)
        for node in self.nodes:
            if node.is_running and self._own(node).master_id == master_id:
                return node
        raise AssertionError(f"the node at {master.port} has no replica")

    def kill_master(self, key: str) -> tuple[RedisServer, RedisServer]:
        """SIGKILL the master of a key's slot; returns it and its replica, which is not promoted yet."""
        master = self.master_of(key)
        replica = self.replica_of(master)
        master.kill()
        return master, replica

    def wait_promoted(self, replica: RedisServer) -> None:
        """Until a replica is a master with slots and the cluster is whole in its eyes."""
        wait_until(
            lambda: self._own(replica).slots and self.state(replica) == "ok",
            UP_S,
            f"the replica at {replica.port} is promoted",
            poll_s=0.05,
        )

    def move_slot(self, slot: int, *, source: RedisServer, target: RedisServer) -> None:
        """Reshard one slot with all its keys, in the steps of redis-cli; requests meanwhile meet ASK, then MOVED."""
        self.open_slot(slot, source=source, target=target)
        self.close_slot(slot, source=source, target=target)

    def open_slot(self, slot: int, *, source: RedisServer, target: RedisServer) -> None:
        """The first half: what is not there any more is asked for at the target (ASK)."""
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self.node_id(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self.node_id(target))

    def close_slot(self, slot: int, *, source: RedisServer, target: RedisServer) -> None:
        """The second half: all keys move, then the slot (MOVED)."""
        auth = ("AUTH", self.password) if self.password else ()
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, *auth, "KEYS", *keys)
        target_id = self.node_id(target)
        for node in (target, source, *(node for node in self.masters() if node not in (source, target))):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def state(self, node: RedisServer) -> str:
        """`ok` or `fail`, or nothing when the node does not answer."""
        try:
            info = bytes(node.ask("CLUSTER", "INFO"))
        except redis.RedisError:
            return ""
        lines = info.decode().splitlines()
        return next(line.partition(":")[2] for line in lines if line.startswith("cluster_state:"))

    def is_whole(self) -> bool:
        """Every node runs and sees three masters with all slots, each with a replica that is in step."""
        try:
            return all(self._sees_all(node) for node in self.nodes)
        except redis.RedisError:
            return False

    def heal(self) -> None:
        """Whatever a test did to it: all nodes run, and it is whole."""
        for node in self.nodes:
            if not node.is_running:
                node.launch()
            node.resume()
        wait_until(self.is_whole, UP_S, "three masters with a replica each", poll_s=0.05)
        self.set_full_coverage(wanted=True)

    def set_full_coverage(self, *, wanted: bool) -> None:
        """Whether all nodes refuse everything (CLUSTERDOWN) while a slot has no master; they do at first."""
        for node in self.nodes:
            node.ask("CONFIG", "SET", "cluster-require-full-coverage", "yes" if wanted else "no")

    def flush(self) -> None:
        """Empty, replicas too."""
        for node in self.masters():
            node.flush()
        wait_until(lambda: not any(node.ask("DBSIZE") for node in self.nodes), UP_S, "all nodes are empty")

    def cpu_s(self) -> float:
        """CPU seconds of all nodes and runs."""
        return sum(node.cpu_s() for node in self.nodes)

    def _own(self, node: RedisServer) -> NodeView:
        return next(view for view in self.view(node) if "myself" in view.flags)

    def _sees_all(self, node: RedisServer) -> bool:
        views = self.view(node)
        masters = {view.node_id for view in views if view.is_master and view.slots}
        covered = sum(high - low + 1 for view in views for low, high in view.slots)
        return (
            len(views) == len(self.nodes)
            and not any(view.failed for view in views)
            and self.state(node) == "ok"
            and covered == SLOTS
            and len(masters) == MASTERS
            and {view.master_id for view in views if not view.is_master} == masters
            and (
                self._own(node).is_master
                or b"master_link_status:up" in bytes(node.ask("INFO", "replication"))
            )
        )


def _node_view(line: str) -> NodeView:
    node_id, address, flags, master_id, _, _, _, link, *slots = line.split()
    port = int(address.partition("@")[0].rpartition(":")[2])
    ranges = [slot.partition("-") for slot in slots if not slot.startswith("[")]
    return NodeView(
        node_id=node_id,
        port=port,
        flags=tuple(flags.split(",")),
        master_id="" if master_id == "-" else master_id,
        connected=link == "connected",
        slots=tuple((int(low), int(high or low)) for low, _, high in ranges),
    )
