"""Plays the pipeline's dispatch on a real Kafka, without Spark: copies, repeats, leaves out, comes late, reports."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from random import Random
from threading import Event, Thread
from types import TracebackType
from typing import cast

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from tests.support.kafka_server import KafkaServer, create_topic
from tests.support.source_header import encode_source

from embermq.formats.pipeline_progress import TOPIC_SETTINGS, progress_key, progress_topic
from embermq.model.position import position_of

ANSWER_S = 90.0
"""Kafka may have been killed meanwhile, and starts beside much else."""
ROUND_S = 0.02


class KafkaDispatcher:
    """Of the broker with one prefix, whose message log is there. As a context manager it carries all that comes on a
    thread, `random` repeating and reporting as a pipeline does that is killed now and then; else by hand."""

    def __init__(self, kafka: KafkaServer, prefix: str, random: Random | None = None) -> None:
        self._prefix = prefix
        self._random = random or Random(0)
        self._log = f"{prefix}.msg.all"
        options = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
        reading = {"group.id": "tests", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self._consumer = Consumer(options | reading)
        self._producer = Producer(options | {"enable.idempotence": True, "linger.ms": 0})
        create_topic(kafka.admin, progress_topic(prefix), partitions=1, settings=TOPIC_SETTINGS)
        partitions = self._consumer.list_topics(self._log, ANSWER_S).topics[self._log].partitions
        self._next = dict.fromkeys(partitions, 0)
        self._consumer.assign([TopicPartition(self._log, partition, 0) for partition in partitions])
        self.records: list[Message] = []
        """All of the message log, in the order of each partition."""
        self.carried = 0
        self.repeated = 0
        self._reported = 0
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="dispatch for a test", daemon=True)
        self._error: BaseException | None = None

    def read(self) -> None:
        """Up to what is there now."""
        ends = {
            partition: self._consumer.get_watermark_offsets(TopicPartition(self._log, partition), ANSWER_S)[1]
            for partition in self._next
        }
        while any(self._next[partition] < end for partition, end in ends.items()):
            for message in self._consumer.consume(1_000, 0.1):
                if message.error() is not None:  # the client tries it again by itself
                    continue
                self._next[message.partition() or 0] = (message.offset() or 0) + 1
                self.records.append(message)

    def write(self, records: Iterable[Message]) -> None:
        """To the logs that they are stamped for."""
        for message in records:
            headers = cast("list[tuple[str, bytes]]", message.headers() or [])
            carried = [header for header in headers if header[0] not in ("a", "s")]
            source = encode_source(position_of(message.partition() or 0, message.offset() or 0))
            for name, stamp in headers:
                if name == "a":
                    log = stamp.split(b";")[0].decode()
                    self._producer.produce(
                        log, message.value(), message.key(), headers=[*carried, ("a", stamp), source]
                    )
                    self._producer.poll(0)
        assert self._producer.flush(ANSWER_S) == 0

    def carry(self) -> None:
        """All that is new."""
        self.read()
        self.write(self.records[self.carried :])
        self.carried = len(self.records)

    def repeat(self, count: int) -> None:
        """The last of what has been carried, as after a crash: what has not stays behind what comes before it."""
        carried = self.carried
        self.write(self.records[max(0, carried - count) : carried])

    def of(self, client_id: str) -> list[Message]:
        """Records on topics below a client's id, in the order of each partition."""
        begin = f"{client_id}/".encode()
        return [message for message in self.records if cast(bytes, message.key()).startswith(begin)]

    def report(self) -> None:
        """What has been carried is where it belongs."""
        ends: dict[int, int] = {}
        for message in self.records[: self.carried]:
            ends[message.partition() or 0] = (message.offset() or 0) + 1
        for partition, end in ends.items():
            self._producer.produce(
                progress_topic(self._prefix), b"%d" % end, progress_key("dispatch", partition)
            )
        assert self._producer.flush(ANSWER_S) == 0

    def first_offset(self, log: str) -> int:
        """Of an application log."""
        first, _ = self._consumer.get_watermark_offsets(TopicPartition(log, 0), ANSWER_S)
        return int(first)

    def close(self) -> None:
        self._consumer.close()

    # On a thread

    def _run(self) -> None:
        try:
            while not self._stopping.wait(ROUND_S):
                with suppress(KafkaException):  # it is away: what was written of a round is written again
                    self._round()
        except BaseException as error:
            self._error = error

    def _round(self) -> None:
        self.carry()
        if self._reported < self.carried and (not self.repeated or self._random.random() < 0.2):
            self.write(self.records[self._reported : self.carried])  # killed, and begun again
            self.repeated += self.carried - self._reported
        if self._random.random() < 0.1:
            self.report()
            self._reported = self.carried

    def __enter__(self) -> KafkaDispatcher:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self.close()
        if self._error is not None and kind is None:
            raise self._error
