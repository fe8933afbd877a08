"""`embermq run`: the broker and its pipeline, until it is told to stop."""

from __future__ import annotations

from typing import Annotated

import typer

from embermq.cli.options import AllowAnonymous, Assignments, ConfigFile, DataDir, NoPipeline, configuration


def command(
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    allow_anonymous: AllowAnonymous = False,
    no_pipeline: NoPipeline = False,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Go on without what is damaged or missing in the data directory."),
    ] = False,
) -> None:
    """Run the broker and its pipeline until SIGTERM or Ctrl-C."""
    found = configuration(
        config, assignments, data_dir, allow_anonymous=allow_anonymous, no_pipeline=no_pipeline
    )
    from embermq.app.run import run_broker

    raise typer.Exit(run_broker(found, accept_loss=accept_loss))
