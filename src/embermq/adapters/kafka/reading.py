"""Reading partitions of the message log, from any place in them.

Single records of the message log in Kafka, seldom wanted: one thread reads them, with a consumer of its own, as long
as somebody waits for some.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from msgspec import Struct

from embermq.adapters.kafka.address import KafkaAddress, KafkaSettings
from embermq.adapters.kafka.client import (
    ATTEMPT_S,
    LET_GO_S,
    LOG,
    RETRY_S,
    Failures,
    Post,
    client_options,
    error_of,
    is_of_unused_group,
    is_unknown,
    let_go,
    may_work_later,
    told,
    unavailable,
)
from embermq.formats.kafka_record import decode_frame, decode_kafka_record
from embermq.formats.log_record import LogRecord, RecordError
from embermq.model.position import offset_of, partition_of, position_of
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.source_records import FoundRecords, SourceRecords

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
        options = client_options(address) | {
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


def read_frame(message: Message, topic: str) -> bytes | None:
    """The record of the broker in a message; None, which is logged, for what is none."""
    try:
        return decode_frame(message.key(), message.value(), message.headers()).frame  # type: ignore[arg-type]
    except RecordError as error:
        LOG.error(
            "topic %s, partition %s, offset %s is no record of this broker and is passed over: %s",
            topic,
            message.partition(),
            message.offset(),
            error,
        )
        return None


def is_end(message: Message) -> bool:
    """Not a record: all of the partition has been read, its next record has this offset."""
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


NEAR_RECORDS = 1_000
"""What stands so close behind the last one that was wanted is read through."""
CONSUMED_AT_ONCE = 500
WANTED_AT_ONCE = 2_000
"""Those who wait are answered together until they want so many: after a loss many clients come at once, and what was
sent to all of them is read, and held, once."""


class _Asked(Struct, frozen=True):
    wanted: frozenset[int]
    then: Callable[[FoundRecords | StoreError], None]


class KafkaSourceRecords(SourceRecords):
    """Of one topic. `post` runs a call on the broker's thread."""

    def __init__(
        self, address: KafkaAddress, settings: KafkaSettings, topic: str, post: Post, failures: Failures
    ) -> None:
        self._address = address
        self._settings = settings
        self._topic = topic
        self._post = post
        self._failures = failures
        self._lock = Lock()
        self._waiting: deque[_Asked] = deque()
        self._is_reading = False

    def fetch(self, positions: Collection[int], then: Callable[[FoundRecords | StoreError], None]) -> None:
        with self._lock:
            self._waiting.append(_Asked(frozenset(positions), then))
            begins, self._is_reading = not self._is_reading, True
        if begins:
            try:
                Thread(target=self._run, name="kafka source records", daemon=True).start()
            except RuntimeError as error:  # the machine has no thread left
                with self._lock:
                    asked, self._is_reading = list(self._waiting), False
                    self._waiting.clear()
                self._tell(asked, StoreUnavailable(f"{self._address}: {error}"))

    def _run(self) -> None:
        while asked := self._next():
            answer = self._answer(sorted(frozenset().union(*(one.wanted for one in asked))))
            self._tell(asked, answer)

    def _tell(self, asked: list[_Asked], answer: FoundRecords | StoreError) -> None:
        for one in asked:
            found = answer
            if not isinstance(answer, StoreError):
                found = {position: answer[position] for position in one.wanted if position in answer}
            with suppress(RuntimeError):  # the loop is closed, nobody waits any more
                self._post(partial(one.then, found))

    def _next(self) -> list[_Asked]:
        """Whoever is answered next, nobody at the end."""
        asked: list[_Asked] = []
        count = 0
        with self._lock:
            while self._waiting and count < WANTED_AT_ONCE:
                asked.append(self._waiting.popleft())
                count += len(asked[-1].wanted)
            self._is_reading = bool(asked)
        return asked

    def _answer(self, wanted: list[int]) -> FoundRecords | StoreError:
        try:
            return self._read(wanted)
        except StoreError as error:
            return error
        except KafkaException as error:
            return StoreUnavailable(f"{self._address}: topic {self._topic}: {told(error_of(error))}")
        except Exception as error:  # whoever comes later is still answered
            return StoreUnavailable(self._failures.note("reading records of the message log", error))

    def _read(self, wanted: list[int]) -> dict[int, LogRecord]:
        offsets: dict[int, list[int]] = defaultdict(list)
        for position in wanted:
            offsets[partition_of(position)].append(offset_of(position))
        reader = PartitionReader(self._address, self._settings, self._topic, reads_ahead=False)
        try:
            lows, ends = reader.offsets(max(offsets, default=-1) + 1)
            found: dict[int, LogRecord] = {}
            for partition, some in offsets.items():
                there = [
                    offset for offset in some if lows.get(partition, 0) <= offset < ends.get(partition, 0)
                ]
                self._read_partition(reader, partition, there, found)
            return found
        finally:
            reader.close()

    def _read_partition(
        self,
        reader: PartitionReader,
        partition: int,
        offsets: list[int],
        found: dict[int, LogRecord],
    ) -> None:
        """In ascending order."""
        at = -NEAR_RECORDS - 1  # nothing has been read
        left = offsets[::-1]
        while left:
            if not at <= left[-1] <= at + NEAR_RECORDS:
                at = left[-1]
                reader.at({partition: at})
            for message in reader.consume(CONSUMED_AT_ONCE):
                offset = message.offset() or 0
                if message.partition() != partition or offset < at:
                    continue
                at = offset if is_end(message) else offset + 1
                while left and left[-1] < offset:
                    left.pop()  # it was deleted just now
                if left and left[-1] == offset and not is_end(message):
                    left.pop()
                    record = self._decode(message)
                    if record is not None:
                        found[position_of(partition, offset)] = record

    def _decode(self, message: Message) -> LogRecord | None:
        try:
            return decode_kafka_record(message.key(), message.value(), message.headers()).record  # type: ignore[arg-type]
        except RecordError as error:
            place = f"partition {message.partition()}, offset {message.offset()}"
            LOG.error("topic %s, %s is no record of this broker: %s", self._topic, place, error)
            return None
