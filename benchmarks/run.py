"""Measure EmberMQ beside other brokers: `python -m benchmarks.run`, behind `make bench`.

MOSQUITTO names the Mosquitto to compare with, else it is the system's; RUMQTTD adds that one.

Each measurement has a broker of its own, fresh; the variants of a scenario take turns round by round (A B A B), so that
a machine that is busy for a while is busy for all of them. Figures are medians over the rounds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from benchmarks.brokers import BrokerError, Programs, RunningBroker, fsync_p50_ms, named_programs
from benchmarks.machine import Machine, describe
from benchmarks.plan import FSYNC, MOSQUITTO, Bar, Scenario, chosen
from embermq_bench.catch_up import CatchUpReport
from embermq_bench.latency import LatencySummary
from embermq_bench.queue_report import QueueReport
from embermq_bench.report import IdleReport, LoadReport

MEASURE_DEADLINE_S = 300.0
BROKEN_PROMISE = 1
WIDTH = 170
"""Of the tables in a file."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement; what the machine had to do, and what an fsync took, at its end."""

    scenario: str
    variant: str
    round: int
    load_average: float = 0.0
    fsync_ms: float = 0.0
    load: LoadReport | None = None
    idle: IdleReport | None = None
    queue: QueueReport | None = None
    caught_up: CatchUpReport | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the rounds of one variant in one scenario; `figures` by name."""

    scenario: str
    variant: str
    figures: dict[str, float]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run."""

    machine: Machine
    rounds: int
    summaries: list[Summary]
    measured: list[Measured]


def main(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="One short round: for a first look, not for a figure.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each variant once in each.")] = 3,
    scenario: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """EmberMQ beside Mosquitto (MOSQUITTO=PROGRAM, else the system's) and rumqttd (RUMQTTD=PROGRAM), in one run."""
    console = Console(stderr=as_json, width=None if sys.stderr.isatty() else WIDTH)
    try:
        programs = named_programs(os.environ)
        scenarios = chosen(scenario or [], variant or [], rumqttd=bool(programs.rumqttd))
    except (BrokerError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    count = 1 if quick else rounds
    machine = describe(programs)
    console.print(facts(machine), highlight=False)
    measured: list[Measured] = []
    summaries: list[Summary] = []
    for part in scenarios:
        measured += measure(part, programs, rounds=count, quick=quick, console=console)
        summaries += summarise(part, measured)
        show(part, summaries, machine, console)
    show_bars(scenarios, summaries, machine, console)
    if as_json:
        comparison = Comparison(machine=machine, rounds=count, summaries=summaries, measured=measured)
        print(msgspec.json.format(msgspec.json.encode(comparison), indent=2).decode())
    reports = [
        report for one in measured for report in (one.load, one.queue, one.caught_up) if report is not None
    ]
    if any(report.failures for report in reports):
        raise typer.Exit(BROKEN_PROMISE)


def measure(
    scenario: Scenario, programs: Programs, *, rounds: int, quick: bool, console: Console
) -> list[Measured]:
    """All rounds of a scenario; its variants take turns."""
    measured = []
    for number in range(rounds):
        for variant in scenario.variants:
            console.print(f"{scenario.name} {number + 1}/{rounds}: {variant.name} …", style="dim")
            try:
                with RunningBroker(variant, programs, transport=scenario.transport) as broker:
                    measured.append(measure_once(scenario, broker, number, quick=quick))
            except BrokerError as error:
                console.print(f"error: {error}", style="red", markup=False)
                raise typer.Exit(2) from error
    return measured


def measure_once(scenario: Scenario, broker: RunningBroker, number: int, *, quick: bool) -> Measured:
    """One load on one running broker, made by a process of its own."""
    length = scenario.quick if quick else scenario.full
    command = [sys.executable, "-m", "embermq_bench.cli", *scenario.arguments, *length, *broker.reach]
    command += ["--pid", f"broker={broker.pid}", "--children", "--json"]
    if scenario.arguments[0] == "queue":
        command += ["--http-port", str(broker.http_port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MEASURE_DEADLINE_S, check=False)
    if not done.stdout:
        raise BrokerError(f"{broker.variant.name}, {scenario.name}: {done.stderr.strip()[-2000:]}")
    measured = Measured(
        scenario=scenario.name,
        variant=broker.variant.name,
        round=number,
        load_average=os.getloadavg()[0],
        fsync_ms=fsync_p50_ms(broker.data_dir.parent),
    )
    match scenario.arguments[0]:
        case "idle":
            return replace(measured, idle=msgspec.json.decode(done.stdout, type=IdleReport))
        case "queue":
            return replace(measured, queue=msgspec.json.decode(done.stdout, type=QueueReport))
        case "catchup":
            return replace(measured, caught_up=msgspec.json.decode(done.stdout, type=CatchUpReport))
        case _:
            return replace(measured, load=msgspec.json.decode(done.stdout, type=LoadReport))


def figures_of(one: Measured) -> dict[str, float]:
    """The figures of a measurement that are compared, by name."""
    if one.idle is not None:
        cost = one.idle.processes[0]
        figures: dict[str, float | None] = {
            "idle PSS, MiB": cost.pss_before_bytes / 2**20,
            "KiB a connection": cost.bytes_per_connection / 1024,
            "connects/s": one.idle.connects_per_s,
            "connects a CPU s": one.idle.connections / max(cost.connect_cpu_s, 0.01),
        }
    elif one.caught_up is not None:
        stored, drained = one.caught_up.stored, one.caught_up.drained
        figures = {
            "stored/s": stored.messages_per_s,
            "stored a CPU s": stored.per_cpu_s,
            "drained/s": drained.messages_per_s,
            "drained a CPU s": drained.per_cpu_s,
            "lost": one.caught_up.lost,
            "load cores": max(stored.generator_cores, drained.generator_cores),
        }
    else:
        load = one.load or one.queue
        assert load is not None
        figures = _of_load(load)
        if one.queue is not None:
            figures["messages a CPU s"] = figures.pop("in+out a CPU s")
        if load.acknowledgement.p50_ms is not None:
            figures["PUBACK p50 above fsync ms"] = load.acknowledgement.p50_ms - one.fsync_ms
    if one.fsync_ms:
        figures |= {"fsync p50 ms": one.fsync_ms, "load average": one.load_average}
    return {name: float(value) for name, value in figures.items() if value is not None}


def _of_load(load: LoadReport | QueueReport) -> dict[str, float | None]:
    cost = load.processes[0]
    none = LatencySummary(samples=0)
    returning, late = (load.returning, load.send_delay) if isinstance(load, LoadReport) else (none, none)
    return {
        "msg/s": load.published_per_s,
        "in+out a CPU s": load.messages_per_cpu_s,
        "broker CPU s": cost.cpu_s,
        "broker cores": (cost.cpu_s + cost.children_cpu_s) / load.window_s,
        "children CPU s": cost.children_cpu_s,
        "delivery p50 ms": load.delivery.p50_ms,
        "delivery p99 ms": load.delivery.p99_ms,
        "return p50 ms": returning.p50_ms,
        "return p99 ms": returning.p99_ms,
        "PUBACK p50 ms": load.acknowledgement.p50_ms,
        "PUBACK p99 ms": load.acknowledgement.p99_ms,
        "sent late p50 ms": late.p50_ms,
        "sent late p99 ms": late.p99_ms,
        "peak PSS, MiB": cost.pss_peak_bytes / 2**20,
        "lost": load.lost,
        "load cores": load.generator_cores,
    }


def summarise(scenario: Scenario, measured: list[Measured]) -> list[Summary]:
    """Medians of each variant of a scenario. `lost` is the worst round, not the median."""
    medians: dict[str, dict[str, float]] = {}
    for variant in scenario.variants:
        rounds = [
            figures_of(one)
            for one in measured
            if one.scenario == scenario.name and one.variant == variant.name
        ]
        names = [name for name in rounds[0] if all(name in figures for figures in rounds)]
        medians[variant.name] = {
            name: (max if name == "lost" else statistics.median)([figures[name] for figures in rounds])
            for name in names
        }
    return [
        Summary(scenario=scenario.name, variant=name, figures=figures) for name, figures in medians.items()
    ]


def facts(machine: Machine) -> str:
    """What a figure of this run has to be read with."""
    return (
        f"{machine.processor}, {machine.cores} cores, {machine.memory_mib} MiB, Linux {machine.kernel}, "
        f"Python {machine.python}, load {machine.load_average[0]:.2f}"
    )


def show(scenario: Scenario, summaries: list[Summary], machine: Machine, console: Console) -> None:
    """The table of one scenario: a row a figure, a column a variant with its version, and what it was measured on."""
    mine = [summary for summary in summaries if summary.scenario == scenario.name]
    if not mine:
        return
    table = Table(title=scenario.title, caption=facts(machine))
    table.add_column("median")
    for summary in mine:
        table.add_column(_heading(summary.variant, machine), justify="right")
    for name in mine[0].figures:
        table.add_row(name, *(_cell(summary, name) for summary in mine))
    console.print(table)


def show_bars(
    scenarios: list[Scenario], summaries: list[Summary], machine: Machine, console: Console
) -> None:
    """One table of all that has bars: EmberMQ beside the other broker, and whether the bars are reached."""
    by_name = {(summary.scenario, summary.variant): summary.figures for summary in summaries}
    table = Table(
        title="EmberMQ with fsync beside Mosquitto, for a CPU second of the broker", caption=facts(machine)
    )
    table.add_column("")
    for name in (FSYNC.name, MOSQUITTO.name):
        table.add_column(_heading(name, machine), justify="right")
    for name in ("ratio", "must", "aim", "", "p50 / p99, ms", "Mosquitto's", "cores: broker + load"):
        table.add_column(name, justify="right", no_wrap=True)
    for scenario in scenarios:
        ours = by_name.get((scenario.name, FSYNC.name), {})
        theirs = by_name.get((scenario.name, MOSQUITTO.name), {})
        for bar in scenario.bars:
            if bar.figure in ours:
                table.add_row(*_row(bar, ours, theirs))
    if table.row_count:
        console.print(table)


def _row(bar: Bar, ours: dict[str, float], theirs: dict[str, float]) -> list[str]:
    value, other = ours[bar.figure], theirs.get(bar.figure)
    ratio = value / other if other and bar.kind == "ratio" else None
    figure = ratio if bar.kind == "ratio" else value
    is_met = [
        figure is not None and (figure <= limit if bar.kind == "most" else figure >= limit)
        for limit in (bar.must, bar.aim)
    ]
    return [
        bar.title,
        _text(value),
        _text(other),
        _text(ratio),
        f"{bar.must:,g}",
        f"{bar.aim:,g}",
        "-" if figure is None else "aim" if is_met[1] else "must" if is_met[0] else "MISSED",
        *(
            f"{_text(each.get('delivery p50 ms'))} / {_text(each.get('delivery p99 ms'))}"
            for each in (ours, theirs)
        ),
        f"{_text(ours.get('broker cores'))} + {_text(ours.get('load cores'))}",
    ]


def _heading(variant: str, machine: Machine) -> str:
    """`embermq os` of version 1 is `embermq 1 os`."""
    program, _, rest = variant.partition(" ")
    return f"{program} {machine.versions[program]} {rest}".rstrip()


def _cell(summary: Summary, name: str) -> str:
    return _text(summary.figures.get(name))


def _text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.2f}"


if __name__ == "__main__":
    typer.run(main)
