"""One run: a broker, its stores, its clients and what goes wrong, all of it from a seed."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from itertools import islice
from random import Random
from typing import Any

from msgspec import Struct
from tests.simulation.clients import Broken, QueueConsumer, SimulatedClient
from tests.simulation.loop import Host, SimulatedLoop, Stuck, simulated_time
from tests.simulation.message_log import LogServer
from tests.simulation.node import REDIS_HOST, Node, RedisConnection
from tests.simulation.oracle import Oracle
from tests.simulation.redis_server import SimulatedRedis

from embermq.mqtt.wire.packets import (
    Connack,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from embermq.mqtt.wire.properties import Properties

QUEUE_TOPIC = "$queue/work"
ROUGH_S = (1.0, 2.0, 4.0)
"""How long things go wrong."""
CALM_S = 120.0
"""By then all that is owed has come."""
AFTER_S = 1.0
"""What comes too often comes by then."""
LOOK_S = 0.25
TRACE_LINES = 60
COPY_S = 0.2
REPLICA_BEHIND = 5
"""So many copies: the replica is a second behind at most, and `redis.settle_s` is 3."""
SETTLE_S = 6.0


class Outcome(Struct, frozen=True):
    """What a run was like. `broken` is what a promise was broken by, "" when all were kept; `trace` are the last things
    that happened, `digest` stands for all of them."""

    seed: int
    nodes: int
    broken: str
    digest: str
    trace: tuple[str, ...]
    callbacks: int
    messages: int
    starts: int
    simulated_s: float


class World:
    """See the module. `verbose` is told every line of the trace as it happens; `kinds` of faults are the only ones that
    there are, by their names, instead of those that the seed chooses. Of two `nodes` one stands by."""

    def __init__(
        self,
        seed: int,
        *,
        verbose: Callable[[str], None] | None = None,
        kinds: tuple[str, ...] = (),
        nodes: int = 1,
    ) -> None:
        self.seed = seed
        self.random = Random(f"what happens in {seed}")
        self.loop = SimulatedLoop(Random(f"how long it takes in {seed}"))
        self.log = LogServer(self.loop, Random(f"what arrives in {seed}"))
        self.redis = SimulatedRedis(self.loop.wall_ms)
        self.redis_host = Host(partial(RedisConnection, self.redis))
        self.loop.hosts[REDIS_HOST] = self.redis_host
        self.nodes = [Node(name, self.loop, self.log, self.redis) for name in ("n1", "n2")[:nodes]]
        for node in self.nodes:
            node.told = partial(self.tell, "node")
        self.node = self.nodes[0]
        """The one that should serve, by the word of a lease."""
        self.oracle = Oracle()
        self.is_rough = True
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self._hash = blake2b(digest_size=8)
        self._verbose = verbose
        self._numbers: dict[str, int] = {}
        self._faults = [getattr(self, f"_{kind}") for kind in kinds] or self._choose_faults()
        self._replica: deque[Any] = deque(maxlen=REPLICA_BEHIND)
        self._mended_s = 0.0
        """Until then the broker sends again what Redis has lost."""
        self.clients = self._make_clients()

    # What is told

    def tell(self, who: str, what: str) -> None:
        line = f"{self.loop.now_s - 1000:9.4f} {who} {what}"
        self._hash.update(line.encode())
        self.trace.append(line)
        if self._verbose is not None:
            self._verbose(line)

    def note(self, who: str, way: str, packet: Packet) -> None:
        """A packet of a client."""
        self.oracle.now_s = self.loop.now_s
        self.tell(who, f"{way} {brief(packet)}")

    # Clients

    def _make_clients(self) -> list[SimulatedClient]:
        def made(name: str, *filters: tuple[str, int], has_will: bool = False) -> SimulatedClient:
            return SimulatedClient(name, self, self.oracle, filters=filters, has_will=has_will)

        worked = (("consumer-group", "g"), ("prefetch", "4"))
        return [
            made("p1", has_will=True),
            made("p2", ("t/a/#", 1)),
            made("s1", ("t/#", 2), ("wills/#", 2)),
            made("s2", ("t/#", 1), has_will=True),
            made("m1", ("$share/g/t/#", 2)),
            made("m2", ("$share/g/t/#", 2)),
            *(
                QueueConsumer(name, self, self.oracle, filters=((QUEUE_TOPIC, 1),), wishes=worked)
                for name in ("q1", "q2")
            ),
        ]

    def host_for(self, _client: SimulatedClient) -> Host:
        return self.node.host

    def _act(self, client: SimulatedClient) -> None:
        """Something that a client does by itself, and what it does next."""
        if not self.is_rough:
            return
        random = self.random
        does = random.random()
        if client.name.startswith("p") and does < 0.85:
            for _ in range(random.choice((1, 1, 2, 5))):
                self._publish(client)
        elif does < 0.90:
            client.drop()
        elif does < 0.95:
            client.leave()
        elif does < 0.97 and client.is_open:
            client.dial()
        self.loop.call_later(random.random() * 0.4, self._act, client, context=self.loop.bare)

    def _publish(self, client: SimulatedClient) -> None:
        random = self.random
        topic = random.choice(("t/a/1", "t/a/2", "t/b", QUEUE_TOPIC))
        qos = random.choice((1, 2))
        number = self._numbers[client.name] = self._numbers.get(client.name, 0) + 1
        payload = f"{client.name}:{number}".encode()
        properties = None
        if topic == QUEUE_TOPIC and random.random() < 0.3:
            properties = Properties(user_properties=(("partition-key", random.choice("ab")),))
        client.publish(topic, payload, qos, properties=properties)

    # Faults

    def _choose_faults(self) -> list[Callable[[], None]]:
        """Few kinds in one run meet more often than all of them do."""
        kinds = [
            self._kill,
            self._redis_restarts,
            self._redis_loses_answers,
            self._redis_away,
            self._redis_fails_over,
            self._log_away,
            self._clock_steps,
            self._slow,
        ]
        if len(self.nodes) > 1:
            kinds.remove(self._clock_steps)  # broker time is each node's own
            return [self._take_over, *self.random.sample(kinds, self.random.randint(1, 3))]
        chosen = self.random.sample(kinds, self.random.randint(1, 4))
        return chosen if self.random.random() < 0.2 else [self._kill, *chosen]

    def _go_wrong(self) -> None:
        if not self.is_rough:
            return
        self.random.choice(self._faults)()
        self.loop.call_later(0.1 + self.random.random() * 1.2, self._go_wrong, context=self.loop.bare)

    def _copy_redis(self) -> None:
        """What a replica has heard of, as it falls behind."""
        if self.is_rough:
            self._replica.append(self.redis.values.copy())
            self.loop.call_later(COPY_S, self._copy_redis, context=self.loop.bare)

    def _redis_fails_over(self) -> None:
        """What it loses of a broker that is no more, or soon will be, nobody can send again."""
        is_young = self.loop.now_s < self.node.started_s + REPLICA_BEHIND * COPY_S
        if not self._replica or is_young or self.loop.now_s < self._mended_s or self.node.process.kill_at:
            return
        lost = self.random.randint(1, len(self._replica))
        self.tell("fault", f"redis fails over and loses {lost * COPY_S:g} s at most")
        self._mended_s = self.loop.now_s + SETTLE_S
        self.redis.fails_over(self._replica[-lost])

    def _kill(self) -> None:
        process = self.node.process
        if self.loop.now_s < self._mended_s:
            return
        process.kill_at = process.steps + self.random.choice((1, 2, 3, 5, 8, 13, 30, 60))
        self.tell("fault", f"{process.name} is killed before step {process.kill_at}")

    def _take_over(self) -> None:
        """The lease of the node that serves ends: it is asleep, cut off from etcd, or dead, and does not know."""
        if self.loop.now_s < self._mended_s:
            return
        former, self.node = self.node, next(node for node in self.nodes if node is not self.node)
        process = former.process
        how = self.random.choice(("goes on", "sleeps", "sleeps", "is dead"))
        self.tell("fault", f"{self.node.name} takes over from {former.name}, which {how}")
        former.stands_by, self.node.stands_by = True, False
        if how == "is dead":
            process.kill()
        elif how == "sleeps" and not process.is_dead:
            process.pause()
            sleeps_s = self.random.choice((0.05, 0.5, 2.0, 60.0))
            self.loop.call_later(sleeps_s, process.wake, self.loop, context=self.loop.bare)
        wait_s = self.random.choice((0.0, 0.01, 0.3))
        self.loop.call_later(wait_s, self._serve_instead, self.node, context=self.loop.bare)

    def _serve_instead(self, node: Node) -> None:
        if node is self.node:
            node.start()

    def _redis_restarts(self) -> None:
        self.tell("fault", "redis is started again")
        self.redis.restarts()

    def _redis_loses_answers(self) -> None:
        self.redis.loses_answers = self.random.choice((1, 1, 2))
        self.tell("fault", f"redis loses {self.redis.loses_answers} answers")

    def _redis_away(self) -> None:
        away_s = self.random.choice((0.05, 0.3, 1.0, 2.5))
        self.tell("fault", f"redis is away for {away_s} s")
        self.redis.away = self.redis_host.is_away = True
        self.redis.restarts()
        self.loop.call_later(away_s, self._redis_back, context=self.loop.bare)

    def _redis_back(self) -> None:
        self.redis.away = self.redis_host.is_away = False

    def _log_away(self) -> None:
        away_s = self.random.choice((0.05, 0.3, 1.0))
        self.tell("fault", f"the log is away for {away_s} s")
        self.log.away = True
        self.loop.call_later(away_s, self._log_back, context=self.loop.bare)

    def _log_back(self) -> None:
        self.log.away = False

    def _clock_steps(self) -> None:
        step_ms = self.random.choice((-3_600_000, -61_000, -500, 500, 61_000, 3_600_000))
        self.tell("fault", f"the wall clock steps by {step_ms} ms")
        self.node.time.step_ms += step_ms

    def _slow(self) -> None:
        factor = self.random.choice((10.0, 50.0))
        self.tell("fault", f"the network is {factor:g} times slower")
        self.loop.slow = factor
        self.loop.call_later(0.2 + self.random.random(), self._fast, context=self.loop.bare)

    def _fast(self) -> None:
        self.loop.slow = 1.0

    # The run

    def run(self) -> Outcome:
        """From the first CONNECT until everything is where it belongs, or something is not."""
        broken = ""
        disabled = logging.root.manager.disable
        if self._verbose is None:
            logging.disable(logging.CRITICAL)
        with simulated_time(self.loop):
            try:
                self.loop.run_until_complete(self._whole())
            except (Broken, Stuck) as error:
                broken = str(error) or repr(error)
            except Exception as error:
                broken = "".join(traceback.format_exception(error))
            finally:
                for node in self.nodes:
                    node.stands_by = True
                    node.process.kill()
                self.loop.close()
                logging.disable(disabled)
        return Outcome(
            self.seed,
            len(self.nodes),
            broken,
            self._hash.hexdigest(),
            tuple(self.trace),
            self.loop.handled,
            self.oracle.count,
            sum(node.starts for node in self.nodes),
            self.loop.now_s,
        )

    async def _whole(self) -> None:
        loop, bare = self.loop, self.loop.bare
        self._done = loop.create_future()
        loop.unexpected = self._fail
        self.node.start()
        for client in self.clients:
            loop.call_later(self.random.random() * 0.2, client.dial, context=bare)
            loop.call_later(0.2 + self.random.random() * 0.5, self._act, client, context=bare)
        loop.call_later(0.5, self._go_wrong, context=bare)
        if self._redis_fails_over in self._faults:
            loop.call_later(0.4, self._copy_redis, context=bare)
        loop.call_later(0.5 + self.random.choice(ROUGH_S), self._calm_down, context=bare)
        await self._done

    def _calm_down(self) -> None:
        self.tell("world", "nothing goes wrong any more")
        self.is_rough = False
        for node in self.nodes:
            node.process.kill_at = 0
        self._look(self.loop.now_s + CALM_S)

    def _look(self, end_s: float) -> None:
        """Until all has come that is owed."""
        missing = [f"{one.name} is not quiet" for one in self.clients if not one.is_quiet]
        missing = missing or list(islice(self.oracle.missing(self.clients), 5))
        if not missing:
            self.loop.call_later(AFTER_S, self._finish, context=self.loop.bare)
        elif self.loop.now_s >= end_s:
            self._fail(Broken("; ".join(missing)))
        else:
            self.loop.call_later(LOOK_S, self._look, end_s, context=self.loop.bare)

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)


def brief(packet: Packet) -> str:
    """A packet in one short line."""
    match packet:
        case Publish():
            told = f"{packet.packet_id}{' dup' * packet.dup} {packet.topic} {packet.payload.decode()}"
            said = dict(packet.properties.user_properties) if packet.properties is not None else {}
            return f"PUBLISH {packet.qos} {told} {said.get('message-id', '')}"
        case Connack():
            return f"CONNACK {packet.reason_code} present {packet.session_present}"
        case Suback():
            return f"SUBACK {packet.packet_id} {packet.reason_codes}"
        case Subscribe():
            return f"SUBSCRIBE {packet.packet_id} {packet.subscriptions[0].topic_filter}"
        case Puback() | Pubrec() | Pubrel() | Pubcomp():
            return f"{type(packet).__name__.upper()} {packet.packet_id} {packet.reason_code or ''}"
        case _:
            return type(packet).__name__.upper()
