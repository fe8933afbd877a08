"""A message log that has lost its end: offsets that somebody may know are used up before the first record comes.

Kafka gives the offsets behind the new end again. Readers go by them: what stands at one that they have had would be a
repeat to them, or be passed over. So fillers are produced, records that say nothing and that nobody takes for a
message, until each partition ends behind all that was ever told.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from msgspec import Struct

from embermq.adapters.kafka.client import (
    LOG,
    WatchedAdmin,
    client_options,
    told,
    unavailable,
)
from embermq.adapters.kafka.reading import PartitionReader, first_numbers, is_end
from embermq.formats.kafka_record import filler_headers
from embermq.formats.pipeline_progress import progress_topic, read_progress
from embermq.ports.errors import StoreUnavailable
from embermq.ports.log_state import KnownLog

LATE_RECORDS = 10_000
"""Of one partition: more than a dead broker had on its way there, and than it wrote since it noted its offsets."""
FILLED_AT_ONCE = 50_000
"""In memory, of all partitions together."""
CONSUMED_AT_ONCE = 1_000
TOLD_EVERY_S = 5.0
REPORT_S = 0.1

Offsets = dict[int, int]


class TailLook(Struct, frozen=True):
    """What a start has seen of the log, before it has written anything. `number` is one more than that of the last
    record, `filled` than that of the last filler."""

    lows: Offsets
    ends: Offsets
    number: int
    filled: int


def known_offsets(
    admin: WatchedAdmin, topic: str, log_id: str, known: KnownLog, look: TailLook
) -> Offsets | None:
    """Of each partition the least offset that a new record may have; None when nothing is missing, as always but after
    a loss of power."""
    noted = dict(enumerate(known.noted_offsets)) if known.identity in ("", log_id) else {}
    if known.closed_end >= 0 and max(look.number, look.filled) == known.closed_end:
        published: Offsets = {}  # all that was written was noted at the end
    else:
        try:
            published = _published(admin, log_id)
        except StoreUnavailable as error:
            LOG.warning(
                "how far the pipeline is cannot be asked, the offsets that are noted count: %s", error
            )
            published = {}
    floor = {one: max(noted.get(one, 0), published.get(one, 0)) for one in look.ends}
    is_cut = any(look.ends[one] < offset for one, offset in floor.items())
    if known.identity in ("", log_id):
        is_cut |= max(look.number, look.filled) < known.records_end
        is_cut |= look.filled > known.records_end  # a fill that a kill has broken off
        is_cut |= not is_cut and _is_displaced(admin, topic, known, look)
    return {one: offset + LATE_RECORDS for one, offset in floor.items()} if is_cut else None


def _is_displaced(admin: WatchedAdmin, topic: str, known: KnownLog, look: TailLook) -> bool:
    """Whether records stand where others stood when the offsets were noted: those of a tick that nobody was told of."""
    asked = {
        one: offset - 1
        for one, offset in enumerate(known.noted_offsets)
        if look.lows.get(one, 0) < offset <= look.ends.get(one, 0)
    }
    if not asked:
        return False
    reader = PartitionReader(admin.address, admin.settings, topic, reads_ahead=False)
    try:
        found = first_numbers(reader, asked, {one: offset + 1 for one, offset in asked.items()})
    finally:
        reader.close()
    return any(number >= known.noted_number for _, number in found.values())


def _published(admin: WatchedAdmin, log_id: str) -> Offsets:
    """The largest offset that any query of the pipeline has told of each partition. Raises StoreUnavailable."""
    topic = progress_topic(admin.settings.prefix)
    there = admin.topics(admin.settings.request_timeout_s).get(topic)
    if there is None or there.error is not None:
        return {}
    found: Offsets = {}
    reader = PartitionReader(admin.address, admin.settings, topic, reads_ahead=True)
    try:
        lows, ends = reader.offsets(len(there.partitions))
        left = {one for one, end in ends.items() if lows[one] < end}
        if left:
            reader.at({one: lows[one] for one in left})
        while left:
            for message in reader.consume(CONSUMED_AT_ONCE):
                partition = message.partition() or 0
                if not is_end(message):
                    _hear(found, message, log_id)
                if (message.offset() or 0) + (not is_end(message)) >= ends[partition]:
                    left.discard(partition)
    finally:
        reader.close()
    return found


def _hear(found: Offsets, message: Message, log_id: str) -> None:
    progress = read_progress(message.key(), message.value(), message.headers(), log_id)  # type: ignore[arg-type]
    if progress is not None:
        found[progress.partition] = max(found.get(progress.partition, 0), progress.next_offset)


class _Fill:
    """Fillers on their way into one topic."""

    def __init__(self, admin: WatchedAdmin, topic: str, number: int) -> None:
        self._admin = admin
        self._topic = topic
        self._headers = filler_headers(number)
        self._error: KafkaError | None = None
        self.ends: Offsets = {}
        options = client_options(admin.address, admin.settings) | {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": 0,
            "linger.ms": 5,
            "compression.type": "lz4",
        }
        try:
            self._producer = Producer(options)
        except (KafkaException, ValueError, TypeError) as error:
            raise StoreUnavailable(f"{admin.address}: cannot make a producer: {error}") from None

    def add(self, partition: int, count: int) -> None:
        """At the end of a partition. Reports come in order, and there is no time limit: the last one tells of all."""
        for left in range(count, 0, -1):
            self._producer.produce(
                self._topic,
                b"",
                None,
                partition,
                headers=self._headers,  # type: ignore[arg-type]  # lists are invariant
                on_delivery=partial(self._reported, partition) if left == 1 else None,
            )

    def wait(self) -> None:
        """Until Kafka has all of them. Raises StoreUnavailable, KafkaException."""
        deadline_s = time.monotonic() + self._admin.settings.start_timeout_s
        while len(self._producer):
            self._producer.flush(REPORT_S)
            if self._error is not None or time.monotonic() > deadline_s:
                why = told(self._error) if self._error is not None else "no answer"
                raise StoreUnavailable(
                    f"{self._admin.address}: topic {self._topic}: fillers are not taken: {why}"
                )

    def _reported(self, partition: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._error = error
        else:
            self.ends[partition] = (message.offset() or 0) + 1

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(REPORT_S)


def fill(
    admin: WatchedAdmin, topic: str, ends: Mapping[int, int], wanted: Mapping[int, int], number: int
) -> Offsets:
    """Fillers with this number until each partition ends where it is wanted; where they end then. A kill in between
    leaves what the next start goes on with. Raises StoreUnavailable."""
    total = sum(max(0, wanted[one] - end) for one, end in ends.items())
    LOG.warning(
        "%s: topic %s has lost its end: %d offsets that may be known are used up first, by fillers",
        admin.address,
        topic,
        total,
    )
    made, told_s = 0, time.monotonic()
    filling = _Fill(admin, topic, number)
    filling.ends.update(ends)
    try:
        while short := {one: wanted[one] - end for one, end in filling.ends.items() if end < wanted[one]}:
            room = FILLED_AT_ONCE
            for partition, count in short.items():
                filling.add(partition, min(count, room))
                room -= min(count, room)
            filling.wait()
            made += FILLED_AT_ONCE - room
            if time.monotonic() - told_s >= TOLD_EVERY_S:
                told_s = time.monotonic()
                LOG.warning("%s: topic %s: %d of %d offsets are used up", admin.address, topic, made, total)
    except KafkaException as error:
        raise unavailable(admin.address, f"cannot write fillers into {topic}", error) from None
    finally:
        filling.close()
    LOG.warning("%s: topic %s: the offsets are used up", admin.address, topic)
    return filling.ends
