"""A real Kafka on free loopback ports, and a cluster of three, for tests that log in it, pause it or kill it.

KRaft mode: each node is broker and controller. The jars come from scripts/kafka.
"""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from uuid import uuid4

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic
from msgspec import Struct
from tests.support.broker_process import free_port
from tests.support.kafka_gate import KafkaGate
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

from embermq.pipeline.jars import Jar, read_jar_list
from embermq.pipeline.java import find_java

HERE = Path(__file__).resolve().parent
JARS_LIST = HERE / "kafka_jars.txt"
BUILT = HERE.parents[1] / "build" / "kafka"
CLASSES = BUILT / "classes.jsa"
"""Kafka's classes as the JVM has them in memory: with it a start costs half as much (scripts/kafka)."""

STARTED = b"Kafka Server started"
ANSWER_S = 1.0
TOPICS_S = 30.0
FORMAT_S = 300.0
_SILENT: dict[str, str | int | float | bool] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
}
_END: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_HEAP = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC")
FAST_START = ("-XX:TieredStopAtLevel=1", "-Xshare:auto", f"-XX:SharedArchiveFile={CLASSES}")

_LOGGING = """rootLogger.level=INFO
rootLogger.appenderRefs=out
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %-5p %c{1}: %m%n
logger.settings.name=org.apache.kafka.common.config.AbstractConfig
logger.settings.level=WARN
"""


class Quorum(Struct, frozen=True):
    """What all nodes of one cluster have in common; `controllers` is node id to port."""

    cluster_id: str
    controllers: Mapping[int, int]


class KafkaServer(ServerProcess):
    """One node on one folder, alone or of a quorum; keeps its ports and data over restarts.

    `settings` are further lines of server.properties, for example `{"message.max.bytes": "2000000"}`, `jvm` flags
    of Java: those by default halve the time of a start, but compile less, so take `()` for measuring. A `gate` asks
    clients who they are.
    """

    name = "Kafka"
    start_s = 60.0

    def __init__(
        self,
        folder: Path,
        *,
        node_id: int = 1,
        quorum: Quorum | None = None,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        gate: KafkaGate | None = None,
        jvm: Sequence[str] = FAST_START,
    ) -> None:
        super().__init__(folder)
        self.gate = gate or KafkaGate()
        self._own_port = free_port() if gate else 0
        self.node_id = node_id
        self.port = port or free_port()
        self.quorum = quorum or Quorum(new_cluster_id(), {node_id: free_port()})
        self.jvm = tuple(jvm)
        self.settings = self._own_settings() | (self._guarded() if gate else {}) | dict(settings or {})
        self._admin: AdminClient | None = None
        self._printed_before = 0

    def _own_settings(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self.quorum.controllers[self.node_id]}"
        voters = [f"{node}@127.0.0.1:{port}" for node, port in self.quorum.controllers.items()]
        copies = str(len(voters))
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(self.node_id),
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"BROKER://127.0.0.1:{self.port},CONTROLLER://{controller}",
            "advertised.listeners": f"BROKER://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "BROKER",
            "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": str(len(voters) // 2 + 1),
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            # How soon a dead node's partitions get another leader, and its own next life is let in.
            "broker.session.timeout.ms": "2000" if len(voters) == 1 else "4000",
            "broker.heartbeat.interval.ms": "400",
            # A record for nobody, by which idle controllers know of each other: each costs an idle server CPU.
            "metadata.max.idle.interval.ms": "10000",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
        }
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            settings |= {f"{topic}.num.partitions": "1", f"{topic}.replication.factor": copies}
        for topic in ("transaction.state.log", "share.coordinator.state.topic"):
            settings[f"{topic}.min.isr"] = str(len(voters) // 2 + 1)
        return settings

    def _guarded(self) -> dict[str, str]:
        """The gate for clients, and a way beside it for the node itself and for the questions of tests."""
        listeners = f"BROKER://127.0.0.1:{self.port},OWN://127.0.0.1:{self._own_port}"
        return self.gate.settings(self.folder) | {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self.quorum.controllers[self.node_id]}",
            "advertised.listeners": listeners,
            "inter.broker.listener.name": "OWN",
            "listener.security.protocol.map": (
                f"BROKER:{self.gate.protocol},OWN:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
        }

    @property
    def bootstrap(self) -> str:
        """As clients take it in `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def own_bootstrap(self) -> str:
        """The way beside the gate, if there is one."""
        return f"127.0.0.1:{self._own_port or self.port}"

    @property
    def url(self) -> str:
        """As `stores.log` takes it, with user and password if there are any."""
        return self.gate.url(self.port)

    @property
    def admin(self) -> AdminClient:
        """A client for questions to this node alone; made anew after a stop or a kill."""
        if self._admin is None:
            self._admin = AdminClient(_SILENT | {"bootstrap.servers": self.own_bootstrap})
        return self._admin

    def prefix(self) -> str:
        """A prefix of topics that no other test has, a new one at each call."""
        return f"t{token_hex(5)}"

    def create_topic(
        self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """Returns when it is there. Raises confluent_kafka.KafkaException."""
        create_topic(self.admin, name, partitions=partitions, settings=settings)

    def delete_topic(self, *names: str) -> None:
        """Returns when the node takes nothing for it any more. Raises confluent_kafka.KafkaException."""
        delete_topics(self.admin, *names)

    def command(self) -> Sequence[str]:
        """The server's own; formats the folder of data before the first start."""
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        properties = self.folder / "server.properties"
        properties.write_text(
            "".join(f"{name}={value}\n" for name, value in self.settings.items()).replace("\\", r"\\")
        )
        if not (self.folder / "data" / "meta.properties").exists():
            self._format(properties)
        return [*self._java(*self.jvm), "kafka.Kafka", str(properties)]

    def _format(self, properties: Path) -> None:
        words = ["format", "--ignore-formatted", "-t", self.quorum.cluster_id, "-c", str(properties)]
        words += self.gate.format_words()
        done = subprocess.run(
            [*self._java(*FAST_START), "kafka.tools.StorageTool", *words],
            capture_output=True,
            text=True,
            timeout=FORMAT_S,
        )
        assert done.returncode == 0, f"Kafka's folder of data was not made:\n{done.stdout}{done.stderr}"

    def _java(self, *flags: str) -> list[str]:
        return [
            str(java_program()),
            *_HEAP,
            *flags,
            f"-Djava.io.tmpdir={self.folder}",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "-cp",
            class_path(),
        ]

    def launch(self) -> None:
        output = self.folder / "output.txt"
        self._printed_before = output.stat().st_size if output.exists() else 0
        super().launch()

    def _says_started(self) -> bool:
        """Another one on the same port would answer, too."""
        with (self.folder / "output.txt").open("rb") as output:
            output.seek(self._printed_before)
            return STARTED in output.read()

    def answers(self) -> bool:
        """Whether it serves clients, and the cluster knows that it does."""
        try:
            return self._says_started() and self.node_id in self.admin.list_topics(timeout=ANSWER_S).brokers
        except KafkaException:
            return False

    def forget_connection(self) -> None:
        self._admin = None


class KafkaCluster:
    """Several nodes, each broker and controller; with three, one may be away. Topics have a copy on each."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        jvm: Sequence[str] = FAST_START,
    ) -> None:
        quorum = Quorum(new_cluster_id(), {node: free_port() for node in range(1, nodes + 1)})
        self.nodes = [
            KafkaServer(folder / str(node), node_id=node, quorum=quorum, settings=settings, jvm=jvm)
            for node in quorum.controllers
        ]

    def __enter__(self) -> KafkaCluster:
        self.heal()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """As clients take it, all nodes."""
        return ",".join(node.bootstrap for node in self.nodes)

    def prefix(self) -> str:
        """A prefix of topics that no other test has, a new one at each call."""
        return self.nodes[0].prefix()

    def create_topic(
        self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """With a copy on each node. Raises confluent_kafka.KafkaException."""
        create_topic(self._admin(), name, partitions=partitions, settings=settings)

    def leader(self, topic: str, partition: int = 0) -> KafkaServer:
        """The node that leads a partition now; waits while there is none."""
        found: list[KafkaServer] = []

        def is_led() -> bool:
            with suppress(KafkaException):
                told = self._admin().list_topics(topic, timeout=ANSWER_S).topics[topic].partitions[partition]
                found[:] = [node for node in self.nodes if node.node_id == told.leader and node.is_running]
            return bool(found)

        wait_until(is_led, TOPICS_S, f"{topic}, partition {partition} has a leader")
        return found[0]

    def copies_in_sync(self, topic: str, partition: int = 0) -> int:
        """How many nodes have all of a partition, as a living node knows it. Raises KafkaException."""
        told = self._admin().list_topics(topic, timeout=TOPICS_S).topics[topic].partitions[partition]
        return len(told.isrs)

    def heal(self) -> None:
        """All nodes running and known to one another, whatever a test did to them."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            try:
                list(pool.map(_heal_but_wait, self.nodes))
                for node in self.nodes:
                    node.wait()
                wait_until(self._is_whole, TOPICS_S, "each node knows all others")
            except BaseException:
                self.close()
                raise

    def _is_whole(self) -> bool:
        try:
            return all(
                len(node.admin.list_topics(timeout=ANSWER_S).brokers) == len(self.nodes)
                for node in self.nodes
            )
        except KafkaException:
            return False

    def close(self) -> None:
        """End all nodes. May be called again."""
        for node in self.nodes:
            node.close()

    def _admin(self) -> AdminClient:
        return next(node for node in self.nodes if node.is_running).admin


def create_topic(
    admin: AdminClient, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
) -> None:
    """Returns when each partition has a leader that answers: it is named before it does. Raises
    confluent_kafka.KafkaException."""
    topic = NewTopic(name, num_partitions=partitions, config=dict(settings or {}))
    admin.create_topics([topic], operation_timeout=TOPICS_S)[name].result(TOPICS_S)

    def is_led() -> bool:
        known = admin.list_topics(name, timeout=TOPICS_S).topics[name].partitions
        if len(known) != partitions or any(part.leader < 0 for part in known.values()):
            return False
        asked = {TopicPartition(name, number): _END for number in known}
        answers = admin.list_offsets(asked, request_timeout=TOPICS_S).values()
        return not any(answer.exception(TOPICS_S) for answer in answers)

    wait_until(is_led, TOPICS_S, f"{name} has leaders")


def delete_topics(admin: AdminClient, *names: str) -> None:
    """Returns when the server that answers takes nothing for them any more: for a moment after the answer to their
    deletion it does. Raises confluent_kafka.KafkaException."""
    for answer in admin.delete_topics(list(names)).values():
        answer.result(TOPICS_S)
    wait_until(
        lambda: admin.list_topics(timeout=TOPICS_S).topics.keys().isdisjoint(names),
        TOPICS_S,
        f"{', '.join(names)} are gone",
    )


def new_cluster_id() -> str:
    """A random id as Kafka writes it: 16 bytes in URL-safe base64."""
    return "E" + base64.urlsafe_b64encode(uuid4().bytes).decode()[1:22]


@cache
def java_program() -> Path:
    """The Java that the pipeline would take."""
    return find_java(BUILT / "java").home / "bin" / "java"


@cache
def jars() -> tuple[Jar, ...]:
    """What Kafka consists of."""
    return read_jar_list(JARS_LIST)


def class_path() -> str:
    """All jars, in one order, since the archive of classes belongs to it."""
    missing = [jar.file_name for jar in jars() if not (BUILT / "jars" / jar.file_name).is_file()]
    assert not missing, (
        f"Kafka is not there ({missing[0]} is missing): scripts/kafka fetches what the tests need"
    )
    return os.pathsep.join(str(BUILT / "jars" / jar.file_name) for jar in jars())


def _heal_but_wait(node: KafkaServer) -> None:
    """A node of a quorum answers only when others do: so all are launched before one is waited for."""
    if node.is_running:
        node.resume()
    else:
        node.launch()
