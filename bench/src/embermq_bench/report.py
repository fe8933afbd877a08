"""What a run found out, for machines (JSON) and for people (a table)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from embermq_bench.latency import LatencySummary
from embermq_bench.process_cost import ProcessCost


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """A watched process and the messages (in + out) that went through the broker per CPU second of it."""

    name: str
    pid: int
    cpu_s: float
    children_cpu_s: float
    pss_peak_bytes: int
    messages_per_cpu_s: float | None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What every load measures, in its measured window."""

    window_s: float
    published_per_s: float
    delivered_per_s: float
    delivery: LatencySummary
    acknowledgement: LatencySummary
    send_delay: LatencySummary
    processes: tuple[CostReport, ...]
    messages_per_cpu_s: float | None
    generator_cpu_s: float
    generator_cores: float
    failures: tuple[str, ...]


class LoadReport(Measured, frozen=True, kw_only=True):
    """Result of p2p, fanin or fanout.

    `published` to `foreign` cover the whole run with its warm-up; `window_*`, rates, costs and latencies
    cover the measured window. `window_published` counts acknowledgements (at QoS 0: messages sent), since
    what still lies in a socket has cost the broker nothing yet. `delivery` leaves out what `returning` has: messages to
    subscribers that came back and had not caught up, from their return on. `saturated_per_s` is the rate that a paced
    run found first and of which `rate` is a share.
    """

    scenario: str
    run: str
    version: str
    qos: int
    publishers: int
    subscribers: int
    payload_bytes: int
    rate: float
    window: int
    persistent: bool
    published: int
    acknowledged: int
    refused: int
    unacknowledged: int
    expected: int
    delivered: int
    lost: int
    duplicated: int
    reordered: int
    corrupt: int
    foreign: int
    window_published: int
    window_delivered: int
    offline_share: float = 0.0
    away_s: float = 0.0
    returns: int = 0
    returning: LatencySummary = LatencySummary(samples=0)
    saturated_per_s: float | None = None


class IdleCost(msgspec.Struct, frozen=True, kw_only=True):
    """Proportional set size without and with idle connections, and what the broker's CPU did meanwhile."""

    name: str
    pid: int
    pss_before_bytes: int
    pss_with_bytes: int
    bytes_per_connection: float
    connect_cpu_s: float
    idle_cores: float


class IdleReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of idle: memory before and with the connections, for each watched process."""

    connections: int
    connect_s: float
    connects_per_s: float
    processes: tuple[IdleCost, ...]


def cost_reports(costs: tuple[ProcessCost, ...], messages: int) -> tuple[CostReport, ...]:
    """Each process's cost with its messages per CPU second."""
    return tuple(
        CostReport(
            name=cost.name,
            pid=cost.pid,
            cpu_s=round(cost.cpu_s, 3),
            children_cpu_s=round(cost.children_cpu_s, 3),
            pss_peak_bytes=cost.pss_peak_bytes,
            messages_per_cpu_s=per_cpu_second(messages, cost.cpu_s + cost.children_cpu_s),
        )
        for cost in costs
    )


def per_cpu_second(messages: int, cpu_s: float) -> float | None:
    """Messages per CPU second; None when less was used than the kernel's clock can tell."""
    return round(messages / cpu_s, 1) if cpu_s > 0.01 else None


def to_json(report: msgspec.Struct) -> str:
    """One indented JSON object."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def show_load(report: LoadReport, console: Console) -> None:
    """The table of a load run."""
    pace = f"{report.rate:,.0f}/s" if report.rate else f"saturated, window {report.window}"
    if report.saturated_per_s:
        pace += f" of {report.saturated_per_s:,.0f}/s saturated"
    if report.offline_share:
        pace += f", {report.offline_share:.0%} away for {report.away_s:g} s each"
    title = (
        f"{report.scenario}: {report.publishers} → {report.subscribers}, QoS {report.qos}, "
        f"MQTT {report.version}, {report.payload_bytes} bytes, {pace}"
    )
    counts = [
        ("published", report.published),
        ("acknowledged", report.acknowledged),
        ("refused", report.refused),
        ("expected deliveries", report.expected),
        ("delivered", report.delivered),
        ("lost", report.lost),
        ("duplicated", report.duplicated),
        ("reordered", report.reordered),
        *([("returns", report.returns)] if report.offline_share else []),
    ]
    latencies = [
        ("delivery", report.delivery),
        ("delivery after a return", report.returning),
        ("acknowledgement", report.acknowledgement),
    ]
    table = result_table(report, title, counts, latencies, counted="in + out messages")
    if len(report.processes) > 1:
        table.add_row("all in + out messages a CPU s", count_text(report.messages_per_cpu_s))
    show_result(report, table, console)


def result_table(
    report: Measured,
    title: str,
    counts: Sequence[tuple[str, int]],
    latencies: Sequence[tuple[str, LatencySummary]],
    *,
    counted: str,
    bad: Collection[str] = ("lost",),
) -> Table:
    """Counts, of which those that are `bad` stand out, rates, latencies and what each process spent; `counted` says of
    which messages there are so many a CPU second."""
    table = Table(title=title, show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in counts:
        table.add_row(name, f"{value:,}", style="red" if value and name in bad else None)
    table.add_section()
    table.add_row("published a second", f"{report.published_per_s:,.0f}")
    table.add_row("delivered a second", f"{report.delivered_per_s:,.0f}")
    for name, latency in (*latencies, ("send delay of this program", report.send_delay)):
        if latency.samples:
            table.add_row(f"{name} p50 / p99 / p99.9 / max, ms", quantiles_text(latency))
    table.add_section()
    for cost in report.processes:
        cpu = f"{cost.cpu_s:.2f}" + (f" + {cost.children_cpu_s:.2f} below" if cost.children_cpu_s else "")
        table.add_row(f"{cost.name} ({cost.pid}) CPU s", cpu)
        table.add_row(f"{cost.name} {counted} a CPU s", count_text(cost.messages_per_cpu_s))
        table.add_row(f"{cost.name} peak PSS, MiB", f"{cost.pss_peak_bytes / 2**20:.1f}")
    return table


def show_result(report: Measured, table: Table, console: Console) -> None:
    """The table, what this program spent itself, and which promises were broken."""
    own = f"{report.generator_cpu_s:.2f} ({report.generator_cores:.2f})"
    table.add_row("this program, CPU s (cores)", own)
    console.print(table)
    for failure in report.failures:
        console.print(failure, style="bold red")


def show_idle(report: IdleReport, console: Console) -> None:
    """The table of an idle run."""
    table = Table(title=f"{report.connections:,} idle connections, opened in {report.connect_s:.2f} s")
    table.add_column("what")
    for cost in report.processes:
        table.add_column(f"{cost.name} ({cost.pid})", justify="right")
    rows: tuple[tuple[str, Callable[[IdleCost], str]], ...] = (
        ("PSS before, MiB", lambda cost: f"{cost.pss_before_bytes / 2**20:.1f}"),
        ("PSS with them, MiB", lambda cost: f"{cost.pss_with_bytes / 2**20:.1f}"),
        ("KiB a connection", lambda cost: f"{cost.bytes_per_connection / 1024:.2f}"),
        ("CPU s to connect", lambda cost: f"{cost.connect_cpu_s:.2f}"),
        ("cores while idle", lambda cost: f"{cost.idle_cores:.3f}"),
    )
    for name, value in rows:
        table.add_row(name, *(value(cost) for cost in report.processes))
    console.print(table)


def quantiles_text(latency: LatencySummary) -> str:
    """Median, p99, p99.9 and the longest, in milliseconds."""
    values = (latency.p50_ms, latency.p99_ms, latency.p999_ms, latency.max_ms)
    return " / ".join("-" if value is None else f"{value:,.2f}" for value in values)


def count_text(value: float | None) -> str:
    """With thousands apart; a dash for what could not be told."""
    return "-" if value is None else f"{value:,.0f}"
