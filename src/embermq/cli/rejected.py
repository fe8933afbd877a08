"""`embermq pipeline rejected`: records that could not be understood or delivered, with reasons."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from embermq.app.errors import UserError
from embermq.app.settings import SQLITE
from embermq.cli.options import AsJson, Assignments, ConfigFile, DataDir, configuration
from embermq.cli.terminal import shown, table

if TYPE_CHECKING:
    from embermq.pipeline.rejected import RejectedRecord

LIMIT = 100
LOOKED_AT = 100_000
NOTHING = "nothing was rejected"
HEADINGS = ("first", "last", "newest", "records", "bytes")

app = typer.Typer(
    help="Records that dispatch has rejected: list, reasons.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def rejected() -> None:
    """Records that dispatch has rejected: list, reasons."""


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
    found = _newest(limit, config, assignments, data_dir)
    for one in found:
        if as_json:
            print(msgspec.json.encode(one).decode())
            continue
        topic = f"  {shown(one.topic)}" if one.topic else ""
        where = f"{one.partition}:{one.offset}"
        print(f"{_date(one.rejected_ms)}  {where}  {one.bytes:,} bytes{topic}  {shown(one.reason)}")
    if not found and not as_json:
        print(NOTHING)


@app.command("reasons")
def rejected_reasons(
    *,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LOOKED_AT, help="Of the newest so many.")
    ] = LOOKED_AT,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Count what was rejected by reason, the most frequent first. Numbers in a reason count as one; --json prints one
    object a line."""
    from embermq.pipeline.rejected import by_reason

    found = by_reason(_newest(limit, config, assignments, data_dir))
    if as_json:
        for one in found:
            print(msgspec.json.encode(one).decode())
        return
    if not found:
        print(NOTHING)
        return
    rows = [
        (one.first, one.last, _date(one.last_ms), f"{one.records:,}", f"{one.bytes:,}", shown(one.reason))
        for one in found
    ]
    # The reason is long: it stands last, to the left, behind the numbers.
    heads = table([HEADINGS, *(row[:-1] for row in rows)], names=3)
    for line, reason in zip(heads, ("reason", *(row[-1] for row in rows)), strict=True):
        print(f"{line}  {reason}")


def _newest(
    limit: int, config: Path | None, assignments: list[str] | None, data_dir: str | None
) -> list[RejectedRecord]:
    from embermq.app.pipeline_side import rejected_records
    from embermq.pipeline.errors import PipelineError

    settings = configuration(config, assignments, data_dir).settings
    if not Path(settings.data_dir).is_dir() and settings.stores.log == SQLITE:
        raise UserError(f"{settings.data_dir} is not the data directory of a broker; name it with --data-dir")
    try:
        return list(rejected_records(settings, limit))
    except PipelineError as error:
        raise UserError(str(error)) from error


def _date(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="seconds")
