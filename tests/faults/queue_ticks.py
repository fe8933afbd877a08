"""A short life of durable queues, tick by tick, and a process that is killed in the middle of it.

`python -m tests.faults.queue_ticks FOLDER DURABILITY FIRST EVERY` lives it once for each statement that SQLite is given
and each call that writes, syncs, names or cuts a file of the message log, in folders of their own, and is killed before
it: FOLDER/1, FOLDER/2 and so on, or from FIRST on EVERY so many, until one life is whole. How many ticks were answered
for stands in `receipts` there, a byte each.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from queue import SimpleQueue

from msgspec import Struct, json
from tests.support.queue_rows import QueueRows
from tests.support.queue_writes import GatheredWrites

from embermq.adapters.segments import tick_store
from embermq.adapters.segments.tick_store import SegmentTickStore
from embermq.adapters.sqlite.checkpoint import SqliteCheckpoint
from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer, wall_ms
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.model.queue_rows import QueueWrites
from embermq.model.tick_writes import TickWrites
from embermq.queues.consumer import Newcomer
from embermq.queues.names import Verb
from embermq.queues.publication import Publication
from embermq.queues.queue import ConsumerDelivery
from embermq.queues.queues import Queues
from embermq.queues.settings import GroupSettings, parse_settings
from embermq.queues.settling import SettleRequest

START_MS = 2**42
"""Far enough ahead that no dedup id is of the past."""
SEGMENT_BYTES = 1_024
"""Several files, so that some go."""
CALLS = ("pwritev", "pwrite", "ftruncate", "posix_fallocate", "rename", "unlink")
SYNCS = ("fdatasync", "fsync")
"""The kernel keeps what a killed process has written: so they are counted and not made, of which a busy disk would make
minutes."""


class Step(Struct, frozen=True):
    """One tick. `trim_below`: the log may let go of what is older."""

    records: list[bytes]
    writes: QueueWrites
    trim_below: int = 0


class Life:
    """Makes the steps; always the same ones. `bodies`: what the log has got, by offset."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.bodies: list[bytes] = []
        self._gathered = GatheredWrites()
        self._core = Queues(GroupSettings(join_debounce_ms=0), 1, self._gathered)
        self._now_ms = START_MS
        self._held: list[ConsumerDelivery] = []
        self._live()

    def _live(self) -> None:
        settings = {"retry_policy": {"max_retries": 1, "initial_backoff": "10s"}, "partitions": 2}
        self._core.configure(parse_settings("work", json.encode(settings)))
        for group in ("a", "b"):
            self._core.join("work", group, Newcomer(f"{group}-1", 1, 8), self._now_ms)
        self._tick()
        self._publish(Publication("k"), Publication("l"), Publication(None, dedup_id="once"))
        self._publish(Publication("k", visible_ms=self._now_ms + 5_000), Publication(None))
        self._settle(Verb.ACK, "a", 1)
        self._settle(Verb.REJECT, "b", 1)
        self._settle(Verb.NACK, "a", 2)
        self._tick(trim_below=4)
        self._wait(6_000)
        self._settle(Verb.NACK, "b", 8)
        self._settle(Verb.NACK, "a", 8)
        self._wait(20_000)
        self._settle(Verb.NACK, "a", 8)
        self._publish(Publication("k"))
        self._tick(trim_below=len(self.bodies))
        dead = self._core.queue("dlq/work")
        self._core.retry_dead_letters("dlq/work", list(dead.entries)[:1], self._now_ms)
        self._tick()
        self._core.leave("work", "b", "b-1", self._now_ms)
        self._core.queue("work").remove_group("b")
        self._tick()
        self._gathered.present.ended_queues.add(dead.generation)
        self._tick()
        self._tick()
        for _ in range(3):
            self._settle(Verb.ACK, "a", 8)

    def _publish(self, *publications: Publication) -> None:
        tickets: list[int] = []
        records: list[bytes] = []
        for publication in publications:
            tickets.append(self._core.accept("work", publication, 9, len(records), self._now_ms).ticket)
            body = b"%d" % (len(self.bodies) + len(records))
            records.append(encode_record(Message("$queue/work", body, 1, False, "p", 5, self._now_ms)))
        base = len(self.bodies)
        self._tick(records)
        for index, ticket in enumerate(tickets):
            self._core.commit("work", [(ticket, base + index)])

    def _settle(self, verb: Verb, group: str, count: int) -> None:
        self._run()
        mine = [delivery for delivery in self._held if delivery.stamps.group == group][:count]
        for delivery in mine:
            self._held.remove(delivery)
            request = SettleRequest(verb, (delivery.stamps.message_id,), group, "why", None)
            self._core.settle("work", request, f"{group}-1", 1, self._now_ms)
        self._tick()

    def _wait(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
        self._tick()

    def _run(self) -> None:
        for delivery in self._core.run(self._now_ms):
            self._core.written((delivery,), self._now_ms)
            self._held.append(delivery)

    def _tick(self, records: list[bytes] | None = None, trim_below: int = 0) -> None:
        self._run()
        self.steps.append(Step(records or [], self._gathered.take(), trim_below))
        self.bodies += records or []

    def rows_after(self, ticks: int) -> QueueRows:
        """What has to be stored when so many were committed."""
        rows, base = QueueRows(), 0
        for step in self.steps[:ticks]:
            rows.apply(step.writes, base)
            base += len(step.records)
        return rows


def live(folder: Path, durability: str, killed_at: int) -> None:
    """Until the statement of this number."""
    life = Life()
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    writer = open_writer(folder / "broker.db", synchronous="OFF")
    done = 0

    def before(*_: object) -> None:
        nonlocal done
        done += 1
        if done == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    receipts = os.open(folder / "receipts", os.O_CREAT | os.O_WRONLY)
    writer.set_trace_callback(before)
    for name in CALLS:
        setattr(os, name, _counted(getattr(os, name), before))
    for name in SYNCS:
        setattr(os, name, before)
    tick_store.CHECKPOINT_S = 0  # a commit of the checkpoint a tick
    checkpoint = SqliteCheckpoint(TickTables(writer), folder / "broker.db")
    store = SegmentTickStore(
        folder / "log",
        checkpoint,
        durability=durability,  # type: ignore[arg-type]
        post=posted.put,
        now_ms=wall_ms,
        segment_bytes=SEGMENT_BYTES,
        reserve_bytes=4096,
    )
    for step in life.steps:
        store.trim_below = step.trim_below
        writes = TickWrites(records=step.records, queues=step.writes)
        store.submit(writes, lambda _: None)
        posted.get()()
        os.write(receipts, b".")
    os.write(receipts, b"!")


def _counted(call: Callable[..., object], before: Callable[[], None]) -> Callable[..., object]:
    def counted(*arguments: object, **options: object) -> object:
        before()
        return call(*arguments, **options)

    return counted


def main(folder: Path, durability: str, first: int, every: int) -> None:
    """Children of a process without threads."""
    empty = folder / "empty.db"
    with closing(open_writer(empty, synchronous="OFF")) as connection:
        apply_broker_schema(connection)
    for killed_at in count(first, every):
        own = folder / str(killed_at)
        own.mkdir()
        shutil.copy(empty, own / "broker.db")
        child = os.fork()
        if not child:
            live(own, durability, killed_at)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
