"""What kept sessions of absent clients cost: `python -m benchmarks.kept_sessions --sessions 1000000`.

Sessions are written to `broker.db` as the broker keeps them, then `embermq run` starts with them, without the
pipeline. `own` is a filter of its own for each session, without wildcards; `wildcard` one with a wildcard; `common` one
filter that all have. Times are from the command to the word `ready`, by the clock and by the processor; bytes are what
the broker has more than with no sessions.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.machine import describe
from benchmarks.queue_depth import start_broker
from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer
from embermq.adapters.sqlite.session_tables import apply_session_writes
from embermq.model.client_type import ClientType
from embermq.model.session import NEVER_EXPIRES, SessionRow, SubscriptionRow
from embermq.model.session_writes import SessionWrites

STEP = 10_000
"""Sessions written in one transaction."""
WEEK_S = 7 * 24 * 3600
FILTERS: dict[str, Callable[[int], str]] = {
    "own": lambda number: f"devices/{number:07d}/commands",
    "wildcard": lambda number: f"devices/{number:07d}/commands/#",
    "common": lambda _number: "devices/+/broadcast",
}


def main(
    sessions: Annotated[list[int] | None, typer.Option(help="How many; repeatable.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(FILTERS)}; repeatable.")] = None,
    users: Annotated[int, typer.Option(help="0: every session has a user of its own.")] = 1,
    expires: Annotated[bool, typer.Option(help="Sessions have an end, a week from now.")] = True,
) -> None:
    """Start and memory, for each number and shape."""
    machine = describe()
    typer.echo(
        f"{machine.processor}, {machine.cores} cores, load {machine.load_average[0]:.2f}, {machine.python}"
    )
    typer.echo(f"{'sessions':>10}  {'filter':<8} {'ready s':>8} {'CPU s':>8} {'MB':>8}  bytes a session")
    none_bytes = 0
    for count in [0, *(sessions or [100_000])]:
        for name in (shape or list(FILTERS)) if count else ["none"]:
            with tempfile.TemporaryDirectory(prefix="embermq-kept-") as directory:
                if count:
                    fill(Path(directory), count, FILTERS[name], users=users or count, expires=expires)
                found = start_broker(Path(directory))
            none_bytes = none_bytes or found.memory_bytes
            each = (found.memory_bytes - none_bytes) / count if count else 0
            typer.echo(
                f"{count:>10,}  {name:<8} {found.ready_s:>8.1f} {found.processor_s:>8.1f}"
                f" {found.memory_bytes / 1e6:>8.0f} {each:>10.0f}"
            )


def fill(
    data_dir: Path, sessions: int, filter_of: Callable[[int], str], *, users: int, expires: bool
) -> None:
    """Write sessions with one subscription each."""
    writer: sqlite3.Connection = open_writer(data_dir / "broker.db", synchronous="OFF")
    apply_broker_schema(writer)
    now_ms = time.time_ns() // 1_000_000
    expiry_s = WEEK_S if expires else NEVER_EXPIRES
    for first in range(0, sessions, STEP):
        writes = SessionWrites()
        for number in range(first, min(first + STEP, sessions)):
            row = SessionRow(
                f"device-{number:07d}",
                number + 1,
                1,
                ClientType.DEVICE,
                f"user-{number % users:07d}",
                5,
                expiry_s,
                False,
                now_ms + WEEK_S * 1000 + number if expires else 0,
                now_ms - number,
            )
            topic_filter = filter_of(number)
            writes.sessions.append(row)
            writes.subscriptions.append(
                (number + 1, topic_filter, SubscriptionRow(topic_filter, 1, 0, 1_000 + number))
            )
        writer.execute("BEGIN")
        apply_session_writes(writer, writes, 0)
        writer.execute("COMMIT")
    writer.execute("INSERT OR REPLACE INTO meta VALUES ('generation_reserved', ?)", (sessions + 1,))
    writer.close()


if __name__ == "__main__":
    typer.run(main)
