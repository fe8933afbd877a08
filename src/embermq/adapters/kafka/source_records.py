"""Single records of the message log in Kafka, seldom wanted: one thread reads them, with a consumer of its own, as long
as somebody waits for some."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from threading import Lock, Thread

from confluent_kafka import KafkaException, Message
from msgspec import Struct

from embermq.adapters.kafka.address import KafkaAddress
from embermq.adapters.kafka.client import LOG, Post, error_of, told
from embermq.adapters.kafka.failures import Failures
from embermq.adapters.kafka.reading import PartitionReader, is_end
from embermq.adapters.kafka.settings import KafkaSettings
from embermq.formats.kafka_record import decode_kafka_record
from embermq.formats.log_record import LogRecord, RecordError
from embermq.model.position import offset_of, partition_of, position_of
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.source_records import FoundRecords, SourceRecords

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
