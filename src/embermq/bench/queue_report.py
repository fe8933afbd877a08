"""What a run on a queue found out, for machines and for people."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table

from embermq.bench.latency import LatencySummary
from embermq.bench.report import CostReport, count_text, quantiles_text


class QueueReport(msgspec.Struct, frozen=True, kw_only=True):
    """`published` to `foreign` cover the whole run with its warm-up; rates, costs and latencies the measured window.

    `delivered` counts every delivery, `distinct` each message once. `doubled` are deliveries of what had arrived,
    `repeats` those that the broker marks so; a queue promises at least once, so neither breaks a promise. `disordered`
    does: a message behind a later one of its key. `delivery` and `settling` count from the intended send time, to the
    consumer and to the confirmation of its `$ack`. `messages_per_cpu_s`: deliveries, each published and settled.
    """

    run: str
    queue: str
    version: str
    qos: int
    publishers: int
    consumers: int
    partitions: int
    ordering: str
    keys: int
    ack: str
    ack_batch: int
    prefetch: int
    payload_bytes: int
    rate: float
    window: int
    published: int
    acknowledged: int
    refused: int
    unacknowledged: int
    delivered: int
    distinct: int
    settled: int
    settles_refused: int
    settles_unconfirmed: int
    lost: int
    doubled: int
    repeats: int
    disordered: int
    foreign: int
    window_s: float
    published_per_s: float
    delivered_per_s: float
    delivery: LatencySummary
    settling: LatencySummary
    acknowledgement: LatencySummary
    send_delay: LatencySummary
    processes: tuple[CostReport, ...]
    messages_per_cpu_s: float | None
    generator_cpu_s: float
    generator_cores: float
    failures: tuple[str, ...]


def broken_promises(lost: int, disordered: int) -> tuple[str, ...]:
    """What the broker promised and did not keep."""
    broken = []
    if lost:
        broken.append(f"{lost} acknowledged messages were lost")
    if disordered:
        broken.append(f"{disordered} messages came behind a later one of their key")
    return tuple(broken)


def show_queue(report: QueueReport, console: Console) -> None:
    """The table of a run."""
    pace = f"{report.rate:,.0f}/s" if report.rate else f"saturated, window {report.window}"
    keys = f"{report.keys:,} keys" if report.keys else "no keys"
    table = Table(
        title=f"queue: {report.publishers} → {report.partitions or 'default'} partitions → {report.consumers}, "
        f"{keys}, QoS {report.qos}, MQTT {report.version}, {report.payload_bytes} bytes, acks by {report.ack}, {pace}",
        show_header=False,
    )
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in (
        ("published", report.published),
        ("acknowledged", report.acknowledged),
        ("refused", report.refused),
        ("delivered", report.delivered),
        ("settled", report.settled),
        ("settles refused", report.settles_refused),
        ("lost", report.lost),
        ("doubled", report.doubled),
        ("out of order in their key", report.disordered),
    ):
        is_bad = value and name in ("lost", "out of order in their key")
        table.add_row(name, f"{value:,}", style="red" if is_bad else None)
    table.add_section()
    table.add_row("published a second", f"{report.published_per_s:,.0f}")
    table.add_row("delivered a second", f"{report.delivered_per_s:,.0f}")
    for name, latency in (
        ("delivery", report.delivery),
        ("settled", report.settling),
        ("acknowledgement to the publisher", report.acknowledgement),
        ("send delay of this program", report.send_delay),
    ):
        if latency.samples:
            table.add_row(f"{name} p50 / p99 / p99.9 / max, ms", quantiles_text(latency))
    table.add_section()
    for cost in report.processes:
        cpu = f"{cost.cpu_s:.2f}" + (f" + {cost.children_cpu_s:.2f} below" if cost.children_cpu_s else "")
        table.add_row(f"{cost.name} ({cost.pid}) CPU s", cpu)
        table.add_row(f"{cost.name} messages a CPU s", count_text(cost.messages_per_cpu_s))
        table.add_row(f"{cost.name} peak PSS, MiB", f"{cost.pss_peak_bytes / 2**20:.1f}")
    table.add_row(
        "this program, CPU s (cores)", f"{report.generator_cpu_s:.2f} ({report.generator_cores:.2f})"
    )
    console.print(table)
    for failure in report.failures:
        console.print(failure, style="bold red")
