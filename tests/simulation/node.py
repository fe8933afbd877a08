"""A broker in a process of the simulation: the product's own wiring, on stores, a network and clocks that are not real.

Only what touches the world is another: see `simulated_wiring`. The rooms that decide, the adapter of Redis,
connections, what nodes say to one another, leases and the tick loop are what a real broker runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

import hiredis
from msgspec import Struct
from msgspec.structs import replace
from tests.simulation.etcd import SimulatedEtcd, SimulatedMembership
from tests.simulation.log_side import SimulatedLogSide
from tests.simulation.loop import Host, Killed, Process, SimulatedLoop, Transport, context_of, current_process
from tests.simulation.message_log import LogServer
from tests.simulation.peer_log import SimulatedPeerLog
from tests.simulation.redis_server import URL, DirectRedis, SimulatedRedis
from tests.simulation.redis_values import RedisError, Reply, Status

from embermq.access.authentication.gate import Exchange, Gate, Visitor
from embermq.access.authentication.identity import Identity, Refusal
from embermq.app import cluster_side, log_thread, opened, peers, redis_state, servers
from embermq.app.clock_file import ClockFile
from embermq.app.cluster_side import ClusterSide
from embermq.app.config import Settings
from embermq.app.errors import StartError
from embermq.app.log_side import LogSide, Post
from embermq.app.opened import OpenedBroker
from embermq.app.other_nodes import ClusterHomes
from embermq.app.settings import StoreSettings
from embermq.app.slots import node_address, slot_prefix, slot_settings
from embermq.cluster.settings import ClusterSettings
from embermq.edge import mqtt_server
from embermq.edge.clock import TimeSource
from embermq.edge.connection_limits import Admission
from embermq.edge.listener_context import ListenerContext
from embermq.edge.listener_settings import Listener
from embermq.edge.listening_sockets import Factory
from embermq.edge.member_links import MemberLinks
from embermq.edge.mqtt_server import MqttServer
from embermq.edge.node_door import NodeListenerContext
from embermq.edge.settings import Address, ClientSettings, OwnSettings
from embermq.edge.tick_loop import TickLoop
from embermq.model.client_type import ClientType
from embermq.model.noted_time import NotedTime
from embermq.mqtt.wire.packets import Connect
from embermq.ports.dead_letter_alerts import AlertStatistics, DeadLetterAlert, DeadLetterAlerts
from embermq.ports.errors import StoreError
from embermq.ports.message_log import MessageLog
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.settings import BrokerQueueSettings, parse_operator_settings
from embermq.sessions.session import Session

MQTT_PORT = 1883
NODE_PORT = 7946
REDIS_HOST = ("redis", 6379)
NOWHERE = Path("/nonexistent")
LINGER_MS = 2.0
POLL_MS = 100
"""Ticks without a reason are rarer than in a real broker: they are most of what a run would do."""
START_AGAIN_S = 0.5
PLACE_S = 0.3
"""How often a node that stands by looks for a place: more often than it has to."""
LEASE_TTL_S = 2
PREFIX = "embermq"
QUEUE_SETTINGS = b"""{
  "partitions": 3,
  "performance": {"delivery_timeout": "1s"},
  "retry_policy": {"max_retries": 1000, "initial_backoff": "100ms", "max_backoff": "200ms", "total_timeout": "7d"}
}"""


def settings_of(name: str, slots: int) -> Settings:
    """Of one node of a cluster with so many slots."""
    cluster = ClusterSettings(etcd="etcd://etcd:2379/cars", node=name, lease_ttl_s=LEASE_TTL_S, slots=slots)
    if slots > 1:
        cluster = replace(cluster, listen=f"{name}:{NODE_PORT}")
    return Settings(
        stores=StoreSettings(log="kafka://kafka:9092", session=URL),
        cluster=cluster,
        clients=ClientSettings(connections_max=1_000),
        queues=BrokerQueueSettings(join_debounce_ms=0, disconnect_grace_ms=200),
    )


class MachineTime(TimeSource):
    """Of one machine, whose wall clock may step."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.step_ms = 0

    def boot_ms(self) -> int:
        return int(self._loop.now_s * 1000)

    def wall_ms(self) -> int:
        return self._loop.wall_ms() + self.step_ms


class NodeClock(ClockFile):
    """Its file is kept by the node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        super().__init__(NOWHERE, node.time)

    def _read(self) -> NotedTime | None:
        return self._node.noted

    def note(self) -> None:
        self._node.noted = self.clock.noted()


class AskedInTurn:
    """In place of `LogThread`: questions take time, not a thread."""

    def __init__(self, loop: SimulatedLoop, _name: str, log_side: LogSide, _post: Post) -> None:
        self._loop = loop
        self._log_side = log_side

    def ask(
        self,
        question: Callable[[MessageLog], object],
        then: Callable[[object], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._loop.call_later(self._loop.delay_s(), self._answer, question, then, is_wanted)

    def _answer(
        self,
        question: Callable[[MessageLog], object],
        then: Callable[[object], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        if is_wanted():
            then(question(self._log_side.log))

    def close(self) -> None:
        """Nobody hears of the rest."""


class NoAlerts(DeadLetterAlerts):
    """There is no webhook."""

    def tell(self, alert: DeadLetterAlert) -> None:
        """Nobody listens."""

    def statistics(self) -> AlertStatistics:
        return AlertStatistics(sent=0, failed=0, refused=0, dropped=0, waiting=0)

    def close(self) -> None:
        """There is nothing to wait for."""


class OpenGate(Gate):
    """Everybody may enter."""

    def admit(self, packet: Connect, visitor: Visitor) -> Identity | Refusal:
        return Identity("", ClientType.DEVICE, "nobody")

    async def check(self, packet: Connect, visitor: Visitor) -> Identity | Refusal:
        raise NotImplementedError

    def exchange(self, method: str, client_id: str, visitor: Visitor) -> Exchange | None:
        return None


class RedisConnection(asyncio.Protocol):
    """The server's side of a connection to Redis."""

    def __init__(self, server: SimulatedRedis, transport: Transport) -> None:
        self._server = server
        self._transport = transport
        self._session = server.connect(transport.cut)
        self._reader = hiredis.Reader()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        answers = b""
        while (words := self._reader.gets()) is not False:
            answers += packed(self._server.execute(self._session, words))
            if self._transport.is_closing():
                return
        if self._server.loses_answers:
            self._server.loses_answers -= 1
            self._transport.cut()
        elif answers:
            self._transport.write(answers)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.disconnect(self._session)


def packed(reply: Reply) -> bytes:
    """As RESP2 has it."""
    if isinstance(reply, Status):
        return b"+%s\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%s\r\n" % (len(reply), reply)
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, RedisError):
        return b"-%s\r\n" % str(reply).encode()
    if isinstance(reply, list):
        return b"*%d\r\n%s" % (len(reply), b"".join(map(packed, reply)))
    return b":%d\r\n" % reply


class InOrder(dict[Any, None]):
    """In place of a set, whose order is that of addresses in memory."""

    def add(self, one: Any) -> None:
        self[one] = None

    def discard(self, one: Any) -> None:
        self.pop(one, None)


def in_order(kind: type[Any], *names: str) -> type[Any]:
    """The same with such sets."""

    def begin(self: Any, *given: Any, **named: Any) -> None:
        kind.__init__(self, *given, **named)
        for name in names:
            setattr(self, name, InOrder())

    return type(kind.__name__, (kind,), {"__init__": begin})


class KeptLease:
    """In place of the thread that keeps a node's lease: it is looked after from time to time, and a moment after the
    loop when both have stood still."""

    def __init__(self, target: Any, **_: object) -> None:
        self._side: ClusterSide = target.__self__

    def start(self) -> None:
        process = current_process()
        assert process is not None, "a broker runs in a process"
        process.goes_on = self._keep
        self._keep_later(self._side.keep_lease())

    def _keep_later(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(wait_s, self._keep, loop.time() + wait_s)

    def _keep(self, due_s: float) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self._keep_later(loop.delay_s() if loop.now_s > due_s else self._side.keep_lease())

    def is_alive(self) -> bool:
        return False


class Door:
    """In place of a socket that listens."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def getsockname(self) -> tuple[str, int]:
        return self.address.host, self.address.port


async def bind(address: Address, _mode: str) -> list[Door]:
    """Nothing is taken by anybody else."""
    return [Door(address)]


class SimulatedListening:
    """In place of `Listening`: an address of the simulation's network."""

    def __init__(
        self, doors: list[Door], factory: Factory, admission: Admission, *_: object, **__: object
    ) -> None:
        (door,) = doors
        process = current_process()
        assert process is not None, "a broker runs in a process"
        self._place = process.machine, door.address.port
        self._factory = factory
        self._admission = admission
        self._host = Host(self._accept, process, process.machine)

    def _accept(self, _transport: Transport) -> asyncio.Protocol | None:
        place = self._admission.arrive()
        return self._factory(place, None) if place is not None else None

    def serve(self, _context: object) -> None:
        asyncio.get_running_loop().hosts[self._place] = self._host  # type: ignore[attr-defined]

    def close(self) -> None:
        self._host.is_closed = True


class NoPlainSockets:
    """Connections are the simulation's."""

    def close(self) -> None:
        return


class Servers(Struct, frozen=True):
    """What all nodes share. `logs` are by how the topics of their slot begin."""

    etcd: SimulatedEtcd
    logs: dict[str, LogServer]
    redis: SimulatedRedis


@contextmanager
def simulated_wiring(loop: SimulatedLoop, shared: Servers, nodes: dict[str, Node]) -> Iterator[None]:
    """The wiring makes these where it would make what touches the world. `nodes` are by machine."""

    def here() -> Process:
        process = current_process()
        assert process is not None, "a broker runs in a process"
        return process

    def log_side(settings: Settings, *given: Any) -> SimulatedLogSide:
        return SimulatedLogSide(shared.logs[settings.kafka.prefix], here(), settings, *given)

    def date(zone: timezone) -> datetime:
        return datetime.fromtimestamp(loop.wall_ms() / 1000, zone)

    made: tuple[tuple[Any, str, Any], ...] = (
        (cluster_side, "open_membership", lambda _: SimulatedMembership(shared.etcd)),
        (cluster_side, "Thread", KeptLease),
        (cluster_side, "datetime", SimpleNamespace(now=date)),
        (mqtt_server, "bind", bind),
        (mqtt_server, "Listening", SimulatedListening),
        (mqtt_server, "PlainSockets", NoPlainSockets),
        (mqtt_server, "ListenerContext", in_order(ListenerContext, "connections", "doors")),
        (mqtt_server, "NodeListenerContext", in_order(NodeListenerContext, "connections", "doors")),
        (Session, "__hash__", lambda session: session.generation),
        (servers, "ClockFile", lambda _: NodeClock(nodes[here().machine])),
        (servers, "KafkaLogSide", log_side),
        (servers, "open_retention", lambda *_: (None, lambda: None)),
        (peers, "MemberLinks", in_order(MemberLinks, "_open", "_calls")),
        (peers, "KafkaPeerLog", lambda _, kafka, name: SimulatedPeerLog(shared.logs[kafka.prefix], name)),
        (redis_state, "BlockingRedis", lambda address, _: DirectRedis(shared.redis, address)),
        (log_thread, "LogThread", partial(AskedInTurn, loop)),
        (opened, "WebhookAlerts", lambda *_: NoAlerts()),
    )
    with ExitStack() as stack:
        for place, name, stand_in in made:
            stack.enter_context(patch.object(place, name, stand_in))
        yield


class Serving(Struct, frozen=True):
    """What a process is made of while it serves."""

    broker: OpenedBroker
    ticks: TickLoop
    server: MqttServer
    side: ClusterSide


class Node:
    """A machine that starts its broker again whenever that has ended."""

    def __init__(self, name: str, loop: SimulatedLoop, slots: int, queue: str) -> None:
        self.name = name
        self.loop = loop
        self._queue = queue
        self._settings = settings_of(name, slots)
        self.time = MachineTime(loop)
        self.process = Process(name)
        self.process.is_dead = True
        self.serving: Serving | None = None
        self.noted: NotedTime | None = None
        """What its disk holds: broker time, as of when it was noted last."""
        self.starts = 0
        self.served_s = 0.0
        """Since when."""
        self.is_off = True
        """It is not started again."""
        nobody = Host(_refuse)
        nobody.is_closed = True
        loop.hosts[name, MQTT_PORT] = loop.hosts[name, NODE_PORT] = nobody
        self.told: Callable[[str], None] = lambda _: None

    @property
    def host(self) -> Host:
        """Where clients come in."""
        return self.loop.hosts[self.name, MQTT_PORT]

    def start(self) -> None:
        """Begin a process, unless one runs."""
        self.is_off = False
        if not self.process.is_dead:
            return
        self.starts += 1
        process = self.process = Process(f"{self.name}/{self.starts}", self.name)
        process.at_kill.append(self._ended)
        self.loop.call_soon(self._stand_by, process, context=context_of(process))

    def _ended(self) -> None:
        self.serving = None
        self.told(f"{self.process.name} ends")
        self.loop.call_later(START_AGAIN_S, self._start_again, context=self.loop.bare)

    def _start_again(self) -> None:
        if not self.is_off:
            self.start()

    def _end(self, process: Process, why: str) -> NoReturn:
        self.told(f"{process.name}: {why}")
        process.kill()
        raise Killed

    def _stand_by(self, process: Process) -> None:
        try:
            side = ClusterSide(self._settings, end=partial(self._end, process), clock=self.loop.time)
            side.begin_to_stand_by()
        except StoreError:
            self._end(process, "etcd does not answer")
        self._look_for_place(process, side)

    def _look_for_place(self, process: Process, side: ClusterSide) -> None:
        try:
            has_place = side.look_for_place()
        except StartError as error:
            self._end(process, str(error))
        if not has_place:
            self.loop.call_later(PLACE_S, self._look_for_place, process, side)
            return
        self.told(f"{process.name} takes slot {side.slot}")
        try:
            self._open(process, side)
        except StoreError as error:
            self._end(process, f"cannot start: {error}")

    def _open(self, process: Process, side: ClusterSide) -> None:
        """As `embermq run` puts the parts together."""
        loop, whole = self.loop, self._settings
        settings = slot_settings(whole, side.slot)
        homes = ClusterHomes(settings, side) if whole.cluster.slots > 1 else None
        broker = servers.open_servers(NOWHERE, whole, side.slot, loop.call_soon)
        ticks = TickLoop(
            broker.broker,
            broker.delivery,
            broker.ticks,
            linger_ms=LINGER_MS,
            poll_ms=POLL_MS,
            clock=broker.clock.clock,
        )
        server = MqttServer(broker.broker, ticks, OpenGate(), settings.clients, homes)
        if homes is not None:
            homes.divide(broker.broker.state)
        broker.log_side.on_end.append(lambda error: self._end(process, str(error)))
        serving = Serving(broker, ticks, server, side)
        loop.create_task(self._serve(process, serving, homes))

    async def _serve(self, process: Process, serving: Serving, homes: ClusterHomes | None) -> None:
        broker, ticks, server, side = serving.broker, serving.ticks, serving.server, serving.side
        self._configure_queue(broker)
        if broker.peers is not None:
            await server.open_for_nodes(
                node_address(self._settings.cluster.listen, ""),
                side.slot,
                take=broker.peers.inflow.take_unstored,
                members_of=broker.peers.members_of,
                do=lambda _, answer: answer(b""),
                figures=broker.peers.figures,
            )
        address = Address("127.0.0.1", MQTT_PORT)
        await server.open(Listener("mqtt", address, OwnSettings(), None, None, "", frozenset()))
        ticks.start_polling()
        if broker.peers is not None and homes is not None:
            broker.peers.start(homes, server.leave_node)
        ticks.wake()
        self.serving, self.served_s = serving, self.loop.now_s
        self.told(f"{process.name} serves slot {side.slot}")
        self._look(broker)

    def _configure_queue(self, broker: OpenedBroker) -> None:
        state = broker.broker.state
        queues = state.queues
        assert isinstance(queues, MqttQueues)
        if state.share.owns_queue(self._queue) and self._queue not in queues.core:
            queues.core.configure(parse_operator_settings(self._queue, QUEUE_SETTINGS))

    def _look(self, broker: OpenedBroker) -> None:
        broker.clock.look()
        assert isinstance(broker.log_side, SimulatedLogSide)
        broker.log_side.trim()
        self.loop.call_later(1.0, self._look, broker)

    def stop(self) -> None:
        """End its broker in order, as SIGTERM does."""
        serving, process = self.serving, self.process
        if serving is not None and not process.is_dead:
            self.serving = None
            self.loop.call_soon(self._begin_to_stop, process, serving, context=context_of(process))

    def _begin_to_stop(self, process: Process, serving: Serving) -> None:
        self.told(f"{process.name} stops")
        self.loop.create_task(self._stop(process, serving))

    async def _stop(self, process: Process, serving: Serving) -> None:
        """As `embermq run` does."""
        broker = serving.broker
        await serving.server.stop()
        serving.ticks.stop()
        if broker.peers is not None:
            broker.peers.close()
        if broker.session_store is not None:
            await broker.session_store.close()
        broker.close()
        serving.side.leave()
        process.kill()


def _refuse(_transport: Transport) -> asyncio.Protocol:
    raise AssertionError("nobody listens")


def logs_of(slots: int) -> list[str]:
    """How their topics begin."""
    return [slot_prefix(PREFIX, slot) for slot in range(slots)]
