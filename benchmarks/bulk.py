"""How fast each query of the pipeline takes a backlog: `python -m benchmarks.bulk`.

The records are written straight into a message log of a temporary data directory; the pipeline is the one that
`embermq run` starts, under its supervisor.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated

import msgspec
import typer

from benchmarks.machine import describe
from embermq.adapters.segments.tick_store import SegmentTickStore
from embermq.adapters.sql.tables import make_tables
from embermq.adapters.sqlite.checkpoint import SqliteCheckpoint
from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer, wall_ms
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.database.database_url import SqlSettings, parse_url
from embermq.formats.log_record import Stamp, encode_record, encode_stamps
from embermq.model.message import Message
from embermq.model.tick_writes import TickWrites
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.status import read_status
from embermq.pipeline.supervisor import PipelineSupervisor

BATCH_RECORDS = 100
WARM_RECORDS = 100_000
TOPICS = 50
GENERATION = 7
LOOK_S = 0.02
DEADLINE_S = 300.0


def main(
    records: Annotated[int, typer.Option(min=BATCH_RECORDS, help="Size of the backlog.")] = 500_000,
    query: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
    static: Annotated[
        str,
        typer.Option(envvar="EMBERMQ_STORES__STATIC", help="An empty database for the archive, as a URL."),
    ] = "",
) -> None:
    """Records a second of each query from a backlog; those that are named, or all, work at once."""
    machine = describe()
    typer.echo(f"{machine.processor}, {machine.cores} cores, load {machine.load_average[0]:.2f}")
    with tempfile.TemporaryDirectory(prefix="embermq-bulk-") as directory:
        rates = asyncio.run(_measure(Path(directory), records, _settings(query or [], static)))
    for name, rate in rates.items():
        typer.echo(f"{name:<10} {rate:>10,.0f} records/s")


def _settings(queries: list[str], static: str) -> DriverSettings:
    if static:
        make_tables(parse_url(static), SqlSettings())
    chosen = {"queries": queries} if queries else {}
    return msgspec.convert({**chosen, "message_store": static}, DriverSettings)


async def _measure(data_dir: Path, records: int, settings: DriverSettings) -> dict[str, float]:
    log = _Log(data_dir)
    log.append(BATCH_RECORDS)
    supervisor = PipelineSupervisor(settings, data_dir)
    await supervisor.start()
    try:
        typer.echo("waiting for Spark to start and to compile", err=True)
        await _until(data_dir, log.end, settings.queries)
        log.append(WARM_RECORDS)
        await _until(data_dir, log.end, settings.queries)
        log.append(records)
        took_s = await _until(data_dir, log.end, settings.queries)
    finally:
        await supervisor.stop()
    return {name: records / seconds for name, seconds in took_s.items()}


class _Log:
    """A message log that grows at once."""

    def __init__(self, data_dir: Path) -> None:
        self._connection: sqlite3.Connection = open_writer(data_dir / "broker.db", synchronous="NORMAL")
        apply_broker_schema(self._connection)
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        checkpoint = SqliteCheckpoint(TickTables(self._connection), data_dir / "broker.db")
        self._ticks = SegmentTickStore(
            data_dir / "log", checkpoint, durability="os", post=self._posted.put, now_ms=wall_ms
        )
        self._connection.execute(
            "INSERT INTO application_context VALUES (?, 'bench-application', 0)", (GENERATION,)
        )
        self.end = 0

    def append(self, records: int) -> None:
        """So many records of 64 bytes on a few topics, each wanted by one application."""
        now_ms = time.time_ns() // 1_000_000
        stamps = encode_stamps((Stamp("bench-application", GENERATION, 1),))
        bodies = [
            encode_record(
                Message(f"bench/{number % TOPICS}", b"x" * 64, 1, False, "bench", 5, now_ms), stamps
            )
            for number in range(BATCH_RECORDS)
        ]
        for _ in range(records // BATCH_RECORDS):
            self._ticks.submit(TickWrites(records=bodies), lambda _: None)
            self._posted.get()()
            self.end += BATCH_RECORDS
        self._ticks.settle()


async def _until(data_dir: Path, end: int, queries: tuple[str, ...]) -> dict[str, float]:
    """Seconds until each query has confirmed everything below `end`."""
    began = time.monotonic()
    took_s: dict[str, float] = {}
    while len(took_s) < len(queries):
        for query in read_status(data_dir).queries:
            if query.position >= end and query.name not in took_s:
                took_s[query.name] = time.monotonic() - began
        if time.monotonic() - began > DEADLINE_S:
            sys.exit(f"after {DEADLINE_S:.0f} s: {read_status(data_dir)}")
        await asyncio.sleep(LOOK_S)
    return took_s


if __name__ == "__main__":
    typer.run(main)
