"""Clients of several queues are lost and come back: no suspect of one queue keeps another waiting for ever."""

from __future__ import annotations

from random import Random

import pytest
from msgspec import json
from tests.support.queue_bench import Bench

from embermq.queues.consumer import Newcomer
from embermq.queues.names import Verb
from embermq.queues.queue import ConsumerDelivery
from embermq.queues.settings import Ordering, parse_settings
from embermq.queues.settling import SettleRequest

QUEUES = ("q", "r", "s")
CLIENTS = ("a", "b", "c")
STEPS = 80


class Crowd:
    """What happens is drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.bench = Bench()
        self.epochs: dict[str, int] = {}
        self.present: dict[str, list[str]] = {}
        for name in QUEUES:
            retries = {"max_retries": 1_000, "total_timeout": "30d", "initial_backoff": "0s"}
            given = {"ordering": self.dice.choice(list(Ordering)).value, "retry_policy": retries}
            self.bench.queues.configure(parse_settings(name, json.encode(given)))
            self.bench.queues.open_group(name, "g", self.bench.now_ms)

    def join(self, client: str, names: list[str]) -> None:
        epoch = self.epochs[client] = self.epochs.get(client, 0) + 1
        self.present[client] = names
        for name in names:
            prefetch, concurrency = self.dice.choice([1, 3, 32]), self.dice.choice([1, 2])
            newcomer = Newcomer(client, epoch, prefetch, concurrency=concurrency)
            self.bench.queues.join(name, "g", newcomer, self.bench.now_ms)
        self.bench.run()

    def leave(self, client: str) -> None:
        for name in self.present.pop(client):
            may_return = self.dice.random() < 0.3
            self.bench.queues.leave(name, "g", client, self.bench.now_ms, may_return=may_return)
        self.bench.run()

    def settle(self, verb: Verb, share: float) -> None:
        left: list[ConsumerDelivery] = []
        for each in self.bench.take():
            if each.client_id in self.present and self.dice.random() < share:
                request = SettleRequest(verb, (each.stamps.message_id,), "g")
                self.bench.queues.settle(each.queue, request, each.client_id, each.epoch, self.bench.now_ms)
            else:
                left.append(each)
        self.bench.sent = left
        self.bench.run()

    def step(self) -> None:
        act, client = self.dice.random(), self.dice.choice(CLIENTS)
        if act < 0.3:
            self.bench.name = self.dice.choice(QUEUES)
            self.bench.publish(self.dice.choice([None, "x", "y"]), count=self.dice.randint(1, 5))
        elif act < 0.5:
            if client in self.present:
                self.leave(client)
            else:
                self.join(client, self.dice.sample(QUEUES, self.dice.randint(1, 3)))
        elif act < 0.8:
            self.settle(Verb.ACK if act < 0.7 else Verb.NACK, 0.4)
        elif act < 0.85:
            name, group = self.dice.choice(QUEUES), self.dice.choice(["", "g"])
            self.bench.queues.pause(name, group, is_paused=self.dice.random() < 0.5)
            self.bench.run()
        else:
            self.bench.wait(self.dice.choice(["1s", "6s", "40s"]))

    def waiting(self) -> int:
        return sum(len(self.bench.queues.queue(name).entries) for name in QUEUES)


@pytest.mark.promise("queues-19")
@pytest.mark.parametrize("seed", range(40))
def test_one_client_of_all_queues_gets_everything_in_the_end(seed: int) -> None:
    crowd = Crowd(seed)
    bench = crowd.bench
    for _ in range(STEPS):
        crowd.step()
    for client in list(crowd.present):
        crowd.leave(client)
    for name in QUEUES:
        for group in ("", "g"):
            bench.queues.pause(name, group, is_paused=False)
    bench.wait("10s")
    bench.take()
    crowd.join("z", list(QUEUES))
    for _ in range(400):
        crowd.settle(Verb.ACK, 1)
        if not bench.sent:
            bench.wait("1s")
        if not crowd.waiting():
            break
    assert not crowd.waiting()
    assert bench.queues.next_due_ms() != 0
