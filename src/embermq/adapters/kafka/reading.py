"""Reading partitions of the message log, from any place in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
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
from embermq.formats.kafka_record import decode_frame
from embermq.formats.log_record import RecordError
from embermq.ports.errors import StoreUnavailable

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
