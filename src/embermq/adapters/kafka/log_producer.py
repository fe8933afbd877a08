"""The producer of the message log, and how one broker takes the log from another: in Kafka, not by clocks.

With a `fence` all records are written in transactions of that name. Whoever opens the newest producer of a name makes
the servers refuse what all before it send, also what is under way (a *fenced* producer), before it learns where the log
ends. So nothing stands behind that end but its own records. The transactions are for that alone. What is confirmed is
durable, committed or not, and all readers of the log read all of it (`read_uncommitted`).

A transaction that is open for `OPEN_MS_MAX` is ended by Kafka, and its producer with it. So one is committed every
`COMMIT_S`, between two ticks, which takes one offset. A Kafka that is away for so long ends the broker, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Producer

from embermq.adapters.kafka.address import KafkaAddress, KafkaSettings
from embermq.adapters.kafka.client import ATTEMPT_S, LOG, client_options, error_of, unavailable
from embermq.ports.errors import StoreUnavailable

KEPT_BACK_MS = 100
"""How long the driver keeps records that it is not asked for."""
TOPIC_GONE_MS = 5_000
"""A topic that the cluster does not know any more is believed to be gone after that; it was there at the start."""
PRODUCER_BUFFER_KB = 2_147_483_647
"""No limit of the driver's: a tick is what one may hold, and there is one at a time."""
OPEN_MS_MAX = 900_000
"""The most that Kafka allows unless its `transaction.max.timeout.ms` says otherwise."""
COMMIT_S = 60.0
WHY_S, WHY_TRIES = 0.1, 5
FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
"""Errors of a producer that is not the newest of its name."""


class LogProducer:
    """acks=all, idempotent, tries again without end. The newest of the name `fence`, "" for none, as soon as it is
    made. Raises StoreUnavailable."""

    def __init__(
        self, address: KafkaAddress, settings: KafkaSettings, *, record_bytes_max: int, fence: str = ""
    ) -> None:
        self.on_error: Callable[[KafkaError], None] = lambda _: None
        """Told what the driver says by itself, on the thread that polls."""
        self._is_fenced = bool(fence)
        self._open_s = 0.0
        """Since when a transaction is open, 0 for none."""
        options = client_options(address)
        options |= {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": 0,
            "linger.ms": KEPT_BACK_MS,
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": PRODUCER_BUFFER_KB,
            "message.max.bytes": record_bytes_max,
            "topic.metadata.propagation.max.ms": TOPIC_GONE_MS,
            "error_cb": self._on_error,
        }
        if fence:
            options |= {"transactional.id": fence, "transaction.timeout.ms": OPEN_MS_MAX}
        try:
            self.driver = Producer(options)
        except (KafkaException, ValueError, TypeError) as error:
            raise StoreUnavailable(f"{address}: cannot make a producer: {error}") from None
        if fence:
            self._take_over(address, fence, time.monotonic() + settings.start_timeout_s)

    def _on_error(self, error: KafkaError) -> None:
        self.on_error(error)

    def _take_over(self, address: KafkaAddress, fence: str, deadline_s: float) -> None:
        while True:
            try:
                self.driver.init_transactions(ATTEMPT_S)
            except KafkaException as error:
                if not error_of(error).retriable() or time.monotonic() > deadline_s:
                    doing = f"cannot take the message log over, by transactions of {fence!r}"
                    raise unavailable(address, doing, error) from None
            else:
                return

    def is_taken_over(self) -> bool:
        """Whether another one is the newest. To be asked when this one cannot go on: the driver may end without saying
        why."""
        for _ in range(WHY_TRIES if self._is_fenced else 0):
            try:
                self.driver.commit_transaction(WHY_S)
            except KafkaException as error:
                if error_of(error).code() in FENCED:
                    return True
            except SystemError:  # reports that were under way have broken off what it was asked
                LOG.debug("a producer that cannot go on does not say why")
        return False

    def begin(self) -> None:
        """Before records are produced. Does not wait. Raises KafkaException."""
        if self._is_fenced and not self._open_s:
            self.driver.begin_transaction()
            self._open_s = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether a transaction is to be committed as soon as nothing is under way."""
        return self._open_s > 0 and time.monotonic() - self._open_s >= COMMIT_S

    def commit(self, wait_s: float) -> bool:
        """Whether it is done; else it is to be tried again. Nothing is under way. Raises KafkaException for what will
        not pass."""
        try:
            self.driver.commit_transaction(wait_s)
        except KafkaException as error:
            if error_of(error).retriable():
                return False
            raise
        self._open_s = 0.0
        return True

    def close(self, wait_s: float) -> None:
        """Leave nothing open, if that can be done in this time; else whoever comes next ends it."""
        if self._open_s:
            with suppress(KafkaException):
                self.commit(wait_s)
