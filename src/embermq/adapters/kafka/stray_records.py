"""Records of a client's own log that stand where nobody reads: in other partitions than 0.

Somebody has given the log more partitions, and what wrote to it then divided records by their keys. They are moved:
copied to the end of partition 0, each with the header that says so, and deleted where they were. A kill in between
repeats that, and what partition 0 has already is not copied again: it is known by its position in the message log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from embermq.adapters.kafka.client import (
    LOG,
    WatchedAdmin,
    client_options,
    error_of,
    is_of_unused_group,
    told,
)
from embermq.formats.kafka_record import MOVED_HEADER, read_source
from embermq.formats.log_record import RecordError
from embermq.ports.errors import StoreUnavailable

READ_AT_ONCE = 1_000
COPIED_BYTES = 64 * 1024
"""In one request, unless it is one record."""
WAIT_S = 0.1

Stretch = tuple[int, int]
"""The first offset of a partition and its end."""


def move_to_first(admin: WatchedAdmin, log: str, stretches: Mapping[int, Stretch]) -> int:
    """Have everything in partition 0 that a log has in these; returns how many records were copied. Nobody reads or
    trims the log meanwhile. Raises StoreUnavailable, and may be called again then."""
    strays = {number: at for number, at in stretches.items() if number and at[0] < at[1]}
    if not strays:
        return 0
    LOG.warning(
        "%s: application log %s has %d records in other partitions than 0, which nobody reads: they are moved there, "
        "behind what it has",
        admin.address,
        log,
        sum(end - first for first, end in strays.values()),
    )
    try:
        there = {source for one in _read(admin, log, 0, stretches[0]) if (source := _source(one)) is not None}
        copied = _Copies(admin, log)
        for partition, stretch in sorted(strays.items()):
            for one in _read(admin, log, partition, stretch):
                source = _source(one)
                if source is None or source not in there:
                    copied.add(one)
        copied.finish()
    except KafkaException as error:
        raise _trouble(admin, log, error_of(error)) from None
    ends = [TopicPartition(log, number, end) for number, (_, end) in strays.items()]
    admin.ask("cannot delete what was moved", lambda: admin.client.delete_records(ends))
    return copied.count


def _source(record: Message) -> int | None:
    """None for what cannot be understood; whoever reads it says so."""
    try:
        return read_source(record.headers())  # type: ignore[arg-type]
    except RecordError:
        return None


def _trouble(admin: WatchedAdmin, log: str, error: KafkaError) -> StoreUnavailable:
    return StoreUnavailable(f"{admin.address}: cannot move records of {log} to partition 0: {told(error)}")


def _read(admin: WatchedAdmin, log: str, partition: int, stretch: Stretch) -> Iterator[Message]:
    """Raises KafkaException, and StoreUnavailable when nothing comes for long."""
    first, end = stretch
    options = client_options(admin.address) | {
        "group.id": f"{admin.settings.prefix}-application-readers",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_uncommitted",
    }
    place = TopicPartition(log, partition, first)
    with closing(Consumer(options)) as consumer:
        consumer.assign([place])
        heard_s = time.monotonic()
        at = first
        while at < end:
            records = [one for one in consumer.consume(READ_AT_ONCE, WAIT_S) if _is_record(admin, log, one)]
            yield from (one for one in records if (one.offset() or 0) < end)
            # What deletes and transactions leave out has no record, but a position.
            at = max(at, consumer.position([place])[0].offset)
            if records:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > admin.settings.request_timeout_s:
                raise StoreUnavailable(
                    f"{admin.address}: {log}, partition {partition}, is not read beyond {at}"
                )
            admin.pause(0)


def _is_record(admin: WatchedAdmin, log: str, told_of: Message) -> bool:
    error = told_of.error()
    if error is not None and not is_of_unused_group(error):
        raise _trouble(admin, log, error)
    return error is None


class _Copies:
    """In partition 0, in the order in which they are added."""

    def __init__(self, admin: WatchedAdmin, log: str) -> None:
        self.count = 0
        self._admin = admin
        self._log = log
        self._problem: KafkaError | None = None
        timeout_ms = round(admin.settings.request_timeout_s * 1000)
        options: dict[str, str | int | bool] = {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": timeout_ms,
        }
        # A log takes what has been in it, but maybe not many of these at once.
        options |= {"message.max.bytes": 1_000_000_000, "batch.size": COPIED_BYTES}
        self._producer = Producer(client_options(admin.address) | options)

    def add(self, record: Message) -> None:
        headers = [*(record.headers() or ()), MOVED_HEADER]
        while True:
            try:
                self._producer.produce(
                    self._log,
                    record.value(),
                    record.key(),
                    partition=0,
                    headers=headers,
                    on_delivery=self._reported,
                )
            except BufferError:
                self._producer.poll(WAIT_S)
                self._admin.pause(0)
            else:
                self.count += 1
                return

    def _reported(self, error: KafkaError | None, _: Message) -> None:
        self._problem = self._problem or error

    def finish(self) -> None:
        """All are stored when it returns. Raises StoreUnavailable."""
        while self._producer.flush(WAIT_S):
            self._admin.pause(0)
        if self._problem is not None:
            raise _trouble(self._admin, self._log, self._problem)
