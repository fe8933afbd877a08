"""What a run on a queue found out, for machines and for people."""

from __future__ import annotations

from rich.console import Console

from embermq_bench.latency import LatencySummary
from embermq_bench.report import Measured, result_table, show_result


class QueueReport(Measured, frozen=True, kw_only=True):
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
    settling: LatencySummary
    left: str = ""
    """What the run has left behind, and why."""


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
    title = (
        f"queue: {report.publishers} → {report.partitions or 'default'} partitions → {report.consumers}, "
        f"{keys}, QoS {report.qos}, MQTT {report.version}, {report.payload_bytes} bytes, acks by {report.ack}, {pace}"
    )
    counts = [
        ("published", report.published),
        ("acknowledged", report.acknowledged),
        ("refused", report.refused),
        ("delivered", report.delivered),
        ("settled", report.settled),
        ("settles refused", report.settles_refused),
        ("lost", report.lost),
        ("doubled", report.doubled),
        ("out of order in their key", report.disordered),
    ]
    latencies = [
        ("delivery", report.delivery),
        ("settled", report.settling),
        ("acknowledgement to the publisher", report.acknowledgement),
    ]
    bad = ("lost", "out of order in their key")
    table = result_table(report, title, counts, latencies, counted="messages", bad=bad)
    show_result(report, table, console)
    if report.left:
        console.print(report.left)
