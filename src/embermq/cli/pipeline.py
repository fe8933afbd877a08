"""`embermq pipeline`: what the Spark queries do, and the jobs that a person starts."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.app.config import Settings
from embermq.app.control import ControlClient
from embermq.app.errors import OptionError, UserError
from embermq.app.settings import SQLITE
from embermq.cli.audit import command as audit
from embermq.cli.control import broker_command
from embermq.cli.dead_letters import EXIT_SOME_STAY, about_crowded, about_orphaned
from embermq.cli.options import (
    AsJson,
    Assignments,
    ConfigFile,
    DataDir,
    Tasks,
    configuration,
    finite,
    with_settings,
)
from embermq.cli.packaged import PIPELINE_COMMANDS, add_packaged
from embermq.cli.rejected import app as rejected
from embermq.cli.replay import command as replay
from embermq.cli.report import command as report
from embermq.cli.terminal import Told, group, print_report, shown, table
from embermq.model.amounts import counted

if TYPE_CHECKING:
    from embermq.pipeline.jobs.compact import CompactionReport
    from embermq.pipeline.jobs.redrive import RedriveReport
    from embermq.pipeline.status import PipelineStatus, QueryStatus


def submit(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The driver's own, kept between starts.")],
    *,
    master: Annotated[
        str, typer.Option("--master", metavar="MASTER", help="The Spark master; else pipeline.master.")
    ] = "",
    show: Annotated[bool, typer.Option("--print", help="Print the command, run nothing.")] = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Run the pipeline by spark-submit. It needs no data directory of a broker, which has pipeline.enabled = false."""
    from embermq.tools.submit import spark_submit

    words = [*(assignments or ()), *([f"pipeline.master={master}"] if master else [])]
    settings = configuration(config, words, None).settings
    submission = spark_submit(settings, folder, config, assignments or [])
    if show:
        print(shlex.join(submission.words))
        return
    os.execvpe(submission.words[0], submission.words, os.environ | submission.environment)


def fetch_jars(
    *,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIRECTORY", help="Where to put them; else pipeline.jars_dir."),
    ] = None,
    repository: Annotated[
        str, typer.Option("--from", metavar="URL", help="A mirror of Maven Central to fetch them from.")
    ] = "",
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the jars that Spark needs for Kafka and the lake. What is missing comes from Maven Central; hashes are
    checked."""
    from embermq.cli.message_bar import MessageBar
    from embermq.pipeline.errors import RepositoryError
    from embermq.pipeline.jars import fetch_all, jars_folder

    settings = configuration(config, assignments, None).settings.pipeline
    if into is not None:
        settings = msgspec.structs.replace(settings, jars_dir=str(into))
    try:
        with MessageBar("jars") as bar:
            fetched = fetch_all(settings, repository, bar.show)
    except RepositoryError as error:
        raise OptionError(f"--from: {error}") from error
    folder = jars_folder(settings).resolve()
    names = [jar.file_name for jar in fetched]
    if as_json:
        print(msgspec.json.encode({"folder": str(folder), "fetched": names}).decode())
    elif names:
        print(f"fetched into {folder}: {', '.join(names)}")
    else:
        print(f"{folder} has all that Spark needs")


@with_settings
def compact(
    settings: Settings,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what there is and would be deleted, change nothing.")
    ] = False,
    tasks: Tasks = 0,
    as_json: AsJson = False,
) -> None:
    """Put the lake in order. It merges files and deletes what is too old, as a running pipeline does by itself."""
    from embermq.app.slots import check_no_slots
    from embermq.cli.message_bar import job_told
    from embermq.pipeline.jobs.compact import compact
    from embermq.pipeline.places import Places

    check_no_slots(settings)
    places = Places(Path(settings.data_dir).absolute())
    if not places.lake_ledger.is_file():
        raise UserError(f"{places.data_dir} has no lake; name the broker's data directory with --data-dir")
    with job_told("steps", as_json=as_json) as (progress, _):
        report = compact(settings.pipeline, places, tasks=tasks, dry=dry_run, progress=progress)
    print_report({"report": report}, _compacted(report), as_json=as_json)


def _compacted(report: CompactionReport) -> list[str]:
    """What a person reads at the end."""
    if report.dry_run:
        return [
            f"files    {report.files_before:,} of {counted(report.bytes_before, 'byte')} in all",
            f"deleted  {report.deleted:,} records would be, which are older than the lake keeps",
        ]
    return [
        f"deleted  {counted(report.deleted, 'record')}, older than the lake keeps",
        f"merged   {counted(report.files_merged, 'file')} into {report.files_made:,}",
        f"files    {report.files_before:,} became {report.files_after:,}",
        f"bytes    {report.bytes_before:,} became {report.bytes_after:,}",
        f"took     {report.seconds:.1f} s",
    ]


EXIT_INTERRUPTED = 130


@with_settings
def redrive(
    settings: Settings,
    *,
    queue: Annotated[
        str,
        typer.Option("--queue", metavar="NAME", help="The queue they come from, or the one they are in."),
    ],
    wanted: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="SQL", help="Only those for which this Spark SQL expression is true."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", min=0.001, max=1_000_000, callback=finite, help="Put back at most this many a second."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count them, show some of each reason, change nothing.")
    ] = False,
    tasks: Tasks = 0,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back in bulk. They have no attempts then, and go to the groups that failed them. The broker
    has to be running."""
    from embermq.cli.message_bar import job_told
    from embermq.tools.redrive import RedriveOrder, run_redrive

    order = RedriveOrder(queue=queue, wanted=wanted, rate=rate, dry_run=dry_run, tasks=tasks)
    with job_told("dead letters", as_json=as_json) as (progress, notice):
        report = run_redrive(order, settings, progress, notice)
    print_report({"report": report}, redriven(report), as_json=as_json)
    if report.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(EXIT_SOME_STAY if report.held or report.orphaned or report.crowded else 0)


def redriven(report: RedriveReport) -> list[str]:
    """What a person reads at the end."""
    lines = [
        f"dead letters {report.there:,} in {shown(report.letters_in)}",
        f"chosen       {report.chosen:,}{', nothing was changed' if report.dry_run else ''}",
    ]
    if not report.dry_run:
        lines.append(f"put back     {report.put_back:,}")
    if report.gone:
        lines.append(f"gone         {report.gone:,} were no dead letters any more when their turn came")
    if report.held:
        lines.append(f"held         {report.held:,} stay: a consumer of {shown(report.letters_in)} has them")
    if report.orphaned:
        lines.append(f"orphaned     {about_orphaned(report.orphaned, report.missing_queues)}")
    if report.crowded:
        lines.append(f"crowded      {about_crowded(report.crowded, report.full_queues)}")
    if report.interrupted:
        left = report.chosen - report.put_back - report.gone - report.held - report.orphaned - report.crowded
        lines.append(f"interrupted  {left:,} are dead letters still")
    lines.append(f"took         {report.seconds:.1f} s")
    if report.counts:
        rows = [
            (
                shown(one.queue),
                shown(one.group) or "-",
                one.reason,
                f"{one.chosen:,}",
                f"{one.there:,}",
            )
            for one in report.counts
        ]
        lines += ["", *table([("queue", "group", "reason", "chosen", "there"), *rows], names=3)]
    if report.samples:
        samples = [
            (
                one.id,
                one.message_id,
                one.reason,
                "-" if one.key is None else shown(one.key),
                f"{one.moved_at:%Y-%m-%d %H:%M:%S}",
                shown(one.last_error),
            )
            for one in report.samples
        ]
        headings = ("id", "message", "reason", "key", "moved at (UTC)", "last error")
        lines += ["", "the oldest of each reason:", *table([headings, *samples], names=6)]
    return lines


HEADINGS = ("query", "state", "position", "behind", "behind for", "last batch", "ended", "restarts")
NAMES = 2
"""The first columns are names, to the left; the others are numbers, to the right."""

app = group("The Spark pipeline and its jobs.")
add_packaged(app, PIPELINE_COMMANDS)
app.command("audit")(audit)
app.command("fetch-jars")(fetch_jars)
app.command("compact")(compact)
app.command("redrive")(redrive)
app.command("replay")(replay)
app.command("report")(report)
app.command("submit")(submit)
app.add_typer(rejected, name="rejected")


@app.command("start")
def start(
    *,
    master: Annotated[
        str, typer.Option("--master", metavar="MASTER", help="The Spark master; else pipeline.master.")
    ] = "",
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Run the pipeline by itself. It runs until SIGTERM or Ctrl-C, for a broker with pipeline.enabled = false."""
    words = [*(assignments or ()), *([f"pipeline.master={master}"] if master else [])]
    settings = configuration(config, words, data_dir).settings
    from embermq.app.pipeline_run import run_pipeline

    raise typer.Exit(run_pipeline(settings))


@app.command("resume")
@with_settings
def resume(
    settings: Settings,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="archive, lake, traffic or rule:NAME.")],
) -> None:
    """Let a paused query go on. It reads from where it was, or from the oldest record that is still in the log."""
    from embermq.pipeline.paused import resume_query

    directory = Path(settings.data_dir)
    if not resume_query(directory, query):
        raise UserError(f"{query} is not paused in {directory}; embermq pipeline status shows the queries")
    print(f"{query} goes on within a second of the pipeline")


class _PipelineHere(ControlClient):
    """Of a data directory and its log: the pipeline may be down."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(Path(settings.data_dir))
        self._settings = settings

    def pipeline_status(self) -> PipelineStatus:
        from embermq.app.pipeline_side import look_at_log
        from embermq.app.slots import noted_slot
        from embermq.pipeline.errors import PipelineError
        from embermq.pipeline.status import read_status

        directory = Path(self._settings.data_dir)
        if self._settings.stores.log == SQLITE and not (directory / "broker.db").is_file():
            raise UserError(f"{directory} is not the data directory of a broker; name it with --data-dir")
        try:
            return read_status(directory, None, look_at_log(noted_slot(self._settings)))
        except PipelineError as error:
            found = read_status(directory)
            problem = f"the log was not looked at, lags are as the pipeline told them last: {error}"
            return msgspec.structs.replace(found, warnings=(*found.warnings, problem))


@broker_command(app, "status", here=_PipelineHere)
def status(broker: ControlClient) -> Told:
    """Show what every query does. State, position, lag, last batch and last error, also when the pipeline is down."""
    found = broker.pipeline_status()
    lines = [f"{name:<9} {text}" for name, text in _summary(found)]
    if found.queries:
        lines += ["", *table([HEADINGS, *map(_cells, found.queries)], names=NAMES)]
    lines += [f"\n{one.name}, last error: {one.last_error}" for one in found.queries if one.last_error]
    return Told(found, [*lines, *(f"\nwarning: {warning}" for warning in found.warnings)])


def _summary(found: PipelineStatus) -> list[tuple[str, str]]:
    on = f" on {found.host}" if found.host else ""
    lines = [("pipeline", found.state if not found.pid else f"{found.state}, process {found.pid}{on}")]
    if found.waits_for:
        lines.append(("waits for", found.waits_for))
    if found.spark:
        lines.append(("runs on", f"Spark {found.spark}, Java {found.java}"))
    if found.driver_restarts:
        lines.append(("restarts", f"{found.driver_restarts}, the last one because {found.last_error}"))
    elif found.last_error:
        lines.append(("error", found.last_error))
    lines.append(
        ("log end", f"{found.log_end:,} (application logs wait for {counted(found.waiting, 'record')})")
    )
    return lines


def _cells(query: QueryStatus) -> tuple[str, ...]:
    batch = ended = "-"
    if query.last_batch_at_ms:
        batch = f"{query.last_batch_records:,} in {query.last_batch_ms:,} ms"
        ended = f"{max(0.0, time.time() - query.last_batch_at_ms / 1000):.0f} s ago"
    return (
        query.name,
        query.state,
        f"{query.position:,}",
        f"{query.lag_messages:,}",
        f"{query.lag_s:.1f} s",
        batch,
        ended,
        f"{query.restarts}",
    )
