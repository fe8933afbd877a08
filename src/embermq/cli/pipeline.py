"""`embermq pipeline`: what the Spark queries do."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, configuration

if TYPE_CHECKING:
    from rich.table import Table

    from embermq.pipeline.status import PipelineStatus, QueryStatus

app = typer.Typer(help="The Spark pipeline: status.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def pipeline() -> None:
    """The Spark pipeline: status."""


@app.command("status")
def status(
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show every query's state, position, lag, last batch and last error, whether or not the pipeline runs."""
    from embermq.pipeline.status import read_status

    settings = configuration(config, assignments, data_dir).settings
    found = read_status(Path(settings.data_dir))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_headline(found))
    console.print(_table(found))
    for warning in found.warnings:
        console.print(f"! {warning}", markup=False)


def _headline(found: PipelineStatus) -> str:
    parts = [f"pipeline {found.state}"]
    if found.pid:
        parts.append(f"driver {found.pid}")
    if found.spark:
        parts.append(f"Spark {found.spark} on Java {found.java}")
    parts.append(f"log end {found.log_end:,}")
    if found.driver_restarts:
        parts.append(f"{found.driver_restarts} driver restarts")
    if found.last_error and found.state not in ("running", "starting"):
        parts.append(found.last_error)
    return ", ".join(parts)


def _table(found: PipelineStatus) -> Table:
    from rich.table import Table

    table = Table("query", "state", "mode")
    for heading in ("position", "lag", "lag s", "last batch", "restarts"):
        table.add_column(heading, justify="right")
    table.add_column("last error", overflow="fold")
    for query in found.queries:
        table.add_row(
            query.name,
            query.state,
            query.mode,
            f"{query.position:,}",
            f"{query.lag_messages:,}",
            f"{query.lag_s:.1f}",
            _last_batch(query),
            str(query.restarts),
            query.last_error,
        )
    return table


def _last_batch(query: QueryStatus) -> str:
    if not query.last_batch_at_ms:
        return "-"
    at = datetime.fromtimestamp(query.last_batch_at_ms / 1000, UTC)
    return f"{query.last_batch_records:,} in {query.last_batch_ms} ms at {at:%H:%M:%S}Z"
