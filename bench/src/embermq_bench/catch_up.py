"""Messages for subscribers that are away, and their return: what storing costs, and what draining costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from embermq_bench.cost_meter import CostMeter
from embermq_bench.errors import LoadError
from embermq_bench.process_cost import WatchedProcess
from embermq_bench.report import CostReport, cost_reports, count_text
from embermq_bench.run import Stage
from embermq_bench.scenario import LoadRun, broken_promises
from embermq_bench.settings import Limits, Load, Target
from embermq_bench.shape import Shape


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One half of the run. What the broker does in the pause behind it, such as removing, counts as its cost."""

    messages: int
    messages_per_s: float
    processes: tuple[CostReport, ...]
    generator_cores: float

    @property
    def per_cpu_s(self) -> float | None:
        """Messages for a CPU second of all processes together."""
        cpu_s = sum(cost.cpu_s + cost.children_cpu_s for cost in self.processes)
        return self.messages / cpu_s if cpu_s else None


class CatchUpReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of catchup. `stored` counts messages taken over, `drained` those delivered after the return."""

    run: str
    qos: int
    publishers: int
    subscribers: int
    payload_bytes: int
    stored: Part
    drained: Part
    lost: int
    duplicated: int
    reordered: int
    failures: tuple[str, ...]


async def run_catch_up(
    target: Target,
    shape: Shape,
    load: Load,
    *,
    pause_s: float,
    watched: Sequence[WatchedProcess] = (),
    children: bool = False,
    on_stage: Callable[[Stage], None] = lambda stage: None,
    limits: Limits | None = None,
) -> CatchUpReport:
    """Run it to its end; `load` says how many messages. Raises a BenchError when it could not be carried out."""
    load.check()
    if not (load.qos and load.persistent and load.count) or load.rate:
        raise LoadError("to catch up takes QoS 1 or 2, persistent sessions, a count of messages, and no rate")
    run = CatchUpRun(target, shape, load, limits or Limits())
    try:
        return await run.miss_and_return(watched, pause_s=pause_s, children=children, on_stage=on_stage)
    finally:
        run.abort()


class CatchUpRun(LoadRun):
    """All subscribers leave, `count` messages are published, all return."""

    async def miss_and_return(
        self,
        watched: Sequence[WatchedProcess],
        *,
        pause_s: float,
        children: bool,
        on_stage: Callable[[Stage], None],
    ) -> CatchUpReport:
        """All of it in order."""
        self._on_stage = on_stage
        await self._connect()
        await self.side_by_side("leave", [subscriber.leave() for subscriber in self._subscribers])
        pings = asyncio.ensure_future(self._keep_alive())
        try:
            meters = [
                CostMeter(watched, children=children, pss_interval_s=self.limits.pss_interval_s)
                for _ in range(2)
            ]
            stored = await self._measured("store", self._publish, meters[0], pause_s)
            drained = await self._measured("drain", self._return, meters[1], pause_s)
        finally:
            pings.cancel()
        tallies = [tally for of_one in self._tallies.values() for tally in of_one.values()]
        lost, duplicated = self._lost(), sum(tally.duplicated for tally in tallies)
        await self._leave()
        return CatchUpReport(
            run=self.run_id,
            qos=self.load.qos,
            publishers=len(self.publishers),
            subscribers=len(self._subscribers),
            payload_bytes=self.load.payload_bytes,
            stored=stored,
            drained=drained,
            lost=lost,
            duplicated=duplicated,
            reordered=sum(tally.reordered for tally in tallies),
            failures=broken_promises(self.load.qos, lost, duplicated),
        )

    async def _measured(
        self, stage: str, work: Callable[[], Awaitable[Callable[[], bool]]], meter: CostMeter, pause_s: float
    ) -> Part:
        """`work` begins and gives what says that it is over."""
        before = self.published() + self.delivered()
        began = time.monotonic()
        meter.begin()
        is_over = await work()
        await self._wait(stage, self.load.duration_s + self.load.drain_s, is_over, tick=meter.sample)
        took_s = time.monotonic() - began
        await self._wait(stage, pause_s, lambda: False)
        meter.end()
        messages = self.published() + self.delivered() - before
        return Part(
            messages=messages,
            messages_per_s=round(messages / took_s, 1),
            processes=cost_reports(meter.costs(), messages),
            generator_cores=round(meter.generator_cpu_s / meter.elapsed_s, 3),
        )

    async def _publish(self) -> Callable[[], bool]:
        pace = self._make_pace()
        pace.start()
        pace.stop_after(self.load.count)
        return lambda: pace.is_done and not any(publisher.outstanding for publisher in self.publishers)

    async def _return(self) -> Callable[[], bool]:
        expiry_s = self.limits.session_expiry_s
        steps = [subscriber.come_back(expiry_s=expiry_s) for subscriber in self._subscribers]
        await self.side_by_side("return", steps)
        return self.has_ended


def show_catch_up(report: CatchUpReport, console: Console) -> None:
    """The table of a run."""
    clients = f"{report.publishers} → {report.subscribers} that are away"
    table = Table(title=f"{clients}, QoS {report.qos}, {report.payload_bytes} bytes")
    for name in ("", "stored", "drained"):
        table.add_column(name, justify="right" if name else "left")
    halves = (report.stored, report.drained)
    table.add_row("messages", *(f"{half.messages:,}" for half in halves))
    table.add_row("a second", *(f"{half.messages_per_s:,.0f}" for half in halves))
    for place, cost in enumerate(report.stored.processes):
        table.add_row(
            f"{cost.name}, messages a CPU s",
            *(count_text(half.processes[place].messages_per_cpu_s) for half in halves),
        )
    table.add_row("this program, cores", *(f"{half.generator_cores:.2f}" for half in halves))
    table.add_row("lost, twice, out of order", "", f"{report.lost}, {report.duplicated}, {report.reordered}")
    console.print(table)
    for failure in report.failures:
        console.print(failure, style="bold red")
