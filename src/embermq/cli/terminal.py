"""What is shown on a person's terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
import typer


class Told(NamedTuple):
    """What a command has found: for `--json`, and in lines for people; and its exit code."""

    found: object
    lines: Iterable[str]
    code: int = 0


def shown(text: str) -> str:
    """The text with what cannot be shown spelt out: nothing that a client chose may steer the terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def print_json(found: object) -> None:
    """What `--json` prints; JSON that came from the broker as it is."""
    encoded = found if isinstance(found, bytes) else msgspec.json.encode(found)
    print(msgspec.json.format(encoded, indent=2).decode())


def tell(told: Told, *, as_json: bool) -> None:
    """Print what a command has found, and end it with its exit code."""
    if as_json:
        print_json(told.found)
    else:
        for line in told.lines:
            print(line)
    if told.code:
        raise typer.Exit(told.code)


def print_report(found: object, lines: Iterable[str], *, as_json: bool) -> None:
    """What a job ends with: one line of JSON for programs, some for people."""
    print(msgspec.json.encode(found).decode() if as_json else "\n".join(lines))


def group(help_text: str) -> typer.Typer:
    """Commands below one name."""
    return typer.Typer(help=help_text, no_args_is_help=True, rich_markup_mode=None)


def confirm(what: str, *, yes: bool) -> None:
    """Ask a person for `what` goes; a script is not asked. Ends the command when the answer is no."""
    if not yes and sys.stdin.isatty():
        typer.confirm(f"{what}; sure?", abort=True, err=True)


def say_made(data_dir: Path) -> None:
    """A command has made a data directory, which may be another one than the broker's."""
    print(
        f"made the data directory {data_dir.absolute()}: a broker has to be run on the same one",
        file=sys.stderr,
    )


def table(rows: list[tuple[str, ...]], *, names: int) -> list[str]:
    """Lines of columns, the first `names` of them to the left, the others, which are numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < names else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
