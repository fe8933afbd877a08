"""One run of p2p, fanin or fanout: connect, warm up, measure, drain, close."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from embermq.bench.absence import Absences
from embermq.bench.client import BenchClient
from embermq.bench.connecting import bounded, open_files
from embermq.bench.cost_meter import CostMeter
from embermq.bench.errors import BenchError, LoadError
from embermq.bench.frames import FrameFamily, topic_index
from embermq.bench.measurement import Measurement
from embermq.bench.pacing import OpenLoop, Saturation
from embermq.bench.process_cost import WatchedProcess
from embermq.bench.publisher import Publisher
from embermq.bench.report import LoadReport, cost_reports, per_cpu_second
from embermq.bench.settings import Limits, Load, Target
from embermq.bench.shape import Shape
from embermq.bench.subscriber import Subscriber, acknowledgements
from embermq.protocol.version import ProtocolVersion

POLL_S = 0.05
VERSION_NAMES = {ProtocolVersion.V31: "3.1", ProtocolVersion.V311: "3.1.1", ProtocolVersion.V5: "5"}


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


async def run_load(
    target: Target,
    shape: Shape,
    load: Load,
    *,
    watched: Sequence[WatchedProcess] = (),
    children: bool = False,
    on_stage: Callable[[Stage], None] = lambda stage: None,
    limits: Limits | None = None,
) -> LoadReport:
    """Run one scenario to its end. Raises a BenchError when it could not be carried out."""
    load.check()
    run = LoadRun(target, shape, load, limits or Limits())
    try:
        return await run.carry_out(watched, children=children, on_stage=on_stage)
    finally:
        run.abort()


async def run_paced(
    target: Target,
    shape: Shape,
    load: Load,
    share: float,
    *,
    watched: Sequence[WatchedProcess] = (),
    children: bool = False,
    on_stage: Callable[[Stage], None] = lambda stage: None,
    limits: Limits | None = None,
) -> LoadReport:
    """Find out how much the broker takes saturated, then run at `share` of that. The report is of the second run.

    Raises a BenchError when either could not be carried out, and when the first one lost something.
    """
    if load.rate:
        raise LoadError(f"a rate of {load.rate:g}/s and a share of the saturated rate exclude one another")
    if not 0 < share < 1:
        raise LoadError(f"the share of the saturated rate is {share:g}; it is above 0 and below 1")
    saturated = await run_load(target, shape, load, on_stage=on_stage, limits=limits)
    if saturated.failures:
        raise BenchError(f"the saturated run has no rate to go by: {saturated.failures[0]}")
    report = await run_load(
        target,
        shape,
        replace(load, rate=saturated.published_per_s * share),
        watched=watched,
        children=children,
        on_stage=on_stage,
        limits=limits,
    )
    return replace(report, saturated_per_s=saturated.published_per_s)


class LoadRun:
    """The clients of one run and its stages: connect, warm-up, measure, drain, close."""

    def __init__(self, target: Target, shape: Shape, load: Load, limits: Limits) -> None:
        self.run_id = secrets.token_hex(4)
        self._target = target
        self._shape = shape
        self._load = load
        self._limits = limits
        self._measurement = Measurement()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        family = FrameFamily(
            f"bench/{self.run_id}/", qos=load.qos, version=target.version, payload_bytes=load.payload_bytes
        )
        self._prefix = family.topic_prefix
        answers = acknowledgements(load.qos)
        self._publishers = [
            Publisher(
                f"bench-{self.run_id}-p{number}",
                target,
                limits,
                family.outgoing(number),
                qos=load.qos,
                measurement=self._measurement,
            )
            for number in range(shape.publishers)
        ]
        self._subscribers = [
            Subscriber(
                part.client_id or f"bench-{self.run_id}-s{number}",
                target,
                limits,
                family,
                sources=part.sources,
                answers=answers,
                measurement=self._measurement,
            )
            for number, part in enumerate(shape.subscribers)
        ]
        self._pace = self._make_pace()
        self._absences = self._make_absences()
        self._on_stage: Callable[[Stage], None] = lambda stage: None

    async def carry_out(
        self, watched: Sequence[WatchedProcess], *, children: bool, on_stage: Callable[[Stage], None]
    ) -> LoadReport:
        """All stages in order."""
        self._on_stage = on_stage
        load = self._load
        meter = CostMeter(watched, children=children, pss_interval_s=self._limits.pss_interval_s)
        await self._connect()
        self._pace.start()
        if self._absences is not None:
            self._absences.start()
        pings = asyncio.ensure_future(self._keep_alive())
        try:
            await self._wait("warm-up", load.warmup_s, lambda: False)
            self._measurement.since_ns = time.monotonic_ns()
            before = (self._published(), self._delivered())
            meter.begin()
            if load.count:
                self._pace.stop_after(load.count)
                await self._wait(
                    "measure", load.duration_s + load.drain_s, self._has_ended, tick=meter.sample
                )
            else:
                await self._wait("measure", load.duration_s, lambda: False, tick=meter.sample)
            meter.end()
            after = (self._published(), self._delivered())
            self._pace.stop()
            if self._absences is not None:
                await self._absences.end()
            await self._wait("drain", load.drain_s, self._has_ended)
            await self._wait("drain", self._limits.settle_s, lambda: False)
        finally:
            pings.cancel()
        await self._leave()
        return self._report(meter, after[0] - before[0], after[1] - before[1])

    def abort(self) -> None:
        """Drop whatever is still connected."""
        if self._absences is not None:
            self._absences.abort()
        for client in self._clients():
            client.abort()
        self._failure.cancel()

    def _make_pace(self) -> Pace:
        if not self._load.rate:
            return Saturation(
                self._publishers,
                self._load.window,
                qos=self._load.qos,
                arrived=lambda: self._delivered() // self._shape.deliveries_per_message,
            )
        return OpenLoop(
            self._publishers,
            self._load.rate,
            backlog_messages_max=self._limits.backlog_messages_max,
            on_overrun=self._fail,
        )

    def _make_absences(self) -> Absences | None:
        away = self._load.away(len(self._subscribers))
        if not away:
            return None
        return Absences(
            self._subscribers,
            away,
            away_s=self._load.away_s,
            expiry_s=self._limits.session_expiry_s,
            on_failure=self._fail,
        )

    async def _connect(self) -> None:
        persistent = self._load.persistent
        expiry_s = self._limits.session_expiry_s if persistent else 0

        async def enter(client: BenchClient) -> None:
            await client.connect(clean_start=not persistent, expiry_s=expiry_s)
            client.on_lost = self._fail

        async def enter_and_subscribe(number: int) -> None:
            subscriber = self._subscribers[number]
            await enter(subscriber)
            await subscriber.subscribe(
                self._prefix + self._shape.subscribers[number].topic_filter, self._load.qos
            )

        open_files(len(self._publishers) + len(self._subscribers))
        steps = [enter_and_subscribe(number) for number in range(len(self._subscribers))]
        await self._side_by_side("connect", steps + [enter(publisher) for publisher in self._publishers])

    async def _leave(self) -> None:
        """Close; a persistent session of ours is removed by a clean start."""
        for client in self._clients():
            client.close()
        if not self._load.persistent:
            return

        async def remove(client_id: str) -> None:
            client = BenchClient(client_id, self._target, self._limits)
            await client.connect(clean_start=True, expiry_s=0)
            client.close()

        await self._side_by_side("clean up", [remove(client.client_id) for client in self._clients()])

    async def _side_by_side(self, stage: str, steps: Sequence[Awaitable[None]]) -> None:
        done = 0

        async def counted(step: Awaitable[None]) -> None:
            nonlocal done
            await step
            done += 1
            self._on_stage(Stage(stage, done / len(steps), 0, 0))

        await bounded([counted(step) for step in steps], self._limits.connects_at_once)

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
            self._on_stage(Stage(stage, fraction, self._published(), self._delivered()))

    def _has_ended(self) -> bool:
        """All sent, all answered, all delivered."""
        if not self._pace.is_done or any(publisher.outstanding for publisher in self._publishers):
            return False
        if self._delivered() < self._due():
            return False
        return self._lost() == 0

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._limits.keep_alive_s / 2)
            for client in self._clients():
                client.ping()

    def _fail(self, error: BenchError) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _clients(self) -> list[BenchClient]:
        return [*self._subscribers, *self._publishers]

    def _published(self) -> int:
        if self._load.qos:
            return sum(publisher.acknowledged for publisher in self._publishers)
        return sum(publisher.sent for publisher in self._publishers)

    def _delivered(self) -> int:
        return sum(subscriber.delivered for subscriber in self._subscribers)

    def _due(self) -> int:
        """Deliveries that the acknowledged (at QoS 0: the sent) messages call for."""
        return self._published() * self._shape.deliveries_per_message

    def _wanted(self, publisher: Publisher) -> bytearray:
        return publisher.taken if self._load.qos else bytearray(b"\1") * publisher.sent

    def _lost(self) -> int:
        wanted = {
            topic_index(i).encode(): self._wanted(publisher) for i, publisher in enumerate(self._publishers)
        }
        return sum(
            tally.missing(wanted[index])
            for subscriber in self._subscribers
            for index, tally in subscriber.tallies.items()
        )

    def _report(self, meter: CostMeter, published: int, delivered: int) -> LoadReport:
        load, shape = self._load, self._shape
        tallies = [tally for subscriber in self._subscribers for tally in subscriber.tallies.values()]
        lost = self._lost()
        duplicated = sum(tally.duplicated for tally in tallies)
        costs = meter.costs()
        cpu_s = sum(cost.cpu_s + cost.children_cpu_s for cost in costs)
        return LoadReport(
            scenario=shape.name,
            run=self.run_id,
            version=VERSION_NAMES[self._target.version],
            qos=load.qos,
            publishers=shape.publishers,
            subscribers=len(shape.subscribers),
            payload_bytes=load.payload_bytes,
            rate=load.rate,
            window=load.window,
            persistent=load.persistent,
            offline_share=load.offline_share,
            away_s=load.away_s if self._absences is not None else 0.0,
            returns=self._absences.returns if self._absences is not None else 0,
            published=sum(publisher.sent for publisher in self._publishers),
            acknowledged=sum(publisher.acknowledged for publisher in self._publishers),
            refused=sum(publisher.refused for publisher in self._publishers),
            unacknowledged=sum(publisher.outstanding for publisher in self._publishers),
            expected=self._due(),
            delivered=self._delivered(),
            lost=lost,
            duplicated=duplicated,
            reordered=sum(tally.reordered for tally in tallies),
            corrupt=sum(tally.corrupt for tally in tallies),
            foreign=sum(subscriber.foreign for subscriber in self._subscribers),
            window_s=round(meter.elapsed_s, 3),
            window_published=published,
            window_delivered=delivered,
            published_per_s=round(published / meter.elapsed_s, 1),
            delivered_per_s=round(delivered / meter.elapsed_s, 1),
            delivery=self._measurement.delivery.summary(),
            returning=self._measurement.returning.summary(),
            acknowledgement=self._measurement.acknowledgement.summary(),
            send_delay=self._measurement.send_delay.summary(),
            processes=cost_reports(costs, published + delivered),
            messages_per_cpu_s=per_cpu_second(published + delivered, cpu_s) if costs else None,
            generator_cpu_s=round(meter.generator_cpu_s, 3),
            generator_cores=round(meter.generator_cpu_s / meter.elapsed_s, 3),
            failures=broken_promises(load.qos, lost, duplicated),
        )


def broken_promises(qos: int, lost: int, duplicated: int) -> tuple[str, ...]:
    """What the broker promised and did not keep: at QoS 1 no loss, at QoS 2 no loss and no double."""
    broken = []
    if qos >= 1 and lost:
        broken.append(f"{lost} acknowledged messages were lost at QoS {qos}")
    if qos == 2 and duplicated:
        broken.append(f"{duplicated} messages were delivered more than once at QoS 2")
    return tuple(broken)
