"""`embermq-migrate`, also `embermq pipeline migrate`: bring the stored messages of a TBMQ 1.x over."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embermq.cli.main import new_app, run_program
from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, Tasks, configuration
from embermq.cli.terminal import print_json

if TYPE_CHECKING:
    from embermq_migrate.job import MigrationReport

PROGRAM = "embermq-migrate"
NEVER = "never"
EXPIRY_MAX_S = 4_294_967_295


def command(
    *,
    source: Annotated[
        str,
        typer.Option("--from", metavar="URL", help="postgresql://…, or env:NAME or file:PATH that has it."),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            help="redis://…, redis+cluster://…, env:NAME, file:PATH, or sqlite; else stores.session.",
        ),
    ] = "",
    schema: Annotated[str, typer.Option("--schema", metavar="NAME", help="Their schema.")] = "public",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check everything, write nothing.")
    ] = False,
    rejects: Annotated[
        Path | None, typer.Option("--rejects", metavar="FILE", help="Rejected rows, a JSON object a line.")
    ] = None,
    message_ttl: Annotated[
        int | None,
        typer.Option(
            "--message-ttl", min=1, max=EXPIRY_MAX_S, metavar="SECONDS", help="Lifetime; else device.ttl_s."
        ),
    ] = None,
    session_expiry: Annotated[
        str | None,
        typer.Option(
            "--session-expiry",
            metavar="SECONDS",
            help="How long sessions are kept, or never; else mqtt.session_expiry_max_s.",
        ),
    ] = None,
    zero_expires: Annotated[
        bool, typer.Option("--zero-expires", help="Take an expiry of 0 as expired; else it means none.")
    ] = False,
    tasks: Tasks = 0,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Bring over sessions of TBMQ 1.x. Stored messages come too, from PostgreSQL; the broker has to be stopped."""
    from embermq.cli.message_bar import MessageBar
    from embermq_migrate.migration import EXIT_REJECTED, MigrationOrder, run_migration

    settings = configuration(config, assignments, data_dir).settings
    order = MigrationOrder(
        source=source,
        schema=schema,
        target=target,
        dry_run=dry_run,
        rejects=rejects,
        message_ttl_s=message_ttl,
        session_expiry_s=_seconds(session_expiry),
        zero_expires=zero_expires,
        tasks=tasks,
    )
    with MessageBar() as bar:
        report = run_migration(order, settings, bar.show)
    if as_json:
        print_json(report)
    else:
        print("\n".join(lines_of(report, rejects)))
    raise typer.Exit(EXIT_REJECTED if report.counts.rejected else 0)


def main() -> int:
    """Run the program of this package and return its exit code."""
    app = new_app()
    app.command()(command)
    return run_program(PROGRAM, app, sys.argv[1:])


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    if text == NEVER:
        return EXPIRY_MAX_S
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= EXPIRY_MAX_S:
        raise typer.BadParameter(
            f"{text!r} is neither 1..{EXPIRY_MAX_S} nor {NEVER}", param_hint="--session-expiry"
        )
    return int(text)


def lines_of(report: MigrationReport, rejects: Path | None) -> list[str]:
    """What a person reads at the end."""
    counts = report.counts
    verb = "would be written" if report.dry_run else "written"
    lines = [
        f"from      {report.source}",
        f"to        {report.target}{' (nothing was written)' if report.dry_run else ''}",
        f"clients   {counts.clients:,}",
        f"          {counts.clients_written:,} {verb}, {counts.clients_there:,} there already",
        f"messages  {counts.read:,}",
        f"          {counts.written:,} {verb}, {counts.there:,} there already",
        f"          {counts.expired:,} expired, {counts.over_limit:,} over the limit of a client",
        f"          {counts.rejected:,} rejected",
        f"took      {report.seconds:.1f} s",
    ]
    if counts.clients_taken_over:
        told = f"{counts.clients_taken_over:,} clients with {counts.taken_over:,} messages"
        lines.append(f"left as they are: {told}, which have connected here since")
    if counts.renumbered:
        lines.append(f"renumbered {counts.renumbered:,}: their packet id was another message's too")
    if report.columns_absent:
        lines.append(f"absent    {', '.join(report.columns_absent)}: an early 1.x, read as empty")
    if report.resumed:
        lines.append(f"resumed   {report.pieces_done_before} of {report.pieces} pieces had been done before")
    lines += [f"rejected for {reason}: {count:,}" for reason, count in sorted(counts.reasons.items())]
    if counts.rejected and rejects is not None:
        lines.append(f"they are in {rejects}")
    return lines
