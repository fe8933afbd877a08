"""The page of a report."""

from collections import defaultdict
from collections.abc import Sequence

from embermq.pipeline.jobs.report_values import Talker, TrafficReport
from embermq.pipeline.page import Page, grouped

HOURS_MAX = 72
"""More are shown as days."""
ROWS_MAX = 200
CLIENTS = ("client", "messages", "bytes of payload")


def report_page(report: TrafficReport, made_at: str) -> str:
    """The report as one HTML page that loads nothing."""
    page = Page("Messages")
    told = ", ".join(map(str, report.ranges))
    page.paragraph(f"made {made_at}; positions {told}")
    page.table(
        ("", ""),
        [
            ("messages of QoS 1 and 2", report.messages),
            ("bytes of payload", report.payload_bytes),
            ("clients that published", report.publishers_count),
            ("records that cannot be read", report.unreadable),
            ("dead letters now", sum(one.letters for one in report.dead_letters)),
        ],
    )
    if not report.messages:
        page.paragraph("Nothing was accepted.")
        return page.text()
    page.paragraph(f"accepted from {report.oldest} to {report.newest}")
    _traffic(page, report)
    page.heading("Who published most")
    _talkers(page, report.publishers)
    if report.receivers:
        page.heading("Applications that were owed most")
        _talkers(page, report.receivers)
    page.heading("Sizes")
    page.bars(
        "messages by size of payload", {_bytes(size): {"messages": n} for size, n in report.sizes.items()}
    )
    page.table(
        ("first level", "messages", "bytes of payload", "p50", "p95", "p99", "largest"),
        (
            (one.root, one.messages, one.payload_bytes, one.p50, one.p95, one.p99, one.largest)
            for one in report.roots[:ROWS_MAX]
        ),
    )
    _latencies(page, report)
    if report.dead_letters:
        page.heading("Dead letters")
        columns: dict[str, dict[str, float]] = defaultdict(dict)
        for one in report.dead_letters:
            columns[one.queue][one.reason] = columns[one.queue].get(one.reason, 0) + one.letters
        page.bars("dead letters by queue and reason", columns)
        page.table(
            ("day", "queue", "group", "reason", "dead letters"),
            (
                (one.date, one.queue, one.group, one.reason, one.letters)
                for one in report.dead_letters[:ROWS_MAX]
            ),
        )
    return page.text()


def _traffic(page: Page, report: TrafficReport) -> None:
    page.heading("Traffic")
    are_hours = len({one.hour for one in report.hours}) <= HOURS_MAX
    messages: dict[str, dict[str, float]] = defaultdict(dict)
    sizes: dict[str, dict[str, float]] = defaultdict(dict)
    for one in report.hours:
        name = one.hour if are_hours else one.hour[:10]
        part = one.root if one.queue is None else f"$queue/{one.queue}"
        messages[name][part] = messages[name].get(part, 0) + one.messages
        sizes[name][part] = sizes[name].get(part, 0) + one.payload_bytes
    each = "hour" if are_hours else "day"
    page.bars(f"messages by {each}", grouped(messages))
    page.bars(f"bytes of payload by {each}", grouped(sizes))


def _talkers(page: Page, talkers: Sequence[Talker]) -> None:
    page.bars("messages by client", {one.client: {"messages": one.messages} for one in talkers})
    page.table(CLIENTS, ((one.client, one.messages, one.payload_bytes) for one in talkers))


def _latencies(page: Page, report: TrafficReport) -> None:
    if not report.latencies:
        return
    page.heading("Latencies")
    page.paragraph(
        "From accepted to acknowledged by the receiver, of one delivery in 16, in windows; in milliseconds."
    )
    page.table(
        ("day", "clients", "samples", "p50 of the middle window", "p99 of the worst", "longest"),
        (
            (
                one.date,
                one.clients,
                one.samples,
                *(us / 1_000 for us in (one.p50_us, one.worst_p99_us, one.max_us)),
            )
            for one in report.latencies[:ROWS_MAX]
        ),
    )


def _bytes(size: int) -> str:
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"
