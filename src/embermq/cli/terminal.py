"""What is shown on a person's terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import typer


def shown(text: str) -> str:
    """The text with what cannot be shown spelt out: nothing that a client chose may steer the terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def print_json(found: object) -> None:
    """What `--json` prints; JSON that came from the broker as it is."""
    encoded = found if isinstance(found, bytes) else msgspec.json.encode(found)
    print(msgspec.json.format(encoded, indent=2).decode())


def print_report(found: object, lines: Iterable[str], *, as_json: bool) -> None:
    """What a job ends with: one line of JSON for programs, some for people."""
    print(msgspec.json.encode(found).decode() if as_json else "\n".join(lines))


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
        )
        for row in rows
    ]
