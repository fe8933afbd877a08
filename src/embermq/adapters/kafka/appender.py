"""The records of ticks on their way into Kafka: acks=all, an idempotent producer, tried again without end.

All go into the newest partition of the log, which has one writer. So only the first and the last record of a tick need
a delivery report: when as many offsets lie between them as the tick has records, all stand in between. A report takes
the GIL, which a busy broker gives up every 5 ms only; one for each record would take seconds. What is reported before
the end that was known has been written over a loss; what somebody else has written between the records of one tick
cannot be told from them: both end the process before anybody is told that a record is durable.

The records of a tick leave together. With no linger the driver's thread would send the first one at once and the next
few as they come, many requests for one tick; past those that may be under way it turns round without a pause until one
is answered. So the driver keeps them back until the thread here asks for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Thread

from confluent_kafka import KafkaError, KafkaException, Message
from msgspec import Struct

from embermq.adapters.kafka.address import KafkaAddress
from embermq.adapters.kafka.client import LOG, Post, error_of, told
from embermq.adapters.kafka.log_producer import LogProducer
from embermq.adapters.kafka.positions import LogPositions
from embermq.formats.kafka_record import KafkaEncoder, Outgoing, kafka_bytes
from embermq.formats.log_record import RecordError
from embermq.model.position import offset_of, position_of
from embermq.ports.errors import StoreError, StoreUnavailable, TakenOver
from embermq.ports.log_appender import Appended, LogAppender
from embermq.ports.tick_store import Receipt

POLL_S = 0.5
CLOSE_S = 2.0
"""How long the end of the broker waits for records that Kafka has not confirmed, after it has waited for the tick."""
CERTAINLY_SMALL = 4
"""A record grows less than so many times on its way into Kafka's form, and by `SMALL_BYTES`."""
SMALL_BYTES = 1_024


class _Tick(Struct):
    """Records that Kafka has not confirmed."""

    count: int
    body_bytes: int
    done: Appended
    first_offset: int = -1


class KafkaAppender(LogAppender):
    """Appends to one topic. `record_bytes_max` is what the topic takes of one record."""

    def __init__(
        self,
        address: KafkaAddress,
        producer: LogProducer,
        topic: str,
        positions: LogPositions,
        post: Post,
        *,
        record_bytes_max: int,
        encoder: KafkaEncoder | None = None,
    ) -> None:
        self._address = address
        self._topic = topic
        self._positions = positions
        self._post = post
        self._record_bytes_max = record_bytes_max
        self._encode = (encoder or KafkaEncoder()).encode
        self._tick: _Tick | None = None
        self._held_back: list[Outgoing] = []
        """Of a tick that comes while a transaction is committed."""
        self._commits = self._is_committing = False
        """What the thread here is to do, and that it does, or has not told of it yet."""
        self._failing = ""
        self._ended = ""
        self._goes_on_at = 0
        self._closing = False
        self._handed = Event()
        self.on_end: list[Callable[[StoreError], None]] = []
        """Called once with why nothing can be stored any more in this process: it has to end."""
        self._log = producer
        self._producer = producer.driver
        producer.on_error = self._on_error
        self._thread = Thread(target=self._poll_forever, name="kafka reports", daemon=True)
        self._thread.start()

    @property
    def failing(self) -> str:
        # A server that hangs and copies that are missing are no errors of the driver's: it tries again in silence.
        return self._ended or self._failing or f"{self._address}: does not confirm records, nor say why"

    @property
    def goes_on_at(self) -> int:
        return self._goes_on_at

    def append(self, records: list[bytes], done: Appended) -> None:
        if self._tick is not None:
            raise RuntimeError("records are already being appended")
        if self._ended:
            return  # nobody is answered any more
        try:
            outgoing = [self._outgoing(frame) for frame in records]
        except (RecordError, StoreError) as error:
            refusal = error if isinstance(error, StoreError) else StoreError(f"{self._address}: {error}")
            self._post(lambda: done(refusal))
            return
        self._tick = _Tick(len(records), sum(map(len, records)), done)
        self._held_back = outgoing
        if not self._is_committing:
            self._hand_over()

    def _hand_over(self) -> None:
        outgoing, self._held_back = self._held_back, []
        produce, topic, partition = self._producer.produce, self._topic, self._positions.partition
        last = len(outgoing) - 1
        try:
            self._log.begin()
            for index, record in enumerate(outgoing):
                produce(
                    topic,
                    record.value,
                    record.key,
                    partition,
                    on_delivery=self._last if index == last else self._first if not index else None,
                    timestamp=record.timestamp_ms,
                    headers=record.headers,  # type: ignore[arg-type]  # lists are invariant
                )
        except (KafkaException, BufferError) as error:
            self._end(f"{len(outgoing)} records cannot be handed to the producer: {_text(error)}")
        self._handed.set()

    # Transactions

    def _look_at_transaction(self) -> None:
        """On the broker's thread: nothing is under way now, and nothing is handed over until it is done."""
        if self._log.is_due and self._tick is None and not self._is_committing:
            self._commits = self._is_committing = True
            self._handed.set()

    def _commit(self) -> None:
        """On the thread that polls."""
        if self._log.commit(POLL_S):
            self._commits = False
            self._post(self._committed)

    def _committed(self) -> None:
        self._is_committing = False
        self._positions.skipped = 1
        if self._tick is not None and not self._ended:
            self._hand_over()

    @property
    def bytes_sure(self) -> int:
        """The topic takes every record of so many bytes, as the broker encodes it."""
        return (self._record_bytes_max - SMALL_BYTES) // CERTAINLY_SMALL

    def objection(self, frame: bytes) -> str:
        """Why the topic would not take a record, which is logged; "" when it does."""
        try:
            self._outgoing(frame)
        except (RecordError, StoreError) as error:
            LOG.warning("a message is refused: %s", error)
            return str(error)
        return ""

    def _outgoing(self, frame: bytes) -> Outgoing:
        outgoing = self._encode(frame)
        if len(frame) > self.bytes_sure:
            size = kafka_bytes(outgoing)
            if size > self._record_bytes_max:
                raise StoreError(
                    f"{self._address}: a message to {outgoing.key.decode(errors='replace')[:80]!r} takes {size} bytes "
                    f"as a record, topic {self._topic} takes {self._record_bytes_max} (max.message.bytes)"
                )
        return outgoing

    def _first(self, error: KafkaError | None, message: Message) -> None:
        """On the thread that polls: the first of several records has arrived, or will never."""
        tick = self._tick
        if tick is None or self._ended or self._closing:
            return
        if error is not None:
            self._end(f"topic {self._topic} does not take a record: {told(error)}")
        else:
            tick.first_offset = message.offset() or 0

    def _last(self, error: KafkaError | None, message: Message) -> None:
        """The last one, which tells of all: reports come in order."""
        tick = self._tick
        if tick is None or self._ended or self._closing:
            return
        if error is not None:
            self._end(f"topic {self._topic} does not take a record: {told(error)}")
            return
        last = message.offset() or 0
        first = last if tick.count == 1 else tick.first_offset
        place = f"topic {self._topic}, partition {self._positions.partition}"
        between = last - first + 1 - tick.count
        if between:
            self._end(
                f"{place}: somebody else writes into it: the log has one writer"
                if between > 0
                else f"{place}: {-between} records less than were sent"
            )
            return
        strange = first - offset_of(self._positions.end) - self._positions.skipped
        if strange < 0:
            # These records may reach beyond the end that was known: by it alone the next start would see no loss.
            self._goes_on_at = position_of(self._positions.partition + 1, 0)
            self._end(f"{place}: has lost its end, {-strange} records that it had confirmed")
            return
        if strange:
            LOG.error(
                "%s: %s has %d records that this broker did not write: the log has one writer",
                self._address,
                place,
                strange,
            )
        self._failing = ""
        self._post(partial(self._finish, position_of(self._positions.partition, first)))

    def _finish(self, base: int) -> None:
        tick, self._tick = self._tick, None
        if tick is not None and not self._ended and not self._closing:
            self._positions.advance(base + tick.count, tick.body_bytes)
            self._look_at_transaction()
            tick.done(Receipt(base, tick.count))

    def _on_error(self, error: KafkaError) -> None:
        """On the thread that polls. All but fatal ones pass when Kafka is there again."""
        if error.fatal():
            self._end(f"the producer cannot go on: {told(error)}")
        elif error.code() != KafkaError._ALL_BROKERS_DOWN or not self._failing:
            self._failing = f"{self._address}: {told(error)}"

    def _end(self, why: str) -> None:
        """Also from within what the driver calls: there nothing may be asked of it."""
        if self._ended:
            return
        self._ended = f"{self._address}: {why}"
        self._post(self._tell_end)

    def _tell_end(self) -> None:
        failure = StoreUnavailable(self._ended)
        if self._log.is_taken_over():
            place = f"{self._address}: topic {self._topic}"
            failure = TakenOver(f"{place} has a newer writer, or did not hear of this one for 15 minutes")
        for call in self.on_end:
            call(failure)

    def _poll_forever(self) -> None:
        try:
            while not self._closing:
                if self._commits:
                    self._commit()
                else:
                    self._hear()
                if self._log.is_due and not self._is_committing:
                    self._post(self._look_at_transaction)
        except (
            SystemError
        ) as error:  # of the driver, about a fatal one: a report that was under way has broken off
            self._end(f"the producer cannot go on: {error}")
        except Exception as error:  # whatever it was: nobody would hear any more what Kafka confirms
            if not self._ended:
                LOG.exception("the thread that hears what Kafka confirms has failed")
            self._end(f"reports of records cannot be heard any more: {error!r}")
        finally:
            # A fatal error, such as the loss of records that were confirmed, is sometimes raised by the driver as an
            # object that is no exception, which no clause catches.
            if not self._closing:
                self._end("the producer cannot go on, and reports of records cannot be heard any more")

    def _hear(self) -> None:
        """Until all that was handed over is confirmed, or for `POLL_S`."""
        if not len(self._producer):
            self._handed.wait(POLL_S)
        self._handed.clear()
        if len(self._producer):
            self._producer.flush(POLL_S)  # has everything sent, whatever its linger
        else:
            self._producer.poll(0)

    def close(self) -> None:
        if self._closing:
            return
        left = 0
        with suppress(KafkaException):  # of a producer that cannot go on
            left = self._producer.flush(0.0 if self._ended else CLOSE_S)
        self._closing = True
        self._handed.set()
        self._thread.join()
        if not (left or self._ended):
            self._log.close(CLOSE_S)
        if left:
            LOG.warning(
                "%s does not answer: it may or may not have %d records that nobody was told of",
                self._address,
                left,
            )
            self._producer.purge()
            self._producer.flush(0.1)


def _text(error: KafkaException | BufferError) -> str:
    return told(error_of(error)) if isinstance(error, KafkaException) else str(error)
