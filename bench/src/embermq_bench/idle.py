"""What idle connections cost: memory before and with them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence

from embermq_bench.client import BenchClient
from embermq_bench.connecting import bounded, open_files
from embermq_bench.errors import BenchError, LoadError
from embermq_bench.process_cost import WatchedProcess, read_cpu, read_pss_bytes
from embermq_bench.report import IdleCost, IdleReport
from embermq_bench.run import Stage
from embermq_bench.settings import Limits, Target


async def run_idle(
    target: Target,
    connections: int,
    *,
    hold_s: float = 5.0,
    resumed: bool = False,
    watched: Sequence[WatchedProcess] = (),
    children: bool = False,
    on_stage: Callable[[Stage], None] = lambda stage: None,
    limits: Limits | None = None,
) -> IdleReport:
    """Open the connections, leave them idle for `hold_s`, read the memory, close. Raises a BenchError.

    `resumed`: each has a session, made before anything is counted and removed at the end.
    """
    if connections < 1 or hold_s <= 0:
        raise LoadError(f"connections is {connections} and hold is {hold_s} s; both are above 0")
    open_files(connections)
    bounds = limits or Limits()
    run_id = secrets.token_hex(4)
    clients = [BenchClient(f"bench-{run_id}-i{number}", target, bounds) for number in range(connections)]
    lost: list[BenchError] = []
    opened = 0

    async def enter(client: BenchClient) -> None:
        nonlocal opened
        await client.connect(clean_start=not resumed, expiry_s=bounds.session_expiry_s if resumed else 0)
        client.on_lost = lost.append
        opened += 1
        on_stage(Stage("connect", opened / connections, 0, 0))

    if resumed:
        await bounded([_make_session(client) for client in clients], bounds.connects_at_once)
    pss_before = [read_pss_bytes(process.pid, children=children) for process in watched]
    cpu_before = _cpu_seconds(watched, children=children)
    began = time.monotonic()
    try:
        await bounded([enter(client) for client in clients], bounds.connects_at_once)
        connect_s = time.monotonic() - began
        cpu_connected = _cpu_seconds(watched, children=children)
        await _hold(hold_s, on_stage)
        cpu_held = _cpu_seconds(watched, children=children)
        pss_with = [read_pss_bytes(process.pid, children=children) for process in watched]
        if lost:
            raise lost[0]
        if resumed:
            await bounded([_remove_session(client) for client in clients], bounds.connects_at_once)
    finally:
        for client in clients:
            client.close()
    await asyncio.sleep(0)
    return IdleReport(
        connections=connections,
        connect_s=round(connect_s, 3),
        connects_per_s=round(connections / connect_s, 1),
        processes=tuple(
            IdleCost(
                name=process.name,
                pid=process.pid,
                pss_before_bytes=pss_before[place],
                pss_with_bytes=pss_with[place],
                bytes_per_connection=round((pss_with[place] - pss_before[place]) / connections, 1),
                connect_cpu_s=round(cpu_connected[place] - cpu_before[place], 3),
                idle_cores=round((cpu_held[place] - cpu_connected[place]) / hold_s, 4),
            )
            for place, process in enumerate(watched)
        ),
    )


async def _make_session(client: BenchClient) -> None:
    await client.connect(clean_start=True, expiry_s=client.limits.session_expiry_s)
    await client.subscribe(f"bench/{client.client_id}", 1)
    await client.leave()


async def _remove_session(client: BenchClient) -> None:
    await client.leave()
    await client.connect(clean_start=True, expiry_s=0)


async def _hold(hold_s: float, on_stage: Callable[[Stage], None]) -> None:
    began = time.monotonic()
    while (passed := time.monotonic() - began) < hold_s:
        on_stage(Stage("hold", passed / hold_s, 0, 0))
        await asyncio.sleep(min(0.2, hold_s - passed))


def _cpu_seconds(watched: Sequence[WatchedProcess], *, children: bool) -> list[float]:
    readings = [read_cpu(process.pid, children=children) for process in watched]
    return [reading.own_s + reading.children_s for reading in readings]
