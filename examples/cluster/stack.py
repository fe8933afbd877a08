"""etcd, Redis, Kafka and the nodes of a cluster, on free ports of loopback and a temporary folder; gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.broker_process import BrokerProcess, free_port
from tests.support.etcd_server import EtcdServer
from tests.support.kafka_server import KafkaServer
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers

LEASE_S = 2
SLOTS = 2
NODES = ("a", "b", "c")
"""One more than serve."""
END_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")


class Node:
    """A broker of the cluster."""

    def __init__(self, name: str, folder: Path, settings: dict[str, object]) -> None:
        self.name = name
        own = {"cluster.node": name, "cluster.listen": f"127.0.0.1:{free_port()}"}
        self._process = BrokerProcess(folder / name, settings=settings | own, wrapper=END_WITH_PARENT)
        self.port = self._process.port
        self.start = self._process.start
        self.launch = self._process.launch
        self.kill = self._process.kill
        self.close = self._process.close

    @property
    def pid(self) -> int:
        """Of the running broker."""
        return self._process.pid

    def has_said(self, text: str) -> int:
        """How often it has, all runs counted. Raises AssertionError, with the output, when it has ended by itself."""
        assert self._process.is_running, f"node {self.name} has ended:\n{self._process.output()}"
        return self._process.output_from(0).count(text.encode())


@contextmanager
def running_servers(slots: int = SLOTS, names: Sequence[str] = NODES) -> Iterator[list[Node]]:
    """etcd, Redis and Kafka run; gives nodes that have not been started."""
    with (
        TemporaryDirectory(prefix="embermq-cluster-", ignore_cleanup_errors=True) as name,
        ExitStack() as started,
    ):
        folder = Path(name)
        etcd, redis = EtcdServer(folder / "etcd"), RedisServer(folder / "redis")
        kafka = KafkaServer(folder / "kafka")
        servers = (kafka, etcd, redis)
        for each in servers:
            started.callback(each.close)
        with ThreadPoolExecutor(len(servers)) as side_by_side:
            list(side_by_side.map(lambda each: each.start(), servers))
        settings: dict[str, object] = on_servers(kafka, redis, "demo") | {
            "cluster.etcd": f"{etcd.url}/demo",
            "cluster.lease_ttl_s": LEASE_S,
            "cluster.slots": slots,
            "queues.enabled": False,
            "device.queue_limit": 65_000,
        }
        nodes = [Node(name, folder, settings) for name in names]
        for node in nodes:
            started.callback(node.close)
        yield nodes
