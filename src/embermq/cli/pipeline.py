"""`embermq pipeline`: what the Spark queries do, and the jobs that a person starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.app.config import Settings
from embermq.app.control import ControlClient
from embermq.app.errors import UserError
from embermq.app.settings import SQLITE
from embermq.cli.audit import command as audit
from embermq.cli.compact import command as compact
from embermq.cli.control import broker_command
from embermq.cli.fetch_jars import command as fetch_jars
from embermq.cli.options import Assignments, ConfigFile, DataDir, configuration, with_settings
from embermq.cli.packaged import PIPELINE_COMMANDS, add_packaged
from embermq.cli.redrive import command as redrive
from embermq.cli.rejected import app as rejected
from embermq.cli.replay import command as replay
from embermq.cli.report import command as report
from embermq.cli.submit import command as submit
from embermq.cli.terminal import Told, group, table
from embermq.model.amounts import counted

if TYPE_CHECKING:
    from embermq.pipeline.status import PipelineStatus, QueryStatus

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


def _status_elsewhere(broker: ControlClient) -> Told:
    from embermq.pipeline.status import PipelineStatus

    return _told(msgspec.convert(broker.read("/pipeline"), PipelineStatus))


@broker_command(app, "status", there=_status_elsewhere)
def status(settings: Settings) -> Told:
    """Show what every query does. State, position, lag, last batch and last error, also when the pipeline is down."""
    from embermq.app.pipeline_side import look_at_log
    from embermq.app.slots import noted_slot
    from embermq.pipeline.errors import PipelineError
    from embermq.pipeline.status import read_status

    directory = Path(settings.data_dir)
    if settings.stores.log == SQLITE and not (directory / "broker.db").is_file():
        raise UserError(f"{directory} is not the data directory of a broker; name it with --data-dir")
    try:
        look, problem = look_at_log(noted_slot(settings)), ""
    except PipelineError as error:
        look, problem = None, f"the log was not looked at, lags are as the pipeline told them last: {error}"
    found = read_status(directory, None, look)
    if problem:
        found = msgspec.structs.replace(found, warnings=(*found.warnings, problem))
    return _told(found)


def _told(found: PipelineStatus) -> Told:
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
