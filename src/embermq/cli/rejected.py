"""`embermq pipeline rejected`: records that could not be understood or delivered, with reasons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.app.config import Settings
from embermq.app.errors import UserError
from embermq.app.settings import SQLITE
from embermq.cli.options import AsJson, Rate, ToQueue, ToTopic, with_settings
from embermq.cli.replay import EXIT_INTERRUPTED, EXIT_SOME_LEFT, RATE
from embermq.cli.terminal import group, print_report, shown, table
from embermq.model.moments import iso_s

if TYPE_CHECKING:
    from embermq.pipeline.rejected import RejectedRecord
    from embermq.tools.rejected_retry import RetryReport

LIMIT = 100
LOOKED_AT = 100_000
NOTHING = "nothing was rejected"
HEADINGS = ("first", "last", "newest", "records", "bytes")

app = group("Records that dispatch has rejected: list, reasons, retry.")


@app.command("list")
@with_settings
def rejected_list(
    settings: Settings,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="The newest so many.")] = LIMIT,
    as_json: AsJson = False,
) -> None:
    """List what was rejected, and why. With positions, the newest last. The pipeline may run; --json prints one object
    a line."""
    found = _newest(settings, limit)
    for one in found:
        if as_json:
            print(msgspec.json.encode(one).decode())
            continue
        topic = f"  {shown(one.topic)}" if one.topic else ""
        where = f"{one.partition}:{one.offset}"
        print(f"{iso_s(one.rejected_ms)}  {where}  {one.bytes:,} bytes{topic}  {shown(one.reason)}")
    if not found and not as_json:
        print(NOTHING)


@app.command("reasons")
@with_settings
def rejected_reasons(
    settings: Settings,
    *,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LOOKED_AT, help="Of the newest so many.")
    ] = LOOKED_AT,
    as_json: AsJson = False,
) -> None:
    """Count what was rejected by reason, the most frequent first. Numbers in a reason count as one; --json prints one
    object a line."""
    from embermq.pipeline.rejected import by_reason

    found = by_reason(_newest(settings, limit))
    if as_json:
        for one in found:
            print(msgspec.json.encode(one).decode())
        return
    if not found:
        print(NOTHING)
        return
    rows = [
        (one.first, one.last, iso_s(one.last_ms), f"{one.records:,}", f"{one.bytes:,}", shown(one.reason))
        for one in found
    ]
    # The reason is long: it stands last, to the left, behind the numbers.
    heads = table([HEADINGS, *(row[:-1] for row in rows)], names=3)
    for line, reason in zip(heads, ("reason", *(row[-1] for row in rows)), strict=True):
        print(f"{line}  {reason}")


@app.command("retry")
@with_settings
def rejected_retry(
    settings: Settings,
    *,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Only those with this in their reason.")
    ] = "",
    client: Annotated[
        str, typer.Option("--client", metavar="ID", help="Only what was for this APPLICATION client.")
    ] = "",
    topic: ToTopic = "",
    queue: ToQueue = "",
    rate: Rate = RATE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count them, change nothing.")] = False,
    anew: Annotated[bool, typer.Option("--again", help="Also what was put back before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put back what can be read by now. To the applications that it was for, unless --topic or --queue says otherwise.
    The broker has to be running. Interrupted or killed, the same command goes on; what is done is not done twice."""
    from embermq.cli.message_bar import job_told
    from embermq.tools.rejected_retry import RetryOrder, run_retry
    from embermq.tools.replay import ReplayTarget

    target = ReplayTarget(client=client, topic=topic, queue=queue) if client or topic or queue else None
    order = RetryOrder(reason=reason, target=target, rate=rate, dry_run=dry_run, anew=anew)
    with job_told("records", as_json=as_json) as (progress, notice):
        report = run_retry(order, settings, progress, notice)
    print_report({"report": report}, lines_of(report), as_json=as_json)
    if report.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(0 if report.is_complete else EXIT_SOME_LEFT)


def lines_of(report: RetryReport) -> list[str]:
    """What a person reads at the end."""
    found = report.found
    lines = [f"rejected    {found.rejected:,}, of which {found.chosen:,} can be read by now"]
    if found.unreadable:
        lines.append(f"unreadable  {found.unreadable:,} are damaged, or of a later version")
    if found.missing:
        lines.append(f"missing     {found.missing:,} ranges were gone from the log before they were read")
    if found.expired:
        lines.append(f"expired     {found.expired:,} are left out, their time is over")
    for one in report.receivers:
        told = f"{one.found.chosen:,} chosen"
        if not report.dry_run:
            told += f", {one.put_back:,} put back"
        if one.found.before:
            told += f", {one.found.before:,} were put back before"
        if one.refused_count:
            told += f", {one.refused_count:,} refused"
        if one.interrupted:
            told += f", interrupted: {one.found.chosen - one.put_back - one.refused_count:,} are left"
        lines.append(f"{shown(one.to)}: {shown(one.problem) or told}")
        lines += [
            f"  {refused.partition}:{refused.offset}  {shown(refused.topic)}  {shown(refused.reason)}"
            for refused in one.refused
        ]
    if report.dry_run:
        lines.append("nothing was changed")
    return lines


def _newest(settings: Settings, limit: int) -> list[RejectedRecord]:
    from embermq.app.pipeline_side import rejected_records
    from embermq.app.slots import noted_slot

    if not Path(settings.data_dir).is_dir() and settings.stores.log == SQLITE:
        raise UserError(f"{settings.data_dir} is not the data directory of a broker; name it with --data-dir")
    return list(rejected_records(noted_slot(settings), limit))
