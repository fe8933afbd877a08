"""`embermq pipeline rejected`: records that could not be understood or delivered, with reasons."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from embermq.app.errors import UserError
from embermq.app.settings import SQLITE
from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, configuration
from embermq.cli.terminal import shown

LIMIT = 100

app = typer.Typer(
    help="Records that dispatch has rejected: list.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def rejected() -> None:
    """Records that dispatch has rejected: list."""


@app.command("list")
def rejected_list(
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="The newest so many.")] = LIMIT,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List what was rejected, with position and reason, the newest last. The pipeline may run; --json prints one object
    a line."""
    from embermq.app.pipeline_side import rejected_records
    from embermq.pipeline.errors import PipelineError

    settings = configuration(config, assignments, data_dir).settings
    if not Path(settings.data_dir).is_dir() and settings.stores.log == SQLITE:
        raise UserError(f"{settings.data_dir} is not the data directory of a broker; name it with --data-dir")
    try:
        found = list(rejected_records(settings, limit))
    except PipelineError as error:
        raise UserError(str(error)) from error
    for one in found:
        if as_json:
            print(msgspec.json.encode(one).decode())
            continue
        at = datetime.fromtimestamp(one.rejected_ms / 1_000, UTC).isoformat(timespec="seconds")
        topic = f"  {shown(one.topic)}" if one.topic else ""
        print(f"{at}  {one.partition}:{one.offset}  {one.bytes:,} bytes{topic}  {shown(one.reason)}")
    if not found and not as_json:
        print("nothing was rejected")
