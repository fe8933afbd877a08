"""A message log in this process, of the kind that is a store of its own: records in, positions out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from embermq.ports.errors import StoreError
from embermq.ports.log_appender import Appended, LogAppender
from embermq.ports.message_log import LogBatch, LogStatistics, MessageLog
from embermq.ports.tick_store import Receipt


class LogInProcess(LogAppender, MessageLog):
    """`post` brings answers. `away`: records wait until `return_`; `refusal`: none is taken. It outlives brokers: who
    starts anew sets `post`."""

    def __init__(self, post: Callable[[Callable[[], None]], object]) -> None:
        self.post = post
        self.away = False
        self.refusal: StoreError | None = None
        self.lost_end_at = 0
        self.batches: list[tuple[int, list[bytes]]] = []
        self.end = 0
        self._start = 0
        self._waiting: list[Callable[[], None]] = []

    # Appending

    def append(self, records: list[bytes], done: Appended) -> None:
        if self.refusal is not None:
            self.post(partial(done, self.refusal))
        elif self.away:
            self._waiting.append(partial(self._take, records, done))
        else:
            self._take(records, done)

    def return_(self) -> None:
        """It answers again."""
        self.away = False
        waiting, self._waiting = self._waiting, []
        for take in waiting:
            take()

    def _take(self, records: list[bytes], done: Appended) -> None:
        receipt = Receipt(self.end, len(records))
        self.batches.append((self.end, list(records)))
        self.end += len(records)
        self.post(partial(done, receipt))

    @property
    def goes_on_at(self) -> int:
        return self.lost_end_at

    @property
    def failing(self) -> str:
        return "away" if self.away else ""

    def close(self) -> None:
        """What waits is lost, as with a process that ends."""
        self._waiting.clear()

    # Reading

    def read(self, from_offset: int, *, records_max: int, bytes_max: int) -> list[LogBatch]:
        found: list[LogBatch] = []
        for base, records in self.batches:
            if base + len(records) <= max(from_offset, self._start):
                continue
            found.append(LogBatch(base, len(records), b"".join(records)))
            if sum(batch.record_count for batch in found) >= records_max:
                break
            if sum(len(batch.body) for batch in found) >= bytes_max:
                break
        return found

    def statistics(self) -> LogStatistics:
        kept = sum(len(record) for base, records in self.batches for record in records if base >= self._start)
        return LogStatistics(self._start, self.end, kept)

    def offset_at(self, time_ms: int) -> int:
        return self._start

    def trim(self, below_offset: int) -> None:
        whole = [(base, records) for base, records in self.batches if base + len(records) <= below_offset]
        self.batches = self.batches[len(whole) :]
        self._start = self.batches[0][0] if self.batches else self.end
