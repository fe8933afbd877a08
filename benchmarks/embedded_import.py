"""What `embermq import-embedded` costs: `python -m benchmarks.embedded_import --log kafka://HOST --session redis://HOST`.

Sessions of DEVICE clients with stored messages, retained messages, and applications that are owed the same messages
are written to a data directory as the broker keeps them, then imported. The Redis has to be empty.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Annotated

import typer

from benchmarks.machine import describe
from embermq.app.config import Settings
from embermq.app.embedded import open_embedded
from embermq.formats.log_record import Stamp, encode_record, encode_stamps
from embermq.model.application_positions import ReaderPosition, StoredPositions
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import NEVER_EXPIRES, SessionRow, SubscriptionRow
from embermq.model.session_writes import QUEUE_SEQ_STEP, QueueRow, QueueState, RetainedWrite
from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError
from embermq.ports.tick_store import Receipt

AT_ONCE = 1_000
APPLICATIONS = 20
"""They are owed as many messages as there are sessions, all the same ones."""
PAYLOAD = bytes(100)
FOR_EVER_MS = 1 << 50


def main(
    log: Annotated[str, typer.Option(help="The Kafka, as stores.log.")],
    session: Annotated[str, typer.Option(help="The Redis, as stores.session.")],
    sessions: Annotated[int, typer.Option(help="Of DEVICE clients.")] = 20_000,
    stored: Annotated[int, typer.Option(help="Messages stored for each.")] = 25,
    retained: Annotated[int, typer.Option(help="Retained messages.")] = 100_000,
) -> None:
    """Seconds by the clock and of the processor, and the most memory, of the command."""
    machine = describe()
    typer.echo(
        f"{machine.processor}, {machine.cores} cores, load {machine.load_average[0]:.2f}, {machine.python}"
    )
    with tempfile.TemporaryDirectory(prefix="embermq-import-") as directory:
        source, target = Path(directory, "old"), Path(directory, "new")
        source.mkdir()
        began = time.monotonic()
        asyncio.run(_fill(source, _ticks(sessions, stored, retained)))
        typer.echo(f"written in {time.monotonic() - began:.0f} s")
        places = (f"stores.log={log}", f"stores.session={session}", f"kafka.prefix=bench.{token_hex(4)}.")
        words = [word for place in places for word in ("--set", place)]
        began = time.monotonic()
        subprocess.run(
            [
                *(sys.executable, "-m", "embermq", "import-embedded", str(source)),
                *("--data-dir", str(target), *words),
            ],
            check=True,
        )
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        typer.echo(
            f"{time.monotonic() - began:.1f} s, CPU {used.ru_utime + used.ru_stime:.1f} s, "
            f"{used.ru_maxrss / 1024:.0f} MB at most"
        )


async def _fill(data_dir: Path, ticks: Iterator[TickWrites]) -> None:
    loop = asyncio.get_running_loop()
    opened = open_embedded(data_dir, Settings(), loop.call_soon_threadsafe)
    for writes in ticks:
        done: asyncio.Future[Receipt | StoreError] = loop.create_future()
        opened.ticks.submit(writes, done.set_result)
        result = await done
        if isinstance(result, StoreError):
            raise result
    opened.close()


def _ticks(sessions: int, stored: int, retained: int) -> Iterator[TickWrites]:
    reserved = sessions + APPLICATIONS + 1
    first = sessions + 1
    tick = TickWrites(generation_reserved=reserved)
    for generation in range(first, reserved):
        tick.session.sessions.append(_session(f"app{generation}", generation, ClientType.APPLICATION))
        tick.session.subscriptions.append((generation, "owed/#", SubscriptionRow("owed/#", 1, 0, 0)))
        tick.application_positions[generation] = ReaderPosition("", 0, StoredPositions())
    yield tick
    for number in range(0, sessions, AT_ONCE // max(1, stored) or 1):
        tick = TickWrites(generation_reserved=reserved)
        for generation in range(number + 1, min(sessions, number + (AT_ONCE // max(1, stored) or 1)) + 1):
            _add_device(tick, generation, stored)
        yield tick
    for number in range(0, retained, AT_ONCE):
        topics = [f"kept/{one:07d}/state" for one in range(number, min(retained, number + AT_ONCE))]
        tick = TickWrites(dispatcher_floor=number + len(topics))
        tick.records = [_record(topic) for topic in topics]
        tick.session.retained += [
            RetainedWrite(topic, place, tick.records[place]) for place, topic in enumerate(topics)
        ]
        yield tick
    stamps = encode_stamps(tuple(Stamp(f"app{one}", one, 1) for one in range(first, reserved)))
    for number in range(0, sessions, AT_ONCE):
        tick = TickWrites()
        tick.records = [_record("owed/x", stamps)] * min(AT_ONCE, sessions - number)
        tick.dispatcher_floor = retained + number + len(tick.records)
        yield tick


def _session(client_id: str, generation: int, client_type: ClientType) -> SessionRow:
    return SessionRow(client_id, generation, 1, client_type, "", 5, NEVER_EXPIRES, False, 0, 1)


def _add_device(tick: TickWrites, generation: int, stored: int) -> None:
    name = f"device-{generation:07d}"
    topic = f"devices/{generation:07d}/commands"
    tick.session.sessions.append(_session(name, generation, ClientType.DEVICE))
    tick.session.subscriptions.append((generation, topic, SubscriptionRow(topic, 1, 0, 0)))
    record = _record(topic)
    tick.session.queue_rows += [
        QueueRow(generation, number * QUEUE_SEQ_STEP, -1, 0, QueueState.QUEUED, 1, FOR_EVER_MS, (), record)
        for number in range(1, stored + 1)
    ]


def _record(topic: str, stamps: bytes = b"") -> bytes:
    return encode_record(Message(topic, PAYLOAD, 1, False, "somebody", 5, 1_700_000_000_000), stamps)


if __name__ == "__main__":
    typer.run(main)
