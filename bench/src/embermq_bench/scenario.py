"""One run of p2p, fanin or fanout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from embermq_bench.absence import Absences
from embermq_bench.cost_meter import CostMeter
from embermq_bench.errors import BenchError, LoadError
from embermq_bench.frames import FrameFamily, topic_index
from embermq_bench.process_cost import WatchedProcess
from embermq_bench.publisher import Publisher
from embermq_bench.report import LoadReport, cost_reports, per_cpu_second
from embermq_bench.run import VERSION_NAMES, Run, Stage
from embermq_bench.settings import Limits, Load, Target
from embermq_bench.shape import Shape
from embermq_bench.subscriber import Subscriber, acknowledgements
from embermq_bench.tally import Tally


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


class LoadRun(Run[LoadReport]):
    """p2p, fanin or fanout: each publisher writes to a topic of its own."""

    def __init__(self, target: Target, shape: Shape, load: Load, limits: Limits) -> None:
        super().__init__(target, load, limits)
        self._shape = shape
        family = FrameFamily(
            f"bench/{self.run_id}/", qos=load.qos, version=target.version, payload_bytes=load.payload_bytes
        )
        self._prefix = family.topic_prefix
        answers = acknowledgements(load.qos)
        self._tallies: dict[str | int, dict[bytes, Tally]] = {
            part.group or number: {topic_index(source).encode(): Tally() for source in part.sources}
            for number, part in enumerate(shape.subscribers)
        }
        """By group, or number of the subscriber."""
        self.publishers = [
            Publisher(
                f"bench-{self.run_id}-p{number}",
                target,
                limits,
                family.outgoing(number),
                qos=load.qos,
                measurement=self.measurement,
            )
            for number in range(shape.publishers)
        ]
        self._subscribers = [
            Subscriber(
                part.client_id or f"bench-{self.run_id}-s{number}",
                target,
                limits,
                family,
                tallies=self._tallies[part.group or number],
                answers=answers,
                measurement=self.measurement,
            )
            for number, part in enumerate(shape.subscribers)
        ]
        self.receivers = self._subscribers
        self._absences = self._make_absences()

    async def subscribe(self, number: int) -> None:
        part = self._shape.subscribers[number]
        share = f"$share/{part.group}/" if part.group else ""
        await self._subscribers[number].subscribe(share + self._prefix + part.topic_filter, self.load.qos)

    def begin(self) -> None:
        if self._absences is not None:
            self._absences.start()

    async def end(self) -> None:
        if self._absences is not None:
            await self._absences.end()

    def abort(self) -> None:
        if self._absences is not None:
            self._absences.abort()
        super().abort()

    def delivered(self) -> int:
        return sum(subscriber.delivered for subscriber in self._subscribers)

    def deliveries_per_message(self) -> int:
        return self._shape.deliveries_per_message

    def has_ended(self) -> bool:
        return self.delivered() >= self._due() and self._lost() == 0

    def _make_absences(self) -> Absences | None:
        away = self.load.away(len(self._subscribers))
        if not away:
            return None
        return Absences(
            self._subscribers,
            away,
            away_s=self.load.away_s,
            expiry_s=self.limits.session_expiry_s,
            on_failure=self.fail,
        )

    def _due(self) -> int:
        """Deliveries that the acknowledged (at QoS 0: the sent) messages call for."""
        return self.published() * self._shape.deliveries_per_message

    def _wanted(self, publisher: Publisher) -> bytearray:
        return publisher.taken if self.load.qos else bytearray(b"\1") * publisher.sent

    def _lost(self) -> int:
        wanted = {
            topic_index(i).encode(): self._wanted(publisher) for i, publisher in enumerate(self.publishers)
        }
        return sum(
            tally.missing(wanted[index])
            for tallies in self._tallies.values()
            for index, tally in tallies.items()
        )

    def report(self, meter: CostMeter, published: int, delivered: int) -> LoadReport:
        load, shape = self.load, self._shape
        tallies = [tally for of_one in self._tallies.values() for tally in of_one.values()]
        lost = self._lost()
        duplicated = sum(tally.duplicated for tally in tallies)
        costs = meter.costs()
        cpu_s = sum(cost.cpu_s + cost.children_cpu_s for cost in costs)
        return LoadReport(
            scenario=shape.name,
            run=self.run_id,
            version=VERSION_NAMES[self.target.version],
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
            published=sum(publisher.sent for publisher in self.publishers),
            acknowledged=sum(publisher.acknowledged for publisher in self.publishers),
            refused=sum(publisher.refused for publisher in self.publishers),
            unacknowledged=sum(publisher.outstanding for publisher in self.publishers),
            expected=self._due(),
            delivered=self.delivered(),
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
            delivery=self.measurement.delivery.summary(),
            returning=self.measurement.returning.summary(),
            acknowledgement=self.measurement.acknowledgement.summary(),
            send_delay=self.measurement.send_delay.summary(),
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
