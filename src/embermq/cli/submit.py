"""`embermq pipeline submit`: hand the pipeline to `spark-submit`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from embermq.cli.options import Assignments, ConfigFile, configuration


def command(
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
