"""Reading partitions side by side: single records here and there, and all records in the order of their numbers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import heappop, heappush
from threading import Lock
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from embermq.adapters.kafka.address import KafkaAddress
from embermq.adapters.kafka.client import (
    ATTEMPT_S,
    LET_GO_S,
    LOG,
    RETRY_S,
    client_options,
    error_of,
    is_of_unused_group,
    is_unknown,
    let_go,
    may_work_later,
    told,
    unavailable,
)
from embermq.adapters.kafka.settings import KafkaSettings
from embermq.formats.kafka_record import NumberedFrame, decode_frame, is_filler, read_number
from embermq.formats.log_record import RecordError
from embermq.ports.errors import StoreUnavailable

CONSUMED_AT_ONCE = 1_000
HELD_MAX = 20_000
HELD_BYTES_MAX = 16 * 1024 * 1024
"""Records of one partition that wait for those of others; past one of both the partition is not read on."""
PROBED_BYTES = 16 * 1024
READ_AHEAD_KB = 16 * 1024

Answer = TypeVar("Answer")


class PartitionReader:
    """One consumer on the partitions of one topic; never a member of a group. Not for several threads at once."""

    def __init__(
        self, address: KafkaAddress, settings: KafkaSettings, topic: str, *, reads_ahead: bool
    ) -> None:
        self._address = address
        self._topic = topic
        self._timeout_s = settings.request_timeout_s
        options = client_options(address, settings) | {
            "group.id": f"{settings.prefix}-reader",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            # A transaction that somebody left open would hide every record behind it.
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "fetch.error.backoff.ms": 50,
            "fetch.queue.backoff.ms": 5,
            "queued.max.messages.kbytes": READ_AHEAD_KB,
        }
        if not reads_ahead:
            options |= {"fetch.message.max.bytes": PROBED_BYTES, "queued.min.messages": 1}
        self._consumer = Consumer(options)
        self._in_use = Lock()
        self._closing = False

    def at(self, offsets: Mapping[int, int]) -> None:
        """Go on from these offsets, and read no other partitions."""
        wanted = [TopicPartition(self._topic, one, offset) for one, offset in offsets.items()]
        self._consumer.assign(wanted)
        self._consumer.resume(wanted)  # what was paused before would stay so

    def pause(self, partition: int) -> None:
        self._consumer.pause([TopicPartition(self._topic, partition)])

    def resume(self, partition: int) -> None:
        self._consumer.resume([TopicPartition(self._topic, partition)])

    def consume(self, count: int) -> Iterator[Message]:
        """At least one message, at most `count`; one that `is_end` says where its partition ends, which may be behind
        offsets that never come: those of transactions. Raises StoreUnavailable when none comes in time."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise StoreUnavailable(
                    f"{self._address}: topic {self._topic}: nothing to be read in {self._timeout_s:g} s"
                )
            messages = self._consume(count, min(left_s, 0.5))
            if not messages:
                continue
            good = [message for message in messages if is_end(message) or self._is_record(message)]
            if good:
                yield from good
                return

    def _consume(self, count: int, wait_s: float) -> list[Message]:
        """What is there is taken; the rest is not waited for."""
        with self._in_use:
            self._check_open()
            first = self._consumer.consume(1, wait_s)
            if not first or count == 1:
                return first
            return first + self._consumer.consume(count - 1, 0.001)

    def _check_open(self) -> None:
        if self._closing:
            raise StoreUnavailable(f"{self._address}: topic {self._topic}: is not read any more")

    def _is_record(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        # Negative are the driver's own: tried again by itself.
        if may_work_later(error) or error.code() < 0 or is_of_unused_group(error):
            return False
        raise StoreUnavailable(f"{self._address}: topic {self._topic}: {told(error)}")

    def offsets(self, partitions: int) -> tuple[dict[int, int], dict[int, int]]:
        """The first offset of each partition, and the one behind its last record. Raises StoreUnavailable."""
        lows: dict[int, int] = {}
        ends: dict[int, int] = {}
        for partition in range(partitions):
            lows[partition], ends[partition] = self._ask(partial(self._watermarks, partition))
        return lows, ends

    def _watermarks(self, partition: int) -> tuple[int, int]:
        found = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), ATTEMPT_S)
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found

    def offsets_at(self, time_ms: int, partitions: int) -> dict[int, int]:
        """Of the first record in each partition that is not older; nothing for partitions that have none. Raises
        StoreUnavailable."""
        asked = [TopicPartition(self._topic, partition, time_ms) for partition in range(partitions)]
        found = self._ask(partial(self._consumer.offsets_for_times, asked, ATTEMPT_S))
        for one in found:
            if one.error is not None:
                raise StoreUnavailable(f"{self._address}: topic {self._topic}: {told(one.error)}")
        return {one.partition: one.offset for one in found if one.offset >= 0}

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """Again while it may work later, at most `request_timeout_s`. The admin client has questions of this kind too;
        some of them end the process when a server is restarted meanwhile (librdkafka 3663)."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                with self._in_use:
                    self._check_open()
                    return question()
            except KafkaException as error:
                # The topic is there: a server that leads a part of one that is new may not have heard of it yet.
                may_pass = may_work_later(error_of(error)) or is_unknown(error_of(error))
                if not may_pass or time.monotonic() > deadline_s:
                    raise unavailable(
                        self._address, f"cannot ask for offsets of {self._topic}", error
                    ) from None
                self._consumer.poll(RETRY_S)

    def close(self) -> None:
        """From any thread: who reads is told at the next question. A consumer must not be closed under a question."""
        self._closing = True
        if self._in_use.acquire(timeout=ATTEMPT_S + LET_GO_S):
            let_go(self._consumer.close)
            self._in_use.release()


def is_end(message: Message) -> bool:
    """Not a record: all of the partition has been read, its next record has this offset."""
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def first_numbers(
    reader: PartitionReader, offsets: Mapping[int, int], ends: Mapping[int, int], *, least: int = 0
) -> dict[int, tuple[int, int]]:
    """Of the first record at or behind an offset in each partition: its offset and its number; nothing for partitions
    that have none before their end. Those with numbers below `least` are passed over."""
    missing = {partition: offset for partition, offset in offsets.items() if offset < ends[partition]}
    found: dict[int, tuple[int, int]] = {}
    if missing:
        reader.at(missing)
    while missing:
        for message in reader.consume(len(missing) * 4):
            partition, offset = message.partition() or 0, message.offset() or 0
            if partition not in missing:
                continue
            if offset >= ends[partition]:
                del missing[partition]
                continue
            if is_end(message):
                continue
            number = _number(message)
            if number < least:
                if offset + 1 >= ends[partition]:
                    del missing[partition]
                continue
            found[partition] = (offset, number)
            del missing[partition]
    return found


def first_from(
    reader: PartitionReader, offsets: Mapping[int, int], ends: Mapping[int, int], number: int
) -> dict[int, int]:
    """Of each partition the first offset whose record has this number or a greater one, all of them looked at; its end
    when there is none before it."""
    left = {partition for partition, offset in offsets.items() if offset < ends[partition]}
    found = dict(ends)
    if left:
        reader.at({partition: offsets[partition] for partition in left})
    while left:
        for message in reader.consume(CONSUMED_AT_ONCE):
            partition, offset = message.partition() or 0, message.offset() or 0
            if partition not in left or (is_end(message) and offset < ends[partition]):
                continue
            if offset < ends[partition] and _number(message) >= number:
                found[partition] = offset
                left.discard(partition)
            elif offset + 1 >= ends[partition]:
                left.discard(partition)
    return found


def _number(message: Message) -> int:
    """-1 for what is no record of the broker."""
    try:
        return read_number(message.headers())  # type: ignore[arg-type]  # bytes, whatever it says
    except RecordError:
        return -1


class Merge:
    """Records of all partitions by their numbers, from `start` up to the ends, which may grow."""

    def __init__(self, reader: PartitionReader, offsets: Mapping[int, int], start: int) -> None:
        self._reader = reader
        self._next_offsets = dict(offsets)
        self._ends = dict(offsets)
        self._held: dict[int, deque[NumberedFrame]] = {partition: deque() for partition in offsets}
        self._held_bytes = dict.fromkeys(offsets, 0)
        self._heads: list[tuple[int, int]] = []
        self._paused: set[int] = set()
        self._last = dict.fromkeys(offsets, start - 1)
        self.next_number = start
        """No record below it comes any more."""
        self.unreadable = 0
        self.filled = 0
        """One more than the number of the last filler."""
        reader.at(offsets)

    def take(self, ends: Mapping[int, int], end: int) -> Iterator[NumberedFrame]:
        """What lies before these ends, and before the number `end`."""
        self._ends.update(ends)
        waiting = {partition for partition in self._held if self._is_waited_for(partition)}
        while True:
            while waiting:
                self._fill(waiting)
            if not self._heads or self._heads[0][0] >= end:
                return
            number, partition = heappop(self._heads)
            held = self._held[partition]
            frame = held.popleft()
            self._held_bytes[partition] -= len(frame.frame)
            if held:
                heappush(self._heads, (held[0].number, partition))
            elif self._is_waited_for(partition):
                waiting.add(partition)
            if partition in self._paused and not self._has_many(partition, 2):
                self._paused.discard(partition)
                self._reader.resume(partition)
            if number >= self.next_number:
                self.next_number = number + 1
                yield frame

    def _is_waited_for(self, partition: int) -> bool:
        """Its next record is needed, to know which comes next."""
        return not self._held[partition] and self._next_offsets[partition] < self._ends[partition]

    def _has_many(self, partition: int, share: int = 1) -> bool:
        """Whether more waits than `1 / share` of what may."""
        held, size = self._held[partition], self._held_bytes[partition]
        return len(held) > HELD_MAX // share or size > HELD_BYTES_MAX // share

    def _fill(self, waiting: set[int]) -> None:
        for message in self._reader.consume(CONSUMED_AT_ONCE):
            partition, offset = message.partition() or 0, message.offset() or 0
            if offset < self._next_offsets[partition]:
                continue
            if is_end(message):
                self._next_offsets[partition] = offset
            else:
                self._next_offsets[partition] = offset + 1
                self._hold(message, partition, offset)
            if not self._is_waited_for(partition):
                waiting.discard(partition)

    def _hold(self, message: Message, partition: int, offset: int) -> None:
        frame = self._read(message, partition, offset)
        if frame is None:
            return
        held = self._held[partition]
        held.append(frame)
        self._held_bytes[partition] += len(frame.frame)
        if len(held) == 1:
            heappush(self._heads, (frame.number, partition))
        if self._has_many(partition) and partition not in self._paused:
            self._paused.add(partition)
            self._reader.pause(partition)

    def _read(self, message: Message, partition: int, offset: int) -> NumberedFrame | None:
        try:
            frame = decode_frame(message.key(), message.value(), message.headers())  # type: ignore[arg-type]
        except RecordError as error:
            if is_filler(message.key(), message.headers()):  # type: ignore[arg-type]
                self.filled = max(self.filled, _number(message) + 1)
                return None
            self.unreadable += 1
            LOG.error(
                "topic %s, partition %d, offset %d is no record of this broker and is passed over: %s",
                message.topic(),
                partition,
                offset,
                error,
            )
            return None
        if frame.number <= self._last[partition]:
            return None  # before `start`; or sent by a broker that was dead already, and never acknowledged
        self._last[partition] = frame.number
        return frame
