"""Durable queues by hand: the room alone, a store for its rows, and a clock."""

from __future__ import annotations

import sys
from typing import Any

from msgspec import json
from tests.support.queue_rows import QueueRows
from tests.support.queue_writes import GatheredWrites

from embermq.queues.consumer import Newcomer
from embermq.queues.durations import parse_duration
from embermq.queues.names import Verb
from embermq.queues.publication import Publication
from embermq.queues.queue import ConsumerDelivery
from embermq.queues.queues import Queues
from embermq.queues.settings import GroupSettings, parse_settings
from embermq.queues.settling import Outcome, SettleRequest

START_MS = 1_000_000
TIMING = GroupSettings(join_debounce_ms=100, disconnect_grace_ms=5_000)


class Bench:
    """Queues, a store for their rows, and a clock. Everything is written to sockets at once unless it is told. `name`
    is the queue that is meant."""

    name = "q"

    def __init__(self, *, letter_bytes_max: int = sys.maxsize, **settings: Any) -> None:
        self.gathered = GatheredWrites()
        self.letter_bytes_max = letter_bytes_max
        self.queues = Queues(TIMING, 1, self.gathered, letter_bytes_max=letter_bytes_max)
        self.rows = QueueRows()
        self.now_ms = START_MS
        self.log_end = 0
        self.sent: list[ConsumerDelivery] = []
        self.writes = True
        self.configure(**settings)

    def configure(self, **settings: Any) -> None:
        self.queues.configure(parse_settings(self.name, json.encode(settings)))

    def publish(self, key: str | None = None, count: int = 1, **more: Any) -> None:
        for _ in range(count):
            expires_ms = more.pop("expires_ms", 0)
            acceptance = self.queues.accept(
                self.name, Publication(key, **more), 10, 0, self.now_ms, expires_ms=expires_ms
            )
            self.rows.apply(self.gathered.take(), self.log_end)
            if acceptance.ticket >= 0:
                self.queues.commit(self.name, [(acceptance.ticket, self.log_end)])
                self.log_end += 1
        self.run()

    def join(self, client: str, group: str = "g", *, epoch: int = 1, prefetch: int = 32, **more: Any) -> None:
        newcomer = Newcomer(client, epoch, prefetch, **more)
        self.queues.join(self.name, group, newcomer, self.now_ms)
        self.run()

    def leave(self, client: str, *, may_return: bool = False) -> None:
        self.queues.leave(self.name, "g", client, self.now_ms, may_return=may_return)
        self.run()

    def settle(
        self, delivery: ConsumerDelivery, verb: Verb, delay_ms: int | None = None, **other: Any
    ) -> Outcome:
        request = SettleRequest(verb, (delivery.stamps.message_id,), delivery.stamps.group, "why", delay_ms)
        client, epoch = other.get("client", delivery.client_id), other.get("epoch", delivery.epoch)
        (outcome,) = self.queues.settle(self.name, request, client, epoch, self.now_ms)
        self.run()
        return outcome

    def run(self) -> None:
        for _ in range(2):
            deliveries = self.queues.run(self.now_ms)
            self.sent += deliveries
            if self.writes:
                for delivery in deliveries:
                    self.queues.written((delivery,), self.now_ms)
        self.rows.apply(self.gathered.take(), self.log_end)

    def wait(self, duration: str) -> None:
        end_ms = self.now_ms + parse_duration(duration)
        while (due_ms := self.queues.next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.run()
        self.now_ms = end_ms

    def wait_for_one(self) -> None:
        """Until something is sent, or a day is over."""
        end_ms = self.now_ms + parse_duration("1d")
        while not self.sent and (due_ms := self.queues.next_due_ms()) is not None and due_ms < end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.run()

    def restart(self) -> None:
        self.gathered.take()
        self.queues = Queues(TIMING, 1, self.gathered, letter_bytes_max=self.letter_bytes_max)
        self.queues.restore(self.rows.load(), self.now_ms)
        self.run()

    def take(self) -> list[ConsumerDelivery]:
        taken, self.sent = self.sent, []
        return taken

    def one(self) -> ConsumerDelivery:
        (delivery,) = self.take()
        return delivery

    def offsets(self) -> list[int]:
        return [delivery.offset for delivery in self.take()]

    def dead(self) -> list[tuple[str, str]]:
        """(group, reason) of dead letters, as they are stored."""
        rows = [row for _, row in sorted(self.rows.entries.items()) if row.dead_letter is not None]
        return [(row.dead_letter.group, row.dead_letter.reason) for row in rows if row.dead_letter]
