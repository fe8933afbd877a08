"""One run: brokers, their stores, their clients and what goes wrong, all of it from a seed."""

from __future__ import annotations

import gc
import logging
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from itertools import islice
from random import Random

from msgspec import Struct
from tests.simulation.clients import Broken, QueueConsumer, SimulatedClient, Visitor
from tests.simulation.etcd import SimulatedEtcd
from tests.simulation.faults import Faults
from tests.simulation.loop import Host, Process, SimulatedLoop, Stuck, simulated_time
from tests.simulation.message_log import LogServer
from tests.simulation.node import REDIS_HOST, Node, RedisConnection, Servers, logs_of, simulated_wiring
from tests.simulation.oracle import Oracle
from tests.simulation.redis_server import SimulatedRedis

from embermq.cluster.slots import slot_of
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
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

ROUGH_S = (1.0, 2.0, 4.0)
"""How long things go wrong with one node; with several twice as long, since who takes over waits for a lease to end."""
BEGIN_S = 3.0
"""The first nodes serve by then."""
CALM_S = 120.0
"""By then all that is owed has come."""
AFTER_S = 1.0
"""What comes too often comes by then."""
LOOK_S = 0.25
RETAINED = ("r/1", "r/2")
NAMES = tuple("abcdefghijkl")
TRACE_LINES = 60


@contextmanager
def collected_at_the_end() -> Iterator[None]:
    """What a run leaves in circles is looked through once: what was there before, never."""
    gc.disable()
    gc.freeze()
    try:
        yield
        gc.collect()
    finally:
        gc.unfreeze()
        gc.enable()


class Outcome(Struct, frozen=True):
    """What a run was like. `broken` is what a promise was broken by, "" when all were kept; `trace` are the last things
    that happened, `digest` stands for all of them."""

    seed: int
    nodes: int
    slots: int
    broken: str
    digest: str
    trace: tuple[str, ...]
    callbacks: int
    messages: int
    starts: int
    simulated_s: float


class World:
    """See the module. `verbose` is told every line of the trace as it happens; `kinds` of faults are the only ones that
    there are, by their names, instead of those that the seed chooses. With more `nodes` than `slots` some stand by."""

    def __init__(
        self,
        seed: int,
        *,
        verbose: Callable[[str], None] | None = None,
        kinds: tuple[str, ...] = (),
        nodes: int = 1,
        slots: int = 1,
    ) -> None:
        self.seed = seed
        self.slots = slots
        self.random = Random(f"what happens in {seed}")
        self.loop = SimulatedLoop(Random(f"how long it takes in {seed}"))
        arrives = Random(f"what arrives in {seed}")
        redis = SimulatedRedis(self.loop.wall_ms)
        self.shared = Servers(
            SimulatedEtcd(self.loop), {name: LogServer(self.loop, arrives) for name in logs_of(slots)}, redis
        )
        self.loop.hosts[REDIS_HOST] = Host(partial(RedisConnection, redis), machine=REDIS_HOST[0])
        self._ending = self.random.choice(NAMES) if slots > 1 else ""
        """Of the names that say to which slot something belongs."""
        queue = f"work{self._ending}"
        self.queue_topic = f"$queue/{queue}"
        self.nodes = [Node(f"n{number}", self.loop, slots, queue) for number in range(1, nodes + 1)]
        for node in self.nodes:
            node.told = partial(self.tell, "node")
        self.oracle = Oracle(is_direct=slots == 1)
        self.is_rough = True
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self._hash = blake2b(digest_size=8)
        self._verbose = verbose
        self._numbers: dict[str, int] = {}
        self._faults = Faults(self, kinds)
        self.clients = self._make_clients()
        self._calm = {client for client in self.clients if self.random.random() < 0.5}
        """They stay connected longer than others do."""

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
        ending = self._ending

        def made(
            name: str, *filters: tuple[str, int], has_will: bool = False, is_kept: bool = True
        ) -> SimulatedClient:
            return SimulatedClient(
                name + ending, self, self.oracle, filters=filters, has_will=has_will, is_kept=is_kept
            )

        worked = (("consumer-group", "g"), ("prefetch", self.random.choice("14")))
        return [
            made("p1", has_will=True),
            made("p2", ("t/a/#", 1)),
            made("s1", ("t/#", 2), ("wills/#", 2)),
            made("s2", ("t/#", 1), has_will=True),
            made("m1", (f"$share/g{ending}/t/#", 2)),
            made("m2", (f"$share/g{ending}/t/#", 2)),
            *([made("m3", (f"$share/h{ending}/t/#", 2))] if self.slots > 1 else ()),
            made("v1", ("t/#", 1), is_kept=False),
            *(
                QueueConsumer(
                    name + ending, self, self.oracle, filters=((self.queue_topic, 1),), wishes=worked
                )
                for name in ("q1", "q2")
            ),
        ]

    def host_for(self, _client: SimulatedClient) -> Host:
        """Where a client tries next: by chance, as a load balancer has it."""
        hosts = [node.host for node in self.nodes]
        there = [host for host in hosts if not host.is_away]
        return self.random.choice(there) if there else hosts[0]

    def drop_clients_of(self, process: Process) -> None:
        """They have noticed that it says nothing any more."""
        for client in self.clients:
            if client.is_at(process):
                client.drop()

    def _act(self, client: SimulatedClient) -> None:
        """Something that a client does by itself, and what it does next."""
        if not self.is_rough:
            return
        random = self.random
        does = random.random()
        if does < 0.85 and (client.name.startswith("p") or client in self._calm):
            for _ in range(random.choice((1, 1, 2, 5)) if client.name.startswith("p") else 0):
                self._publish(client)
        elif does < 0.90:
            client.drop()
        elif does < 0.95:
            client.leave()
        elif does < 0.97 and client.is_open:
            client.dial()
        elif does < 0.99:
            client.resubscribe()
        self.loop.call_later(random.random() * 0.4, self._act, client, context=self.loop.bare)

    def _publish(self, client: SimulatedClient) -> None:
        random = self.random
        topic = random.choice(("t/a/1", "t/a/2", "t/b", self.queue_topic, *RETAINED))
        qos = random.choice((1, 2))
        number = self._numbers[client.name] = self._numbers.get(client.name, 0) + 1
        payload = f"{client.name}:{number}".encode()
        properties = None
        if topic == self.queue_topic and random.random() < 0.3:
            properties = Properties(user_properties=(("partition-key", random.choice("ab")),))
        client.publish(topic, payload, qos, retain=topic in RETAINED, properties=properties)

    # The run

    def run(self) -> Outcome:
        """From the first CONNECT until everything is where it belongs, or something is not."""
        broken = ""
        disabled = logging.root.manager.disable
        if self._verbose is None:
            logging.disable(logging.CRITICAL)
        wiring = simulated_wiring(self.loop, self.shared, {node.name: node for node in self.nodes})
        with collected_at_the_end(), simulated_time(self.loop), wiring:
            try:
                self.loop.run_until_complete(self._whole())
            except (Broken, Stuck) as error:
                broken = str(error) or repr(error)
            except Exception as error:
                broken = "".join(traceback.format_exception(error))
            finally:
                for node in self.nodes:
                    node.is_off = True
                    node.process.kill()
                self.loop.close()
                logging.disable(disabled)
        return Outcome(
            self.seed,
            len(self.nodes),
            self.slots,
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
        self.shared.etcd.look()
        for node in self.nodes:
            loop.call_later(self.random.random() * 0.1, node.start, context=bare)
        for client in self.clients:
            loop.call_later(BEGIN_S + self.random.random() * 0.2, client.dial, context=bare)
            loop.call_later(BEGIN_S + 0.2 + self.random.random() * 0.5, self._act, client, context=bare)
        loop.call_later(BEGIN_S + self.random.random() * 0.5, self._faults.begin, context=bare)
        rough_s = self.random.choice(ROUGH_S) * (1 if len(self.nodes) == 1 else 2)
        loop.call_later(BEGIN_S + 0.5 + rough_s, self._calm_down, context=bare)
        await self._done

    def _calm_down(self) -> None:
        self.tell("world", "nothing goes wrong any more")
        self.is_rough = False
        self._faults.end()
        self._look(self.loop.now_s + CALM_S)

    def _look(self, end_s: float) -> None:
        """Until all has come that is owed."""
        missing = [f"{one.name} is not quiet" for one in self.clients if not one.is_quiet]
        missing = missing or list(islice(self.oracle.missing(self.clients), 5))
        if not missing:
            self._call_visitors(end_s)
        elif self.loop.now_s >= end_s:
            self._fail(Broken("; ".join(missing)))
        else:
            self.loop.call_later(LOOK_S, self._look, end_s, context=self.loop.bare)

    def _call_visitors(self, end_s: float) -> None:
        """One for each slot looks at what is retained."""
        names = {slot_of(name, self.slots): name for name in map("visitor-{}".format, range(20))}
        visitors = [Visitor(name, self, self.oracle, "r/#") for name in names.values()]
        for visitor in visitors:
            visitor.dial()
        self._look_at(visitors, end_s)

    def _look_at(self, visitors: list[Visitor], end_s: float) -> None:
        if all(visitor.is_quiet for visitor in visitors):
            self.loop.call_later(AFTER_S, self._finish, visitors, context=self.loop.bare)
        elif self.loop.now_s >= end_s:
            self._fail(Broken("who comes new is not let in, or cannot subscribe"))
        else:
            self.loop.call_later(LOOK_S, self._look_at, visitors, end_s, context=self.loop.bare)

    def _finish(self, visitors: list[Visitor]) -> None:
        if self._done.done():
            return
        try:
            self.oracle.check_retained({visitor.name: visitor.retained for visitor in visitors})
        except Broken as error:
            self._fail(error)
        else:
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
        case Connect():
            return f"CONNECT {packet.will.payload.decode() if packet.will is not None else ''}"
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
