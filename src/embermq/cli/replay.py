"""`embermq pipeline replay`: messages of the log or the lake once more, to a client, a topic or a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from embermq.app.config import Settings
from embermq.cli.options import AsJson, End, OneOrAll, Rate, Start, Tasks, ToQueue, ToTopic, with_settings
from embermq.cli.terminal import print_report, shown, table
from embermq.model.amounts import counted
from embermq.model.position import told_place
from embermq.tools.report_folder import told_position

if TYPE_CHECKING:
    from embermq.tools.replay import ReplayReport

RATE = 1_000.0
EXIT_SOME_LEFT = 3
EXIT_INTERRUPTED = 130


@with_settings
def command(
    settings: Settings,
    *,
    start: Start,
    end: End = "",
    topic_filter: Annotated[
        str, typer.Option("--filter", metavar="FILTER", help="An MQTT topic filter; # leaves out $queue/….")
    ] = "#",
    client: Annotated[
        str, typer.Option("--client", metavar="ID", help="To the log of this APPLICATION client alone.")
    ] = "",
    topic: ToTopic = "",
    queue: ToQueue = "",
    rate: Rate = RATE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count them, change nothing.")] = False,
    anew: Annotated[
        bool, typer.Option("--again", help="Once more from the start, although it was begun or done before.")
    ] = False,
    tasks: Tasks = 0,
    slot: OneOrAll = None,
    as_json: AsJson = False,
) -> None:
    """Replay messages of the log or the lake. The broker has to be running. Interrupted or killed, the same command
    goes on where it was; what is done is not done twice."""
    from embermq.cli.message_bar import job_told
    from embermq.tools.replay import ReplayOrder, ReplayWords, run_replay

    words = ReplayWords(
        start=start, end=end, topic_filter=topic_filter, client=client, topic=topic, queue=queue
    )
    order = ReplayOrder(words=words, rate=rate, dry_run=dry_run, anew=anew, tasks=tasks, slot=slot)
    with job_told("messages", as_json=as_json) as (progress, notice):
        report = run_replay(order, settings, progress, notice)
    print_report({"report": report}, lines_of(report), as_json=as_json)
    if report.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(EXIT_SOME_LEFT if report.refused_count or report.missing or report.unreadable else 0)


def _ended(report: ReplayReport) -> str:
    ends = ", ".join(map(told_position, report.log_ends))
    return f"the log ended at {ends}" if len(report.log_ends) == 1 else f"the logs ended at {ends}"


def lines_of(report: ReplayReport) -> list[str]:
    """What a person reads at the end."""
    lake = f", {report.from_lake:,} of them from the lake" if report.from_lake else ""
    lines = [
        f"range       {counted(report.records, 'record')}, {_ended(report)}",
        f"chosen      {counted(report.chosen, 'message')} of {counted(report.payload_bytes, 'byte')}{lake}",
    ]
    if report.oldest:
        lines.append(f"accepted    {report.oldest} to {report.newest}")
    if report.expired:
        lines.append(f"expired     {report.expired:,} are left out, their time is over")
    if report.missing:
        lines.append(
            f"missing     {report.missing:,} offsets of the range are in neither the log nor the lake"
        )
    if report.unreadable:
        lines.append(f"unreadable  {counted(report.unreadable, 'record')}; embermq pipeline rejected list")
    if report.dry_run:
        return [*lines, "nothing was changed"]
    lines.append(f"replayed    {report.replayed:,}")
    if report.was_done:
        lines.append("done        by an earlier run, nothing was changed; --again does it once more")
    if report.interrupted:
        lines.append(f"interrupted {report.chosen - report.replayed - report.refused_count:,} are left")
    if report.refused:
        rows = [
            (told_place(one.partition, one.offset, one.slot), shown(one.topic), shown(one.reason))
            for one in report.refused
        ]
        lines += [
            "",
            f"{report.refused_count:,} were refused, the first {len(rows):,}:",
            *table([("position", "topic", "reason"), *rows], names=3),
        ]
    return lines
