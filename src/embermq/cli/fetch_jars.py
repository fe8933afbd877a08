"""`embermq pipeline fetch-jars`: get what Spark needs for Kafka and the lake, once, at set-up time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from embermq.app.errors import OptionError
from embermq.cli.options import AsJson, Assignments, ConfigFile, configuration


def command(
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
