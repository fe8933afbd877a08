"""A broker in a process of the simulation: the product's own wiring, on stores, a network and clocks that are not real.

Only what touches the world is another: see `_wired`. The rooms that decide, the adapter of Redis, connections and the
tick loop are what a real broker runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import hiredis
from tests.simulation.log_side import SimulatedLogSide
from tests.simulation.loop import Host, Process, SimulatedLoop, Transport, context_of
from tests.simulation.message_log import LogServer
from tests.simulation.redis_server import URL, DirectRedis, SimulatedRedis
from tests.simulation.redis_values import RedisError, Reply, Status

from embermq.access.authentication.gate import Exchange, Gate, Visitor
from embermq.access.authentication.identity import Identity, Refusal
from embermq.app import log_reads, log_times, opened, redis_state, servers
from embermq.app.clock_file import ClockFile
from embermq.app.config import Settings
from embermq.app.log_side import LogSide, Post
from embermq.app.opened import OpenedBroker
from embermq.app.settings import StoreSettings
from embermq.cluster.settings import ClusterSettings
from embermq.edge.clock import NotedTime, TimeSource
from embermq.edge.connection import Connection
from embermq.edge.connection_limits import Admission
from embermq.edge.listener_context import ListenerContext
from embermq.edge.listener_settings import Listener
from embermq.edge.settings import Address, ClientSettings, OwnSettings
from embermq.edge.tick_loop import TickLoop
from embermq.model.client_type import ClientType
from embermq.model.dead_letter_alert import DeadLetterAlert
from embermq.mqtt.wire.packets import Connect
from embermq.ports.dead_letter_alerts import AlertStatistics, DeadLetterAlerts
from embermq.ports.errors import StoreError
from embermq.ports.message_log import MessageLog
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.settings import BrokerQueueSettings, parse_operator_settings

MQTT_PORT = 1883
REDIS_HOST = ("redis", 6379)
NOWHERE = Path("/nonexistent")
LINGER_MS = 2.0
POLL_MS = 100
"""Ticks without a reason are rarer than in a real broker: they are most of what a run would do."""
START_AGAIN_S = 0.5
QUEUE_NAME = "work"
QUEUE_SETTINGS = b"""{
  "partitions": 3,
  "performance": {"delivery_timeout": "1s"},
  "retry_policy": {"max_retries": 1000, "initial_backoff": "100ms", "max_backoff": "200ms", "total_timeout": "7d"}
}"""
SETTINGS = Settings(
    stores=StoreSettings(log="kafka://kafka:9092", session=URL),
    cluster=ClusterSettings(etcd="etcd://etcd:2379/cars"),
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

    def needs_check(self, packet: Connect, visitor: Visitor) -> bool:
        return False

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


@contextmanager
def _wired(node: Node, process: Process, loop: SimulatedLoop) -> Iterator[None]:
    """The wiring makes these where it would make what touches the world."""
    with ExitStack() as stack:
        for place, name, made in (
            (servers, "ClockFile", lambda _: NodeClock(node)),
            (servers, "KafkaLogSide", partial(SimulatedLogSide, node.log, process)),
            (servers, "open_retention", lambda *_: (None, lambda: None)),
            (redis_state, "BlockingRedis", lambda address, _: DirectRedis(node.redis, address)),
            (log_reads, "LogThread", partial(AskedInTurn, loop)),
            (log_times, "LogThread", partial(AskedInTurn, loop)),
            (opened, "WebhookAlerts", lambda *_: NoAlerts()),
        ):
            stack.enter_context(patch.object(place, name, made))
        yield


class Node:
    """A machine that starts its broker again whenever that has ended."""

    def __init__(self, name: str, loop: SimulatedLoop, log: LogServer, redis: SimulatedRedis) -> None:
        self.name = name
        self.loop = loop
        self.log = log
        self.redis = redis
        self.time = MachineTime(loop)
        self.process = Process(name)
        self.process.is_dead = True
        self.broker: OpenedBroker | None = None
        self.noted: NotedTime | None = None
        """What its disk holds: broker time, as of when it was noted last."""
        self.stands_by = False
        """Another node serves: when this one has ended, it is not started again."""
        self.starts = 0
        self.started_s = 0.0
        self.host = Host(self._refuse)
        self.host.is_away = True
        loop.hosts[name, MQTT_PORT] = self.host
        self.told: Callable[[str], None] = lambda _: None

    def _refuse(self, _transport: Transport) -> asyncio.Protocol:
        raise AssertionError("nobody listens")

    def start(self) -> None:
        """Begin a process, unless one runs."""
        if not self.process.is_dead:
            return
        self.starts += 1
        self.started_s = self.loop.now_s
        process = self.process = Process(f"{self.name}/{self.starts}")
        process.at_kill.append(self._ended)
        self.loop.call_soon(self._serve, process, context=context_of(process))

    def _ended(self) -> None:
        self.host.is_away = True
        self.broker = None
        self.told(f"{self.process.name} ends")
        if not self.stands_by:
            self.loop.call_later(START_AGAIN_S, self._start_again, context=self.loop.bare)

    def _start_again(self) -> None:
        if not self.stands_by:
            self.start()

    def _serve(self, process: Process) -> None:
        loop = self.loop
        try:
            with _wired(self, process, loop):
                broker = servers.open_servers(NOWHERE, SETTINGS, 0, loop.call_soon)
        except StoreError as error:
            self.told(f"{process.name} cannot start: {error}")
            process.kill()
            return
        queues = broker.broker.state.queues
        assert isinstance(queues, MqttQueues)
        core = queues.core
        if QUEUE_NAME not in core:
            core.configure(parse_operator_settings(QUEUE_NAME, QUEUE_SETTINGS))
        broker.log_side.on_end.append(lambda error: self._give_up(process, error))
        ticks = TickLoop(
            broker.broker,
            broker.delivery,
            broker.ticks,
            linger_ms=LINGER_MS,
            poll_ms=POLL_MS,
            clock=broker.clock.clock,
        )
        ticks.start_polling()
        ticks.wake()
        self.broker = broker
        settings = ClientSettings(connections_max=1_000)
        listener = Listener(
            "mqtt", Address("127.0.0.1", MQTT_PORT), OwnSettings(), None, None, "", frozenset()
        )
        admission = Admission(settings, broker.broker.state.counters)
        door = ListenerContext(
            broker.broker,
            ticks,
            OpenGate(),
            listener,
            admission,
            connect_timeout_s=settings.connect_timeout_s,
        )

        def accept(_transport: Transport) -> asyncio.Protocol:
            place = admission.arrive()
            assert place is not None
            return Connection(door, place)

        self.host.accept, self.host.process, self.host.is_away = accept, process, False
        self.told(f"{process.name} serves")
        self._look(broker)

    def _look(self, broker: OpenedBroker) -> None:
        broker.clock.look()
        self.loop.call_later(1.0, self._look, broker)

    def _give_up(self, process: Process, error: StoreError) -> None:
        self.told(f"{process.name}: {error}")
        process.kill()
