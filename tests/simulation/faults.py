"""Kills, pauses, cuts, stores that are away, clocks that step. The seed has kinds and times."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import permutations
from typing import TYPE_CHECKING, Any

from tests.simulation import etcd, message_log
from tests.simulation.node import REDIS_HOST, Node

if TYPE_CHECKING:
    from tests.simulation.world import World

COPY_S = 0.2
REPLICA_BEHIND = 5
"""So many copies: the replica is a second behind at most, and `redis.settle_s` is 3."""
SETTLE_S = 6.0
HEARTBEAT_S = 3.0
"""By then a client knows that the machine it was connected to is no more."""

ENDINGS = (
    "kill",
    "loses_power",
    "sleeps",
    "stops",
    "loses_lease",
    "etcd_away",
    "cut_from_etcd",
    "cut_from_log",
)
"""A broker may end by these."""
STORES = ("redis_restarts", "redis_loses_answers", "redis_away", "redis_fails_over", "log_away", "slow")
BETWEEN = ("cut", "cut_one_way")


class Faults:
    """Of one world. `kinds` are their names; a seed chooses some when there are none."""

    def __init__(self, world: World, kinds: tuple[str, ...]) -> None:
        self._world = world
        self._random = world.random
        self._loop = world.loop
        self._tell: Callable[[str], None] = lambda what: world.tell("fault", what)
        self._faults: list[Callable[[], None]] = [getattr(self, kind) for kind in kinds or self._choose()]
        self._replica: deque[Any] = deque(maxlen=REPLICA_BEHIND)
        self._settled_s = 0.0
        """Until then brokers send again what Redis has lost."""

    def _choose(self) -> list[str]:
        """Few kinds in one run meet more often than all of them do."""
        random, nodes = self._random, self._world.nodes
        kinds = ["clock_steps", *ENDINGS, *STORES]
        if len(nodes) == 1:
            chosen = random.sample(
                ["clock_steps", "sleeps", "stops", "loses_lease", *STORES], random.randint(1, 4)
            )
            return chosen if random.random() < 0.2 else ["kill", *chosen]
        if self._world.slots > 1:
            kinds += BETWEEN
        chosen = random.sample(kinds, random.randint(1, 4))
        if "redis_fails_over" in chosen:  # who is about to be taken over does not send again what was lost
            chosen = [kind for kind in chosen if kind == "kill" or kind not in ENDINGS]
        return chosen

    def begin(self) -> None:
        """From now on things go wrong."""
        self._go_wrong()
        if self.redis_fails_over in self._faults:
            self._copy_redis()

    def _go_wrong(self) -> None:
        if self._world.is_rough:
            self._random.choice(self._faults)()
            self._later(0.1 + self._random.random() * 1.2, self._go_wrong)

    def end(self) -> None:
        """All is mended."""
        world = self._world
        for node in world.nodes:
            node.process.kill_at = 0
            node.process.wake(self._loop)
        for here, there in permutations((*(node.name for node in world.nodes), *MACHINES), 2):
            self._loop.mend(here, there)

    def _later(self, wait_s: float, call: Callable[..., None], *args: object) -> None:
        self._loop.call_later(wait_s, call, *args, context=self._loop.bare)

    def _one_that_runs(self) -> Node | None:
        """Mostly one that serves; None while what Redis has lost is sent again."""
        if self._loop.now_s < self._settled_s:
            return None
        nodes = self._world.nodes
        serving = [node for node in nodes if node.serving is not None]
        return self._random.choice(serving if serving and self._random.random() < 0.9 else nodes)

    # Brokers

    def kill(self) -> None:
        node = self._one_that_runs()
        if node is None:
            return
        process = node.process
        process.kill_at = process.steps + self._random.choice((1, 2, 3, 5, 8, 13, 30, 60))
        self._tell(f"{process.name} is killed before step {process.kill_at}")
        self._forget_lease(node)

    def _forget_lease(self, node: Node) -> None:
        """Somebody may see to it that its lease ends at once."""
        if self._random.random() < 0.5:
            self._later(self._random.choice((0.01, 0.3)), self._world.shared.etcd.forget, node.name)

    def loses_power(self) -> None:
        """Its machine does: nobody hears of the ends of connections."""
        node = self._one_that_runs()
        if node is None or node.process.is_dead:
            return
        self._tell(f"the machine of {node.process.name} loses power")
        node.process.is_mute = True
        node.process.kill()
        self._forget_lease(node)
        self._later(HEARTBEAT_S, self._world.drop_clients_of, node.process)

    def sleeps(self) -> None:
        node = self._one_that_runs()
        if node is None or node.process.is_dead or node.process.is_paused:
            return
        sleeps_s = self._random.choice((0.05, 0.5, 2.5, 4.0, 60.0))
        self._tell(f"{node.process.name} sleeps for {sleeps_s:g} s")
        node.process.pause()
        self._later(sleeps_s, node.process.wake, self._loop)
        if sleeps_s >= 2.5:
            self._forget_lease(node)

    def stops(self) -> None:
        node = self._one_that_runs()
        if node is not None:
            self._tell(f"{node.process.name} is to stop in order")
            node.stop()

    # What says who serves

    def loses_lease(self) -> None:
        """An operator deletes its keys, or it was not heard of."""
        node = self._one_that_runs()
        if node is not None:
            self._tell(f"the lease of {node.name} ends")
            self._world.shared.etcd.forget(node.name)

    def etcd_away(self) -> None:
        away_s = self._random.choice((0.3, 1.0, 4.0))
        self._tell(f"etcd is away for {away_s:g} s")
        self._world.shared.etcd.away = True
        self._later(away_s, self._etcd_back)

    def _etcd_back(self) -> None:
        self._world.shared.etcd.away = False
        self._world.shared.etcd.loses_answers = self._random.choice((0, 0, 1, 2))

    def cut_from_etcd(self) -> None:
        node = self._one_that_runs()
        if node is not None:
            self._cut_ways(node.name, etcd.MACHINE, self._random.choice((0.5, 2.0, 5.0)))

    # The network

    def cut_from_log(self) -> None:
        node = self._one_that_runs()
        if node is not None:
            self._cut_ways(node.name, message_log.MACHINE, self._random.choice((0.05, 0.5, 2.0)))

    def cut(self) -> None:
        here, there = self._random.sample(self._world.nodes, 2)
        self._cut_ways(here.name, there.name, self._random.choice((0.05, 0.5, 2.0, 6.0)))

    def cut_one_way(self) -> None:
        here, there = self._random.sample(self._world.nodes, 2)
        cut_s = self._random.choice((0.05, 0.5, 2.0, 6.0))
        self._tell(f"nothing gets from {here.name} to {there.name} for {cut_s:g} s")
        self._loop.cut(here.name, there.name)
        self._later(cut_s, self._loop.mend, here.name, there.name)

    def _cut_ways(self, here: str, there: str, cut_s: float) -> None:
        self._tell(f"{here} and {there} do not reach one another for {cut_s:g} s")
        for ends in ((here, there), (there, here)):
            self._loop.cut(*ends)
            self._later(cut_s, self._loop.mend, *ends)

    def slow(self) -> None:
        factor = self._random.choice((10.0, 50.0))
        self._tell(f"the network is {factor:g} times slower")
        self._loop.slow = factor
        self._later(0.2 + self._random.random(), self._fast)

    def _fast(self) -> None:
        self._loop.slow = 1.0

    # Redis

    def _copy_redis(self) -> None:
        """What a replica has heard of, as it falls behind."""
        if self._world.is_rough:
            self._replica.append(self._world.shared.redis.values.copy())
            self._later(COPY_S, self._copy_redis)

    def redis_fails_over(self) -> None:
        """What it loses of a broker that is no more, or soon will be, nobody can send again."""
        loop, nodes = self._loop, self._world.nodes
        young_s = loop.now_s - REPLICA_BEHIND * COPY_S
        serving = [node for node in nodes if node.serving is not None and node.served_s < young_s]
        is_whole = len(serving) == self._world.slots and not any(node.process.kill_at for node in nodes)
        if not self._replica or not is_whole or loop.now_s < self._settled_s:
            return
        lost = self._random.randint(1, len(self._replica))
        self._tell(f"redis fails over and loses {lost * COPY_S:g} s at most")
        self._settled_s = loop.now_s + SETTLE_S
        self._world.shared.redis.fails_over(self._replica[-lost])

    def redis_restarts(self) -> None:
        self._tell("redis is started again")
        self._world.shared.redis.restarts()

    def redis_loses_answers(self) -> None:
        redis = self._world.shared.redis
        redis.loses_answers = self._random.choice((1, 1, 2))
        self._tell(f"redis loses {redis.loses_answers} answers")

    def redis_away(self) -> None:
        away_s = self._random.choice((0.05, 0.3, 1.0, 2.5))
        self._tell(f"redis is away for {away_s} s")
        redis = self._world.shared.redis
        redis.away = self._loop.hosts[REDIS_HOST].is_closed = True
        redis.restarts()
        self._later(away_s, self._redis_back)

    def _redis_back(self) -> None:
        self._world.shared.redis.away = self._loop.hosts[REDIS_HOST].is_closed = False

    # The log

    def log_away(self) -> None:
        """That of one slot."""
        away_s = self._random.choice((0.05, 0.3, 1.0))
        name = self._random.choice(list(self._world.shared.logs))
        self._tell(f"log {name} is away for {away_s} s")
        log = self._world.shared.logs[name]
        log.away = True
        self._later(away_s, self._log_back, log)

    def _log_back(self, log: message_log.LogServer) -> None:
        log.away = False

    # Clocks

    def clock_steps(self) -> None:
        step_ms = self._random.choice((-3_600_000, -61_000, -500, 500, 61_000, 3_600_000))
        node = self._random.choice(self._world.nodes)
        self._tell(f"the wall clock of {node.name} steps by {step_ms} ms")
        node.time.step_ms += step_ms


MACHINES = (etcd.MACHINE, message_log.MACHINE, REDIS_HOST[0])
