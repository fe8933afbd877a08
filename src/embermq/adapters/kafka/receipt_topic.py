"""Samples of delivery latency on their way into Kafka, many in one record, by a thread and a producer of their own.

They are statistics. So nothing waits for them: while Kafka is away they are held up to a limit, and dropped past it or
after `KEPT_S`. The topic is made by the thread, which tries again until it can.
"""

from __future__ import annotations

from collections import deque
from threading import Event, Lock, Thread

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from embermq.adapters.kafka.address import KafkaAddress, KafkaSettings
from embermq.adapters.kafka.client import LOG, Failures, WatchedAdmin, client_options, error_of, told
from embermq.formats.receipts import HEADERS, encode_receipts, receipts_topic
from embermq.ports.errors import StoreUnavailable
from embermq.ports.receipt_log import ReceiptLog, ReceiptStatistics

EVERY_S = 1.0
"""How long samples gather."""
RECORD_SAMPLES_MAX = 2_000
"""In one record: 100 KiB and less, unless first topic levels are very long."""
WAKE_BYTES = 128 * 1024
"""So much is sent before the second is over."""
KEPT_S = 30
GONE_MS = 5_000
"""A topic that the cluster does not know any more is believed to be gone after that."""
RETRY_S = 5.0
CLOSE_S = 1.0


RETENTION_S = 3_600
"""How long the topic keeps receipts, set when it is made: so long may the traffic query be behind."""
BYTES_MAX = 1024 * 1024
"""Receipts held while Kafka is away, some 30,000; past it they are dropped and counted."""


class ReceiptTopic(ReceiptLog):
    """`<prefix>.receipts`. `take` and `close` are the broker's thread's."""

    def __init__(
        self, address: KafkaAddress, settings: KafkaSettings, failures: Failures | None = None
    ) -> None:
        self.name = receipts_topic(settings.prefix)
        self._failures = failures or Failures()
        self._address = address
        self._lock = Lock()
        self._gathered: deque[bytes] = deque()
        self._gathered_bytes = self._sent_bytes = 0
        self._stored = self._dropped = 0
        self._trouble = ""
        self._is_there = False
        self._wake = Event()
        self._closing = False
        options = client_options(address) | {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": KEPT_S * 1000,
            "linger.ms": 0,
            "topic.metadata.propagation.max.ms": GONE_MS,
        }
        try:
            self._producer = Producer(options)
            self._admin = WatchedAdmin(address, settings)
        except (KafkaException, ValueError, TypeError) as error:
            raise StoreUnavailable(f"{address}: cannot make a producer of receipts: {error}") from None
        self._thread = Thread(target=self._run, name="kafka receipts", daemon=True)
        self._thread.start()

    def take(self, samples: list[bytes]) -> None:
        size = sum(map(len, samples))
        with self._lock:
            if self._gathered_bytes + self._sent_bytes + size > BYTES_MAX:
                self._dropped += len(samples)
                return
            self._gathered.extend(samples)
            self._gathered_bytes += size
            is_much = self._gathered_bytes > WAKE_BYTES
        if is_much:
            self._wake.set()

    def statistics(self) -> ReceiptStatistics:
        with self._lock:
            return ReceiptStatistics(self._stored, self._dropped, self._gathered_bytes + self._sent_bytes)

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join(CLOSE_S + EVERY_S)

    def _run(self) -> None:
        self._make_topic()
        while not self._closing:
            self._wake.wait(EVERY_S if self._is_there else RETRY_S)
            self._wake.clear()
            try:
                if not self._is_there and not self._closing:
                    self._make_topic()
                self._send()
                self._producer.poll(0)
            except Exception as error:  # whatever it was, nothing would be sent any more
                self._failures.note(f"{self._address}: writing to topic {self.name}", error)
        self._send()
        self._producer.flush(CLOSE_S)
        self._producer.purge()

    def _send(self) -> None:
        """Without the topic what has gathered waits, up to its limit."""
        while self._is_there:
            with self._lock:
                count = min(len(self._gathered), RECORD_SAMPLES_MAX)
                if not count:
                    return
                samples = [self._gathered.popleft() for _ in range(count)]
                size = sum(map(len, samples))
                self._gathered_bytes -= size
                self._sent_bytes += size

            def reported(error: KafkaError | None, _: Message, count: int = count, size: int = size) -> None:
                self._report(error, count, size)

            try:
                value = encode_receipts(samples)
                self._producer.produce(self.name, value, headers=HEADERS, on_delivery=reported)  # type: ignore[arg-type]
            except (KafkaException, BufferError, ValueError) as error:
                told_of = error_of(error) if isinstance(error, KafkaException) else None
                self._report(told_of, count, size, str(error))

    def _report(self, error: KafkaError | None, count: int, size: int, problem: str = "") -> None:
        """On this object's thread: a record of so many samples is stored, or will never be."""
        with self._lock:
            self._sent_bytes -= size
            if error is None and not problem:
                self._stored += count
            else:
                self._dropped += count
        if error is None and not problem:
            self._trouble = ""
            return
        if error is not None and error.code() in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
        ):
            self._is_there = False
        self._note(told(error) if error is not None else problem)

    def _make_topic(self) -> None:
        """One partition: the order of samples means nothing, and there are few."""
        config = {"cleanup.policy": "delete", "retention.ms": str(RETENTION_S * 1000)}
        try:
            self._admin.make_topic(self.name, config)
        except KafkaException as error:
            self._note(told(error_of(error)))
            return
        except TimeoutError:
            self._note("no answer")
            return
        self._is_there = True

    def _note(self, trouble: str) -> None:
        """One line for each time that it begins."""
        if not self._trouble:
            LOG.warning(
                "%s: samples of delivery latency cannot be written to %s, past a limit they are dropped: %s",
                self._address,
                self.name,
                trouble,
            )
        self._trouble = trouble
