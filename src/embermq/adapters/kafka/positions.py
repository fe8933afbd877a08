"""The ends of the message log: of the partition that is written to, and of those before it, which get nothing more.

How far the broker has got, as the committed offsets of a consumer group: what tools for Kafka show lag by. Nothing is
read from there again: the floor that counts is in the broker's own store.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Mapping
from threading import Lock

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from msgspec import Struct

from embermq.adapters.kafka.address import KafkaAddress, KafkaSettings
from embermq.adapters.kafka.client import LOG, client_options, error_of, let_go, may_work_later, told
from embermq.model.position import offset_of, partition_of, position_of

MARKS_MAX = 4_096
MARK_EVERY_RECORDS = 64
"""At first; twice as many each time that the marks are too many."""


class _Mark(Struct, frozen=True):
    """Bytes that this run had appended before it wrote the record at `position`."""

    position: int
    appended_bytes: int


class LogPositions:
    """Of one log. Written on the broker's thread, read by any. `closed` has the end offset of each older partition.
    `skipped` are offsets behind the last record that a transaction has taken: the next record stands behind them."""

    def __init__(self, end: int, closed: Mapping[int, int] | None = None, *, skipped: int = 0) -> None:
        self.closed = dict(closed or {})
        self.skipped = skipped
        self._lock = Lock()
        self._end = end
        self._appended_bytes = 0
        self._marks = [_Mark(end, 0)]
        self._every = MARK_EVERY_RECORDS

    @property
    def partition(self) -> int:
        """The one that is written to, the newest."""
        return partition_of(self._end)

    @property
    def end(self) -> int:
        """The position of the next record."""
        return self._end

    @property
    def begun(self) -> int:
        """The end when this run began."""
        return self._marks[0].position

    @property
    def appended_bytes(self) -> int:
        """Bytes that this run has appended, as their records were encoded; 0 at its start."""
        return self._appended_bytes

    def ends(self) -> dict[int, int]:
        """The end offset of each partition."""
        end = self._end
        return self.closed | {partition_of(end): offset_of(end)}

    def close_partition(self, partition: int) -> None:
        """Go on at the beginning of another partition, a later one. Before the first record."""
        with self._lock:
            self.closed[partition_of(self._end)] = offset_of(self._end)
            for between in range(partition_of(self._end) + 1, partition):
                self.closed[between] = 0
            self._end = position_of(partition, 0)
            self.skipped = 0
            self._marks = [_Mark(self._end, 0)]

    def advance(self, end: int, appended_bytes: int) -> None:
        """A tick is committed: what the next record's position is now."""
        with self._lock:
            marks = self._marks
            if self._end - marks[-1].position >= self._every:
                marks.append(_Mark(self._end, self._appended_bytes))
                if len(marks) > MARKS_MAX:
                    del marks[1:-1:2]
                    self._every *= 2
            self._end = end
            self.skipped = 0
            self._appended_bytes += appended_bytes

    def bytes_from(self, position: int) -> int:
        """Bytes of records from this one on, of what this run wrote; between two marks in proportion."""
        with self._lock:
            index = bisect_right(self._marks, position, key=lambda mark: mark.position)
            if not index:
                return self._appended_bytes
            before, after = self._between(index)
            span = after.position - before.position
            share = (position - before.position) / span if span else 1.0
            below = before.appended_bytes + share * (after.appended_bytes - before.appended_bytes)
            return self._appended_bytes - round(below)

    def position_keeping(self, size_bytes: int) -> int:
        """About the position from which so many bytes are left, of what this run wrote."""
        with self._lock:
            below = self._appended_bytes - size_bytes
            if below <= 0:
                return self._marks[0].position
            index = bisect_right(self._marks, below, key=lambda mark: mark.appended_bytes)
            before, after = self._between(index)
            span_bytes = after.appended_bytes - before.appended_bytes
            share = (below - before.appended_bytes) / span_bytes if span_bytes else 0.0
            return before.position + int(share * (after.position - before.position))

    def _between(self, index: int) -> tuple[_Mark, _Mark]:
        last = _Mark(self._end, self._appended_bytes)
        return self._marks[index - 1], self._marks[index] if index < len(self._marks) else last


EVERY_S = 1.0


class DispatcherGroup:
    """`<prefix>-dispatcher`. `passed` is called on the broker's thread, all else on one that may ask Kafka.

    Its consumer reads nothing and never joins the group. An admin client could commit as well, but when the coordinator
    is restarted meanwhile it ends the process (librdkafka 3663).
    """

    def __init__(
        self, address: KafkaAddress, settings: KafkaSettings, topic: str, positions: LogPositions
    ) -> None:
        self._address = address
        self._topic = topic
        self._positions = positions
        self.name = f"{settings.prefix}-dispatcher"
        self._floor = -1
        self._told = -1
        self._next_s = 0.0
        self._under_way = False
        self._trouble = ""
        self._consumer = Consumer(
            client_options(address)
            | {
                "group.id": self.name,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "on_commit": self._committed,
            }
        )

    def passed(self, floor: int) -> None:
        """Every record below is delivered, stored or owed to nobody."""
        self._floor = floor

    def tell(self) -> None:
        """Commit what is new, once a second at most; does not wait."""
        floor, now_s = self._floor, time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        self._consumer.poll(0)  # answers arrive there
        if floor == self._told or self._under_way:
            return
        if floor < 0:
            return
        at = {one: end for one, end in self._positions.closed.items() if one < partition_of(floor)}
        at[partition_of(floor)] = offset_of(floor)
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in at.items()]
        self._told = floor
        self._under_way = True
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._committed(error_of(error), [])

    def _committed(self, error: KafkaError | None, _offsets: list[TopicPartition]) -> None:
        self._under_way = False
        if error is None:
            self._trouble = ""
            return
        self._told = -1
        if not self._trouble and not may_work_later(error):
            LOG.warning(
                "%s: the position of group %s cannot be committed: %s; delivery does not depend on it",
                self._address,
                self.name,
                told(error),
            )
            self._trouble = told(error)

    def close(self) -> None:
        """Let go of the connections."""
        let_go(self._consumer.close)
