"""Publishers and subscribers of one run, and the judgement about what came through."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from random import Random

from tests.faults.traffic import Key, Place, Publisher, ReturningClient, Subscriber
from tests.support.waiting import wait_for

from embermq.mqtt.wire.version import ProtocolVersion

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
DRAIN_S = 30.0
QUIET_S = 0.3


class Fleet:
    """Four publishers (3.1.1 and 5, QoS 1 and 2) on `load/...`, or below another `root`, and any subscribers."""

    def __init__(
        self, port: int, random: Random, *, topics: int = 20, window: int = 100, root: str = "load"
    ) -> None:
        self.place = Place(port)
        self.random = random
        self.root = root
        self.publishers = [
            Publisher(
                self.place,
                f"publisher-{version.name}-{qos}",
                version,
                qos=qos,
                topics=[f"{root}/{version.name}/q{qos}/{topic}" for topic in range(topics)],
                window=window,
            )
            for version in (V311, V5)
            for qos in (1, 2)
        ]
        self.subscribers: list[Subscriber] = []

    def subscriber(
        self,
        client_id: str,
        version: ProtocolVersion,
        *,
        restless_s: float = 0.0,
        receive_maximum: int | None = None,
        topic_filter: str = "",
    ) -> Subscriber:
        """Add one, to everything unless told; it stays at most `restless_s` at a time when that is given."""
        topic_filter = topic_filter or f"{self.root}/#"
        subscriber = Subscriber(self.place, client_id, version, topic_filter=topic_filter, random=self.random)
        subscriber.restless_s = restless_s
        subscriber.receive_maximum = receive_maximum
        self.subscribers.append(subscriber)
        return subscriber

    @property
    def clients(self) -> list[ReturningClient]:
        return [*self.publishers, *self.subscribers]

    def check(self) -> None:
        """Raise what any client has noticed."""
        for client in self.clients:
            client.check()

    async def start_subscribers(self) -> None:
        """Subscribed before the first message."""
        for subscriber in self.subscribers:
            subscriber.start()
        for subscriber in self.subscribers:
            await asyncio.wait_for(subscriber.subscribed.wait(), 30)

    def start_publishers(self) -> None:
        for publisher in self.publishers:
            publisher.start()

    def allow(self, messages: int) -> None:
        """So many more from each publisher."""
        for publisher in self.publishers:
            publisher.allow(messages)

    def acknowledged(self) -> int:
        return sum(len(publisher.acknowledged) for publisher in self.publishers)

    async def drain(self, deadline_s: float = DRAIN_S) -> None:
        """Bring all flows to their end and wait until the subscribers have everything, or nothing comes any more."""
        for publisher in self.publishers:
            publisher.lapses_s = 0.0
            publisher.finish()
        await wait_for(self._flows_are_done, deadline_s, f"publishers finish: {self._open_flows()}")
        for subscriber in self.subscribers:
            subscriber.restless_s = subscriber.sleepy_s = 0.0
        with suppress(AssertionError):  # the judgement says what is missing
            await wait_for(self._all_is_there, deadline_s)
        await self._quiet()

    async def _quiet(self) -> None:
        """What is still on its way, a second copy perhaps, arrives now: after a reconnect and a pause in the flow."""
        before = [subscriber.client for subscriber in self.subscribers]
        for client in before:
            if client is not None:
                client.abort()
        loop = asyncio.get_running_loop()
        await wait_for(
            lambda: all(each.client not in (None, *before) for each in self.subscribers),
            DRAIN_S,
            "all are back",
        )
        began = loop.time()
        await wait_for(
            lambda: loop.time() - max(began, *(each.last_at for each in self.subscribers)) > QUIET_S,
            DRAIN_S,
            "the flow ends",
        )

    def _all_is_there(self) -> bool:
        self.check()
        return all(
            len(subscriber.seen)
            >= sum(len(each.acknowledged) for each in self.publishers if subscriber.wants(each.topics[0]))
            for subscriber in self.subscribers
        )

    def _flows_are_done(self) -> bool:
        self.check()
        return all(publisher.is_done for publisher in self.publishers)

    def _open_flows(self) -> str:
        return ", ".join(f"{each.client_id} {each.in_flight}" for each in self.publishers)

    async def stop(self) -> None:
        for client in self.clients:
            await client.stop()

    def judge(self) -> None:
        """Everything acknowledged arrived everywhere, QoS 2 once, in the order of its topic."""
        self.check()
        for subscriber in self.subscribers:
            for publisher in self.publishers:
                if subscriber.wants(publisher.topics[0]):
                    self.judge_one(publisher, subscriber)

    def judge_one(self, publisher: Publisher, subscriber: Subscriber) -> None:
        about = f"{publisher.client_id} to {subscriber.client_id}"
        lost = sorted(publisher.acknowledged - subscriber.seen.keys())
        assert not lost, f"{about}: {len(lost)} of {len(publisher.acknowledged)} lost: {some(lost)}"
        topics = set(publisher.sent)
        if publisher.qos == 2:
            doubled = [key for key in subscriber.seen if key[0] in topics and subscriber.seen[key] > 1]
            assert not doubled, f"{about}: {len(doubled)} doubled at QoS 2: {some(doubled)}"
        swapped = [entry for entry in subscriber.swapped if entry[0][0] in topics]
        assert not swapped, f"{about}: {len(swapped)} out of order: {swapped[:5]}"
        invented = [key for key in subscriber.seen if key[0] in topics and key[1] >= publisher.sent[key[0]]]
        assert not invented, f"{about}: never sent: {some(invented)}"


def some(keys: Iterable[Key]) -> list[Key]:
    return list(keys)[:5]
