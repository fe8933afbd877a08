"""How fast a persistent client that was away gets what it has missed: `python -m benchmarks.catch_up`.

The broker runs already. The client subscribes and goes; publishers send so many messages as fast as they are taken; the
pipeline has a while to bring them to the client's log; the client returns. Counted is from its CONNECT to the last
message, each acknowledged.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Annotated

import typer
import uvloop

from benchmarks.machine import describe
from embermq_bench.client import BenchClient
from embermq_bench.connecting import bounded
from embermq_bench.cost_meter import CostMeter
from embermq_bench.frames import FrameFamily, topic_index
from embermq_bench.measurement import Measurement
from embermq_bench.pacing import Saturation
from embermq_bench.process_cost import parse_all_watched
from embermq_bench.publisher import Publisher
from embermq_bench.settings import Limits, Target
from embermq_bench.subscriber import Subscriber, acknowledgements
from embermq_bench.tally import Tally

EXPIRY_S = 3_600
LOOK_S = 0.01
WINDOW = 20
PATIENCE_S = 300.0
LIMITS = Limits()


class Return:
    """One client that is away while publishers send `count` messages, and then comes back."""

    def __init__(self, target: Target, subscriber_id: str, publishers: int, count: int, *, qos: int) -> None:
        run_id = secrets.token_hex(4)
        family = FrameFamily(f"bench/{run_id}/", qos=qos, version=target.version, payload_bytes=64)
        measurement = Measurement()
        self._count = count
        self._qos = qos
        self._filter = f"{family.topic_prefix}+"
        self._tallies = {topic_index(number).encode(): Tally() for number in range(publishers)}
        self.subscriber = Subscriber(
            subscriber_id,
            target,
            LIMITS,
            family,
            tallies=self._tallies,
            answers=acknowledgements(qos),
            measurement=measurement,
        )
        self._publishers = [
            Publisher(
                f"bench-{run_id}-p{number}",
                target,
                LIMITS,
                family.outgoing(number),
                qos=qos,
                measurement=measurement,
            )
            for number in range(publishers)
        ]

    async def go_away(self) -> None:
        """The subscription stays."""
        await self.subscriber.connect(clean_start=True, expiry_s=EXPIRY_S)
        await self.subscriber.subscribe(self._filter, self._qos)
        await self.subscriber.leave()

    async def publish(self) -> None:
        """All messages, each acknowledged."""
        await bounded([_enter(publisher) for publisher in self._publishers], LIMITS.connects_at_once)
        pace = Saturation(self._publishers, WINDOW, qos=self._qos, arrived=lambda: 0)
        pace.start()
        pace.stop_after(self._count)
        await _until(lambda: pace.is_done and not any(one.outstanding for one in self._publishers))
        self._count = sum(one.acknowledged for one in self._publishers)
        for publisher in self._publishers:
            publisher.close()

    async def come_back(self) -> float:
        """Seconds until the last message was there."""
        began = time.monotonic()
        await self.subscriber.come_back(expiry_s=EXPIRY_S)
        await _until(lambda: self.subscriber.delivered >= self._count)
        return time.monotonic() - began

    async def end(self) -> tuple[int, int, int]:
        """The session goes. Different messages, those that came twice, those out of turn."""
        await self.subscriber.leave()
        await _enter(self.subscriber)
        self.subscriber.close()
        tallies = self._tallies.values()
        return (
            sum(tally.arrived for tally in tallies),
            sum(tally.duplicated for tally in tallies),
            sum(tally.reordered for tally in tallies),
        )


async def _enter(client: BenchClient) -> None:
    await client.connect(clean_start=True, expiry_s=0)


async def _until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"it takes longer than {PATIENCE_S:g} s")
        await asyncio.sleep(LOOK_S)


async def _carry_out(back: Return, meter: CostMeter, pause_s: float) -> None:
    await back.go_away()
    await back.publish()
    await asyncio.sleep(pause_s)
    meter.begin()
    seconds = await back.come_back()
    meter.end()
    arrived, doubled, reordered = await back.end()
    typer.echo(
        f"{arrived:,} messages in {seconds:.2f} s: {arrived / seconds:,.0f}/s; "
        f"{doubled} twice, {reordered} out of turn"
    )
    for cost in meter.costs():
        used_s = cost.cpu_s / arrived * 1000
        typer.echo(f"{cost.name}: {used_s:.4f} s of CPU for 1,000 messages")


def main(
    *,
    subscriber_id: Annotated[str, typer.Option(help="Client id of the one that returns.")] = "app1",
    publishers: Annotated[int, typer.Option(min=1)] = 200,
    count: Annotated[int, typer.Option(min=1, help="Messages that it misses.")] = 200_000,
    pause: Annotated[float, typer.Option(help="From the last PUBACK to its return, s.")] = 30.0,
    qos: Annotated[int, typer.Option(min=1, max=2)] = 1,
    port: Annotated[int, typer.Option(min=1, max=65_535)] = 1883,
    pid: Annotated[str, typer.Option(help="NAME=ID of processes whose CPU is measured, with commas.")] = "",
) -> None:
    """Print the rate at which it catches up, and what that cost."""
    typer.echo(describe())
    watched = parse_all_watched([pid] if pid else ())
    meter = CostMeter(watched, children=False, pss_interval_s=PATIENCE_S)
    back = Return(Target(port=port), subscriber_id, publishers, count, qos=qos)
    uvloop.run(_carry_out(back, meter, pause))


if __name__ == "__main__":
    typer.run(main)
