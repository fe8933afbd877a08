"""What a deep queue costs: `python -m benchmarks.queue_depth`.

A queue is filled by ticks as the broker commits them, then taken up again by a process of its own, as at a start, and
a part of it is delivered and acknowledged; sockets and packets are not in that. Then `embermq run` starts with it,
without the pipeline. Times are those of the processor, of the broker's start also those of the clock, from the command
to the word `ready`; memory is what the process has more than before, of the broker all that it has.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated

import msgspec
import typer

from benchmarks.brokers import free_port
from benchmarks.machine import describe
from embermq.adapters.segments.message_log import SegmentMessageLog
from embermq.adapters.segments.tick_store import SegmentTickStore
from embermq.adapters.sqlite.checkpoint import SqliteCheckpoint
from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer, wall_ms
from embermq.adapters.sqlite.queue_store import SqliteQueueStore
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.model.tick_writes import TickWrites
from embermq.ports.message_log import MessageLog
from embermq.ports.tick_store import Receipt
from embermq.queues.consumer import Newcomer
from embermq.queues.names import Verb
from embermq.queues.publication import Publication
from embermq.queues.queues import Queues
from embermq.queues.settings import GroupSettings, parse_settings
from embermq.queues.settling import SettleRequest

TICK_MESSAGES = 100
SETTLED = 20_000
"""Messages that are delivered and acknowledged for a figure."""
KEYS = 5_000
QUEUE, GROUP, CONSUMER = "deep", "workers", "workers-1"
MIB = 1024 * 1024


class BrokerFigures(msgspec.Struct, frozen=True):
    """Of a whole broker that starts."""

    ready_s: float
    processor_s: float
    memory_bytes: int


class Figures(msgspec.Struct, frozen=True):
    """Of one depth. Microseconds are of the processor, for one message."""

    messages: int
    fill_us: float
    disk_bytes: int
    start_s: float
    memory_bytes: int
    memory_peak_bytes: int
    settle_us: float
    broker: BrokerFigures


def main(
    messages: Annotated[list[int] | None, typer.Option(help="Depth; repeatable.")] = None,
    payload_bytes: Annotated[int, typer.Option(min=0)] = 1024,
    keyed: Annotated[bool, typer.Option(help=f"Messages have one of {KEYS} keys.")] = False,
) -> None:
    """Disk, memory, start and the cost of an acknowledgement, for each depth."""
    machine = describe()
    typer.echo(f"{machine.processor}, {machine.cores} cores, load {machine.load_average[0]:.2f}")
    typer.echo(
        "  messages  fill us  disk MB  take-up s  memory MB  peak MB  settle us  broker ready s (CPU)  broker MB"
    )
    for depth in messages or [1_000, 10_000, 100_000, 1_000_000]:
        with tempfile.TemporaryDirectory(prefix="embermq-depth-") as directory:
            found = measure(Path(directory), depth, payload_bytes, keyed=keyed)
        broker = found.broker
        typer.echo(
            f"{found.messages:>10,} {found.fill_us:>8.1f} {found.disk_bytes / 1e6:>8,.0f} {found.start_s:>10.2f}"
            f" {found.memory_bytes / 1e6:>10.0f} {found.memory_peak_bytes / 1e6:>8.0f} {found.settle_us:>10.1f}"
            f" {broker.ready_s:>14.2f} ({broker.processor_s:.2f}) {broker.memory_bytes / 1e6:>10.0f}"
        )


def measure(data_dir: Path, messages: int, payload_bytes: int, *, keyed: bool) -> Figures:
    """Each part in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        fill_us = processes.submit(fill, data_dir, messages, payload_bytes, keyed).result()
        disk_bytes = sum(path.stat().st_size for path in data_dir.iterdir())
        broker = start_broker(data_dir)
        start_s, memory_bytes, peak_bytes, settle_us = processes.submit(take_up, data_dir).result()
    return Figures(messages, fill_us, disk_bytes, start_s, memory_bytes, peak_bytes, settle_us, broker)


def start_broker(data_dir: Path) -> BrokerFigures:
    """Until it is ready."""
    words = ["run", "--data-dir", str(data_dir), "--set", "pipeline.enabled=false"]
    words += ["--set", f"listeners.mqtt=127.0.0.1:{free_port()}"]
    program = str(Path(sys.executable).with_name("embermq"))
    began_s = time.perf_counter()
    with subprocess.Popen(
        [program, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            if line == "ready\n":
                break
        else:
            sys.exit(f"the broker did not start: {''.join(said)[-2000:]}")
        ready_s = time.perf_counter() - began_s
        place = Path("/proc") / str(process.pid)
        ticks = place.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
        found = BrokerFigures(
            ready_s, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), memory_bytes(str(process.pid))
        )
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    return found


class _Stores:
    """A message log with queues, and what the broker would do between its ticks."""

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / "broker.db"
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        writer = open_writer(path, synchronous="NORMAL")
        apply_broker_schema(writer)
        tables = TickTables(writer)
        checkpoint = SqliteCheckpoint(tables, path)
        self.ticks = SegmentTickStore(
            data_dir / "log", checkpoint, durability="os", post=self._posted.put, now_ms=wall_ms
        )
        self.store = SqliteQueueStore(tables, path, self._open_log, self._posted.put)
        self._tick = TickWrites()
        self.core = Queues(GroupSettings(), self.store.next_generation(), lambda: self._tick.queues)

    def commit(self, records: list[bytes]) -> int:
        """A tick; returns the offset of its first record."""
        receipts: list[Receipt] = []
        writes, self._tick = self._tick, TickWrites()
        writes.records = records
        writes.dispatcher_floor = self.ticks.log_end + len(records)  # as the broker: nobody else gets them
        self.ticks.submit(writes, receipts.append)  # type: ignore[arg-type]
        self._posted.get()()
        return receipts[0].base_offset

    def _open_log(self) -> tuple[MessageLog, Callable[[], None]]:
        log = SegmentMessageLog(self.ticks, own_thread=True)
        return log, log.close

    def close(self) -> None:
        self.store.close()
        self.ticks.close()


def fill(data_dir: Path, messages: int, payload_bytes: int, keyed: bool) -> float:
    """Returns what a message costs."""
    stores = _Stores(data_dir)
    core, now_ms = stores.core, time.time_ns() // 1_000_000
    settings = {"limits": {"max_queue_depth": messages}}
    core.configure(parse_settings(QUEUE, msgspec.json.encode(settings)))
    core.join(QUEUE, GROUP, Newcomer(CONSUMER, 1, 1), now_ms)
    core.leave(QUEUE, GROUP, CONSUMER, now_ms)
    body = bytes(payload_bytes)
    began_s = time.process_time()
    for first in range(0, messages, TICK_MESSAGES):
        records: list[bytes] = []
        tickets: list[int] = []
        for number in range(first, min(first + TICK_MESSAGES, messages)):
            key = f"user-{number % KEYS}" if keyed else None
            tickets.append(
                core.accept(QUEUE, Publication(key), payload_bytes, len(records), now_ms + number).ticket
            )
            records.append(encode_record(Message(f"$queue/{QUEUE}", body, 1, False, "producer-1", 5, now_ms)))
        base = stores.commit(records)
        for index, ticket in enumerate(tickets):
            core.commit(QUEUE, [(ticket, base + index)])
    took_s = time.process_time() - began_s
    stores.close()
    return took_s / messages * 1e6


def take_up(data_dir: Path) -> tuple[float, int, int, float]:
    """Seconds, bytes of memory and at most meanwhile, and what a delivery with its acknowledgement costs."""
    gc.collect()
    before_bytes = memory_bytes()
    began_s = time.process_time()
    stores = _Stores(data_dir)
    core, now_ms = stores.core, time.time_ns() // 1_000_000
    core.restore(stores.store.load(), now_ms)
    took_s = time.process_time() - began_s
    gc.collect()
    more_bytes = memory_bytes() - before_bytes
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before_bytes
    core.join(QUEUE, GROUP, Newcomer(CONSUMER, 1, TICK_MESSAGES), now_ms)
    core.run(now_ms)
    settle_us = settle(stores, now_ms)
    stores.close()
    return took_s, more_bytes, peak_bytes, settle_us


def settle(stores: _Stores, now_ms: int) -> float:
    """Deliver and acknowledge `SETTLED` messages, or all."""
    core = stores.core
    core.leave(QUEUE, GROUP, CONSUMER, now_ms)
    core.join(QUEUE, GROUP, Newcomer(CONSUMER, 2, TICK_MESSAGES), now_ms)
    began_s, done = time.process_time(), 0
    while done < SETTLED and (deliveries := core.run(now_ms)):
        for delivery in deliveries:
            core.written((delivery,), now_ms)
        for delivery in deliveries:
            request = SettleRequest(Verb.ACK, (delivery.stamps.message_id,), GROUP, "", None)
            core.settle(QUEUE, request, CONSUMER, 2, now_ms)
        stores.commit([])
        done += len(deliveries)
    return (time.process_time() - began_s) / max(1, done) * 1e6


def memory_bytes(process: str = "self") -> int:
    """That a process has now."""
    pages = int((Path("/proc") / process / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    typer.run(main)
