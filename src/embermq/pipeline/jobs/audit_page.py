"""The page of an audit, for whoever has to believe it."""

from collections import defaultdict

from embermq.model.position import offset_of, partition_of
from embermq.pipeline.jobs.audit_sum import AuditFound
from embermq.pipeline.jobs.audit_values import AuditedLog, AuditReport
from embermq.pipeline.page import Page, grouped

ROWS_MAX = 500
CLIENTS_MAX = 30
_METHOD = """
Every accepted message of QoS 1 or 2 is a record of the message log before its publisher gets an answer, and the record
names each application that it is for. Each application has a floor below which all is settled, the number of messages
that it was sent up to there, and a row for each one that was settled without its acknowledgement. This report compares
the records of the log, and of the lake for what the log has let go of, with these, one by one.

Sessions that are no applications have no names in records: what came before the position that is given above has been
delivered to them and acknowledged, dropped by their limits, or is stored; what is stored was checked.
"""


def audit_page(found: AuditFound, made_at: str, signed_by: str) -> str:
    """The report of an audit as one HTML page that loads nothing."""
    report = found.report
    page = Page("Audit of messages")
    page.paragraph(f"made {made_at}; {'; '.join(_range(one) for one in report.logs)}; key {signed_by}")
    if report.differences_count:
        page.paragraph(f"{report.differences_count:,} differences were found.", "bad")
    elif all(one.is_checked for one in report.applications) and not report.not_checked:
        page.paragraph("Every message is accounted for.", "good")
    else:
        page.paragraph("No difference was found; not everything could be checked, see below.", "good")
    for text in report.not_checked:
        page.paragraph(f"Not checked: {text}")
    _overview(page, report)
    if report.differences:
        page.heading("Differences")
        page.table(
            ("what", "where", "position", "topic", "messages", "note"),
            (
                (
                    one.kind,
                    one.who,
                    _of_slot(one.slot) + _position(one.offset, one.until),
                    one.topic,
                    one.messages,
                    one.note,
                )
                for one in report.differences[:ROWS_MAX]
            ),
        )
    _deliveries(page, found)
    page.heading("Accepted, by day")
    days: dict[str, dict[str, float]] = defaultdict(dict)
    for one in found.traffic:
        days[one.date][one.root] = one.messages
    page.bars("messages accepted by day and first topic level", grouped(days))
    page.table(
        ("day", "first level", "messages", "bytes of payload"),
        ((one.date, one.root, one.messages, one.payload_bytes) for one in found.traffic[:ROWS_MAX]),
    )
    _queues(page, report)
    page.heading("How it was done")
    for text in _METHOD.split("\n\n"):
        page.paragraph(text.strip())
    return page.text()


def _overview(page: Page, report: AuditReport) -> None:
    page.table(
        ("", "messages"),
        [
            ("accepted", report.records),
            ("of these, read from the lake", report.from_lake),
            ("of these, compared with the lake", report.lake_compared),
            ("owed to applications", sum(report.deliveries.values())),
            *((f"- {name}", count) for name, count in sorted(report.deliveries.items(), key=_largest)),
        ],
    )
    page.paragraph(
        f"accepted from {report.oldest} to {report.newest}" if report.oldest else "nothing was accepted"
    )


def _largest(entry: tuple[str, int]) -> int:
    return -entry[1]


def _deliveries(page: Page, found: AuditFound) -> None:
    report = found.report
    page.heading("Applications")
    clients: dict[str, dict[str, float]] = defaultdict(dict)
    for one in found.outcomes:
        clients[one.client][one.outcome] = clients[one.client].get(one.outcome, 0) + one.messages
    largest = sorted(clients, key=lambda name: -sum(clients[name].values()))[:CLIENTS_MAX]
    page.bars("deliveries by application", {name: clients[name] for name in largest})
    page.table(
        ("client", "owed", "settled below", "owed below", "sent", "passed over", "checked"),
        (
            (
                one.client,
                one.deliveries,
                one.floor,
                one.owed,
                one.settled,
                one.passed,
                "yes" if one.is_checked else one.unchecked,
            )
            for one in report.applications[:ROWS_MAX]
        ),
    )
    days: dict[str, dict[str, float]] = defaultdict(dict)
    for each in found.outcomes:
        days[each.date][each.outcome] = days[each.date].get(each.outcome, 0) + each.messages
    page.bars("deliveries to applications by day", days)
    page.heading("Other sessions")
    page.paragraph(
        "Settled or stored: everything before position "
        + ", ".join(_of_slot(one.slot) + _told(one.dispatcher_floor) for one in report.logs)
        + "."
    )
    if report.stored:
        page.table(
            ("client", "stored, not sent", "sent, not acknowledged"),
            ((one.client, one.waits, one.under_way) for one in report.stored[:ROWS_MAX]),
        )


def _queues(page: Page, report: AuditReport) -> None:
    if report.queues:
        page.heading("Durable queues")
        page.table(
            ("queue", "accepted", "in it now", "delayed"),
            ((one.queue, one.accepted, one.entries, one.delayed) for one in report.queues[:ROWS_MAX]),
        )


def _range(one: AuditedLog) -> str:
    return f"{_of_slot(one.slot)}log {one.log_id}, positions {_told(one.start)} up to {_told(one.end)}"


def _of_slot(slot: int | None) -> str:
    return "" if slot is None else f"slot {slot}: "


def _position(offset: int | None, until: int | None) -> str:
    if offset is None:
        return "" if until is None else f"below {_told(until)}"
    return _told(offset) if until is None or until <= offset + 1 else f"{_told(offset)} up to {_told(until)}"


def _told(position: int) -> str:
    return f"{partition_of(position)}:{offset_of(position)}"
