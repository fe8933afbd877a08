"""Writes application logs in Kafka as the pipeline does, and stands in for the broker's thread and its readers."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence

from confluent_kafka import Producer
from msgspec import Struct
from tests.support.source_header import encode_source

from embermq.adapters.kafka.application_topics import ApplicationTopics
from embermq.formats.kafka_record import KafkaEncoder
from embermq.formats.log_record import Stamp, encode_record, encode_stamps
from embermq.model.application_positions import StoredPositions
from embermq.model.message import Message
from embermq.ports.application_feed import ApplicationFeed, FeedEntry, FeedTaker
from embermq.ports.application_logs import FoundLog

STEP_S = 0.01
DELIVERED_S = 60.0


def make_log(topics: ApplicationTopics, log: str, partitions: int = 1) -> FoundLog:
    """The log, which can be written and read then."""
    found = topics.ensure({log: partitions})[log]
    assert isinstance(found, FoundLog), found
    return found


class ApplicationLogWriter:
    """Records numbered from `first_number` on; all of one source partition."""

    def __init__(self, bootstrap: str, first_number: int = 0) -> None:
        options = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "log_level": 0,
        }
        self._producer = Producer(options)
        self._encode = KafkaEncoder().encode
        self._number = first_number

    def write(
        self,
        log: str,
        payloads: Sequence[bytes],
        *,
        topic: str = "t",
        generation: int = 1,
        flush: bool = True,
    ) -> None:
        """Their source offsets ascend over all calls. Returns when all are acknowledged, unless not to `flush`."""
        stamps = encode_stamps((Stamp(log, generation, 1),))
        for payload in payloads:
            now_ms = time.time_ns() // 1_000_000
            message = Message(topic, payload, 1, False, "publisher", 5, now_ms)
            self.put(log, encode_record(message, stamps), self._number)
            self._number += 1
        if flush:
            self.flush()

    def put(self, log: str, frame: bytes, source: int) -> None:
        """One record, anywhere in the message log."""
        outgoing = self._encode(frame)
        headers = [*outgoing.headers, encode_source(source)]
        self._produce(log, outgoing.key, outgoing.value, headers)

    def put_broken(self, log: str) -> None:
        """A record without headers."""
        self._produce(log, b"t", b"broken", [])
        self.flush()

    def _produce(self, log: str, key: bytes, value: bytes, headers: list[tuple[str, bytes | None]]) -> None:
        while True:
            try:
                self._producer.produce(log, value, key, headers=headers)  # type: ignore[arg-type]
                return
            except BufferError:
                self._producer.poll(0.1)

    def flush(self) -> None:
        assert self._producer.flush(DELIVERED_S) == 0


class HandLoop:
    """The broker's thread: what is posted is run by whoever calls `run_until`."""

    def __init__(self) -> None:
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def post(self, call: Callable[[], None]) -> None:
        self._posted.put(call)

    def run_until(self, condition: Callable[[], object], deadline_s: float = 30.0, what: str = "") -> None:
        end_s = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > end_s:
                raise AssertionError(f"not within {deadline_s} s: {what or condition}")
            try:
                self._posted.get(timeout=STEP_S)()
            except queue.Empty:
                continue

    def run_for(self, seconds: float) -> None:
        """For what is not to happen."""
        end_s = time.monotonic() + seconds
        self.run_until(lambda: time.monotonic() > end_s, seconds + 10)


class Came(Struct, frozen=True):
    """One entry, and when it came."""

    partition: int
    entry: FeedEntry
    at_s: float

    @property
    def payload(self) -> bytes:
        assert self.entry.record is not None, self.entry.problem
        return self.entry.record.message.payload


class HandReader(FeedTaker):
    """Takes what comes; releases it at once unless `stalled`."""

    def __init__(self) -> None:
        self.came: list[Came] = []
        self.reasons: list[str] = []
        self.firsts: list[tuple[int, int]] = []
        """Partitions of which something had been deleted, and their first offsets then."""
        self.feed: ApplicationFeed | None = None
        self.stalled = False
        self.held_bytes = 0
        self.partitions: dict[int, StoredPositions] = {}
        self.lost: list[int] = []

    def take(self, partition: int, entries: list[FeedEntry]) -> None:
        now_s = time.monotonic()
        self.came += [Came(partition, entry, now_s) for entry in entries]
        self.held_bytes += sum(entry.size for entry in entries)
        if not self.stalled:
            self.release()

    def release(self) -> None:
        assert self.feed is not None
        self.feed.release(self.held_bytes)
        self.held_bytes = 0

    def begins(self, partition: int, first: int) -> None:
        self.firsts.append((partition, first))

    def gone(self, reason: str) -> None:
        self.reasons.append(reason)

    def assigned(self, partition: int, stored: StoredPositions) -> None:
        self.partitions[partition] = stored

    def revoked(self, partition: int) -> None:
        del self.partitions[partition]
        self.lost.append(partition)

    @property
    def payloads(self) -> list[bytes]:
        return [one.payload for one in self.came]
