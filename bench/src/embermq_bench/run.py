"""The stages that every run has: connect, warm up, measure, drain, close."""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.client import BenchClient
from embermq_bench.connecting import bounded, open_files
from embermq_bench.cost_meter import CostMeter
from embermq_bench.errors import BenchError
from embermq_bench.measurement import Measurement
from embermq_bench.pacing import OpenLoop, Saturation
from embermq_bench.process_cost import WatchedProcess
from embermq_bench.publisher import Publisher
from embermq_bench.settings import Limits, Load, Target

POLL_S = 0.05
VERSION_NAMES = {ProtocolVersion.V31: "3.1", ProtocolVersion.V311: "3.1.1", ProtocolVersion.V5: "5"}

Report = TypeVar("Report")


class Stage(msgspec.Struct, frozen=True):
    """How far a run is: `fraction` of the stage is 0 to 1."""

    name: str
    fraction: float
    published: int
    delivered: int


class Pace(Protocol):
    """What decides when messages leave."""

    def start(self) -> None:
        """Begin now."""

    def stop_after(self, messages: int) -> None:
        """Let this many more leave, then no more."""

    def stop(self) -> None:
        """Let none leave that has not been offered."""

    @property
    def is_done(self) -> bool:
        """Whether all has left."""


class Run(ABC, Generic[Report]):
    """The clients of one run and its stages. A scenario has its publishers, its receivers, and what it reports."""

    def __init__(self, target: Target, load: Load, limits: Limits) -> None:
        self.run_id = secrets.token_hex(4)
        self.target = target
        self.load = load
        self.limits = limits
        self.measurement = Measurement()
        self.publishers: Sequence[Publisher] = ()
        self.receivers: Sequence[BenchClient] = ()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_stage: Callable[[Stage], None] = lambda stage: None

    # A scenario says these.

    async def prepare(self) -> None:
        """Before anybody enters."""

    @abstractmethod
    async def subscribe(self, number: int) -> None:
        """This receiver, which has entered, asks for its messages."""

    @abstractmethod
    def delivered(self) -> int:
        """Messages that have arrived."""

    @abstractmethod
    def has_ended(self) -> bool:
        """All sent, all answered, all delivered."""

    @abstractmethod
    def deliveries_per_message(self) -> int:
        """How many receivers get each message."""

    @abstractmethod
    def report(self, meter: CostMeter, published: int, delivered: int) -> Report:
        """What the run has found; the two numbers are of the measured part."""

    def begin(self) -> None:
        """The load has begun."""

    async def end(self) -> None:
        """The load is over; what was sent is still on its way."""

    async def carry_out(
        self, watched: Sequence[WatchedProcess], *, children: bool, on_stage: Callable[[Stage], None]
    ) -> Report:
        """All stages in order."""
        self._on_stage = on_stage
        load = self.load
        meter = CostMeter(watched, children=children, pss_interval_s=self.limits.pss_interval_s)
        await self.prepare()
        await self._connect()
        pace = self._make_pace()
        self.measurement.since_ns = time.monotonic_ns() + int(load.warmup_s * 1e9)
        pace.start()
        self.begin()

        def has_ended() -> bool:
            return pace.is_done and not any(each.outstanding for each in self.publishers) and self.has_ended()

        pings = asyncio.ensure_future(self._keep_alive())
        try:
            await self._wait("warm-up", load.warmup_s, lambda: False)
            before = (self.published(), self.delivered())
            meter.begin()
            if load.count:
                pace.stop_after(load.count)
                await self._wait("measure", load.duration_s + load.drain_s, has_ended, tick=meter.sample)
            else:
                await self._wait("measure", load.duration_s, lambda: False, tick=meter.sample)
            meter.end()
            after = (self.published(), self.delivered())
            pace.stop()
            await self.end()
            await self._wait("drain", load.drain_s, has_ended)
            await self._wait("drain", self.limits.settle_s, lambda: False)
        finally:
            pings.cancel()
        await self._leave()
        return self.report(meter, after[0] - before[0], after[1] - before[1])

    def abort(self) -> None:
        """Drop whatever is still connected."""
        for client in self._clients():
            client.abort()
        self._failure.cancel()

    def fail(self, error: BenchError) -> None:
        """The run cannot go on."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def published(self) -> int:
        """Messages that the broker has taken over; at QoS 0 those that were sent."""
        if self.load.qos:
            return sum(publisher.acknowledged for publisher in self.publishers)
        return sum(publisher.sent for publisher in self.publishers)

    async def side_by_side(self, stage: str, steps: Sequence[Awaitable[None]]) -> None:
        """All steps, a bounded number at a time; the first failure is raised."""
        done = 0

        async def counted(step: Awaitable[None]) -> None:
            nonlocal done
            await step
            done += 1
            self._on_stage(Stage(stage, done / len(steps), 0, 0))

        await bounded([counted(step) for step in steps], self.limits.connects_at_once)

    def _make_pace(self) -> Pace:
        if not self.load.rate:
            return Saturation(
                self.publishers,
                self.load.window,
                qos=self.load.qos,
                arrived=lambda: self.delivered() // self.deliveries_per_message(),
            )
        return OpenLoop(
            self.publishers,
            self.load.rate,
            backlog_messages_max=self.limits.backlog_messages_max,
            on_overrun=self.fail,
        )

    async def _connect(self) -> None:
        persistent = self.load.persistent
        expiry_s = self.limits.session_expiry_s if persistent else 0

        async def enter(client: BenchClient) -> None:
            await client.connect(clean_start=not persistent, expiry_s=expiry_s)
            client.on_lost = self.fail

        async def enter_and_subscribe(number: int) -> None:
            await enter(self.receivers[number])
            await self.subscribe(number)

        open_files(len(self.publishers) + len(self.receivers))
        steps = [enter_and_subscribe(number) for number in range(len(self.receivers))]
        await self.side_by_side("connect", steps + [enter(publisher) for publisher in self.publishers])

    async def _leave(self) -> None:
        """Close; a persistent session of ours is removed by a clean start."""
        for client in self._clients():
            client.close()
        if not self.load.persistent:
            return

        async def remove(client_id: str) -> None:
            client = BenchClient(client_id, self.target, self.limits)
            await client.connect(clean_start=True, expiry_s=0)
            client.close()

        await self.side_by_side("clean up", [remove(client.client_id) for client in self._clients()])

    async def _wait(
        self,
        stage: str,
        duration_s: float,
        is_over: Callable[[], bool],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Until the time is up, `is_over` says so, or the run fails (raises)."""
        began = time.monotonic()
        while not is_over():
            left_s = began + duration_s - time.monotonic()
            if left_s <= 0:
                break
            await asyncio.wait((self._failure,), timeout=min(left_s, POLL_S))
            if self._failure.done():
                self._failure.result()
            tick()
            fraction = min(1.0, (time.monotonic() - began) / duration_s)
            self._on_stage(Stage(stage, fraction, self.published(), self.delivered()))

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self.limits.keep_alive_s / 2)
            for client in self._clients():
                client.ping()

    def _clients(self) -> list[BenchClient]:
        return [*self.receivers, *self.publishers]
