"""A message log on a server of the simulation: what is sent to it arrives late, in parts, or never, and what has
arrived stays. It obeys `ports.log_appender` and `ports.message_log`, as Kafka with our adapters does."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from contextvars import Context
from functools import partial
from itertools import islice, pairwise
from operator import itemgetter
from random import Random

from tests.simulation.loop import Process, SimulatedLoop, context_of

from embermq.formats.log_record import LogRecord, RecordError, decode_record
from embermq.ports.errors import StoreError, TakenOver
from embermq.ports.log_appender import Appended, LogAppender
from embermq.ports.message_log import LogBatch, LogStatistics, MessageLog
from embermq.ports.source_records import FoundRecords, SourceRecords
from embermq.ports.tick_store import Receipt

RETRY_S = 0.1


MACHINE = "kafka"
"""Nodes may be cut off from it."""


class LogServer:
    """Holds the records. `away`: nothing takes effect, and nothing is answered. `epoch` is the newest producer's: what
    those before it have sent and what has not arrived yet is refused. `told` is what readers do not need any more, by
    their names."""

    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.away = False
        self.epoch = 0
        self.batches: list[tuple[int, list[bytes], int]] = []
        self.end = 0
        self.start = 0
        self.told: dict[str, int] = {}
        self._waiting: list[tuple[Callable[[], None], Context]] = []

    def reaches(self, process: Process) -> bool:
        """Whether a process can ask it for something, and is answered."""
        loop, here = self.loop, process.machine
        return not (self.away or loop.is_cut(here, MACHINE) or loop.is_cut(MACHINE, here))

    def wait(self, call: Callable[[], None], process: Process) -> None:
        """Call when there is more."""
        self._waiting.append((call, context_of(process)))

    def hear(self, name: str, position: int) -> None:
        """A reader needs nothing below that."""
        self.told[name] = max(position, self.told.get(name, 0))

    def trim(self, below: int) -> None:
        """Whole batches."""
        self.batches = [one for one in self.batches if one[0] + len(one[1]) > below]
        self.start = self.batches[0][0] if self.batches else self.end

    def take_over(self) -> int:
        """Be the one producer whose records are taken."""
        self.epoch += 1
        return self.epoch

    def take(self, records: list[bytes]) -> int:
        """They are there from now on; returns the offset of the first."""
        base = self.end
        self.batches.append((base, records, self.loop.wall_ms()))
        self.end += len(records)
        waiting, self._waiting = self._waiting, []
        for call, context in waiting:
            self.loop.call_soon(call, context=context)
        return base

    def batches_from(self, offset: int) -> Iterator[tuple[int, list[bytes], int]]:
        """Those that have it or come behind it."""
        first = max(0, bisect_right(self.batches, offset, key=itemgetter(0)) - 1)
        for batch in islice(self.batches, first, None):
            if batch[0] + len(batch[1]) > offset:
                yield batch

    def records_from(self, offset: int, count: int) -> list[tuple[int, bytes]]:
        """Some, with their positions."""
        found = (
            (base + index, record)
            for base, records, _ in self.batches_from(offset)
            for index, record in enumerate(records)
        )
        return list(islice((one for one in found if one[0] >= offset), count))

    def record(self, offset: int) -> bytes | None:
        """One of them."""
        found = self.records_from(offset, 1)
        return found[0][1] if found and found[0][0] == offset else None


class SimulatedAppender(LogAppender):
    """Of one process. A tick is sent in up to three requests, in order. What a killed process had sent may still
    arrive, up to some request."""

    def __init__(self, server: LogServer, process: Process, epoch: int) -> None:
        self._server = server
        self._process = process
        self._epoch = epoch
        self._context = context_of(process)
        self.on_end: list[Callable[[StoreError], None]] = []
        self._under_way = False
        self._lost = False

    def append(self, records: list[bytes], done: Appended) -> None:
        if self._under_way:
            raise RuntimeError("records are already being appended")
        self._process.step()
        self._under_way = True
        random, cuts = self._server.random, [0, len(records)]
        if len(records) > 1:
            cuts += random.sample(
                range(1, len(records)), k=min(len(records) - 1, random.choice((0, 0, 1, 2)))
            )
        cuts.sort()
        parts = [records[first:last] for first, last in pairwise(cuts)]
        self._send(parts, -1, len(records), done)

    def _send(self, parts: list[list[bytes]], base: int, count: int, done: Appended) -> None:
        loop = self._server.loop
        loop.call_later(loop.delay_s(), self._arrive, parts, base, count, done, context=loop.bare)

    def _arrive(self, parts: list[list[bytes]], base: int, count: int, done: Appended) -> None:
        server, loop = self._server, self._server.loop
        if self._process.is_dead:
            # Its kernel may have had this one, and no other that was sent behind a lost one.
            self._lost = self._lost or server.random.random() < 0.5
            if self._lost:
                return
        if not server.reaches(self._process):
            loop.call_later(RETRY_S, self._arrive, parts, base, count, done, context=loop.bare)
            return
        if self._epoch < server.epoch:
            self._tell(partial(self._end, TakenOver("the log has a newer writer")))
            return
        first = server.take(parts[0])
        base = first if base < 0 else base
        if len(parts) > 1:
            self._send(parts[1:], base, count, done)
        else:
            self._tell(partial(self._finish, base, count, done))

    def _tell(self, call: Callable[[], None]) -> None:
        loop = self._server.loop
        loop.call_later(loop.delay_s(), call, context=self._context)

    def _finish(self, base: int, count: int, done: Appended) -> None:
        self._under_way = False
        done(Receipt(base, count))

    def _end(self, error: StoreError) -> None:
        for call in self.on_end:
            call(error)

    @property
    def failing(self) -> str:
        return "" if self._server.reaches(self._process) else "away"

    def close(self) -> None:
        """What is under way is as that of a killed process."""


class SimulatedMessageLog(MessageLog):
    """Reads it, up to where it ended at the last receipt."""

    def __init__(self, server: LogServer) -> None:
        self._server = server

    def read(self, from_offset: int, *, records_max: int, bytes_max: int) -> list[LogBatch]:
        found: list[LogBatch] = []
        count = size = 0
        for base, records, _ in self._server.batches_from(from_offset):
            batch = LogBatch(base, len(records), b"".join(records))
            found.append(batch)
            count, size = count + batch.record_count, size + len(batch.body)
            if count >= records_max or size >= bytes_max:
                break
        return found

    def statistics(self) -> LogStatistics:
        kept = sum(len(record) for _, records, _ in self._server.batches for record in records)
        return LogStatistics(self._server.start, self._server.end, kept)

    def offset_at(self, time_ms: int) -> int:
        for base, _, taken_ms in self._server.batches:
            if taken_ms >= time_ms:
                return base
        return self._server.end

    def trim(self, below_offset: int) -> None:
        self._server.trim(below_offset)


class SimulatedSourceRecords(SourceRecords):
    """Single records, later."""

    def __init__(self, server: LogServer) -> None:
        self._server = server

    def fetch(self, positions: Collection[int], then: Callable[[FoundRecords | StoreError], None]) -> None:
        wanted = sorted(positions)
        loop = self._server.loop
        loop.call_later(loop.delay_s(), self._answer, wanted, then)

    def _answer(self, wanted: list[int], then: Callable[[FoundRecords | StoreError], None]) -> None:
        found: dict[int, LogRecord] = {}
        for position in wanted:
            frame = self._server.record(position)
            if frame is not None:
                try:
                    found[position] = decode_record(frame)
                except RecordError:
                    continue
        then(found)
