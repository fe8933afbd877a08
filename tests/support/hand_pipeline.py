"""The pipeline's dispatch, done by a test when it wants to: records go to the logs that they are stamped for."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tests.support.kafka_server import KafkaServer
from tests.support.source_header import encode_source
from tests.support.waiting import wait_until

from embermq.formats.pipeline_progress import TOPIC_SETTINGS, progress_key, progress_topic
from embermq.model.position import position_of

STAMP = "a"
READ_S = 60.0
QUERY = "dispatch"


class HandPipeline:
    """Of the broker with one prefix. A context manager."""

    def __init__(self, kafka: KafkaServer, prefix: str) -> None:
        self._kafka = kafka
        self._log = f"{prefix}.msg.all"
        self._progress = progress_topic(prefix)
        self._next: dict[int, int] = {}
        options = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
        self._producer = Producer(options | {"acks": "all", "enable.idempotence": True})
        self._consumer = Consumer(options | {"group.id": f"{prefix}-hand", "enable.auto.commit": False})

    def __enter__(self) -> HandPipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def carry(self) -> int:
        """Everything that is in the message log now, and report that it is done; returns how many copies were made."""
        ends = self._ends()
        wanted = {one: self._next.get(one, 0) for one, end in ends.items() if self._next.get(one, 0) < end}
        copies = 0
        if wanted:
            self._consumer.assign([TopicPartition(self._log, one, offset) for one, offset in wanted.items()])

        def is_read() -> bool:
            nonlocal copies
            for message in self._consumer.consume(500, 0.1) if wanted else ():
                if message.error() is not None:  # the client tries it again by itself
                    continue
                partition, offset = message.partition() or 0, message.offset() or 0
                source = encode_source(position_of(partition, offset))
                headers = cast("list[tuple[str, bytes]]", message.headers() or [])
                for name, value in headers:
                    if name == STAMP:
                        kept = [pair for pair in headers if pair[0] != STAMP] + [(STAMP, value), source]
                        log = value.split(b";")[0].decode()
                        self._producer.produce(log, message.value(), message.key(), headers=kept)  # type: ignore[arg-type]
                        copies += 1
                self._next[partition] = offset + 1
            return all(self._next.get(one, 0) >= ends[one] for one in wanted)

        wait_until(is_read, READ_S, "the message log is read")
        assert self._producer.flush(READ_S) == 0
        self.report(ends)
        return copies

    def report(self, ends: dict[int, int] | None = None) -> None:
        """Say that all before these offsets is done."""
        with suppress(KafkaException):  # it may be there
            self._kafka.create_topic(self._progress, settings=TOPIC_SETTINGS)
        for partition, end in (ends or self._ends()).items():
            self._producer.produce(self._progress, str(end).encode(), progress_key(QUERY, partition))
        assert self._producer.flush(READ_S) == 0

    def _ends(self) -> dict[int, int]:
        partitions = self._consumer.list_topics(self._log, timeout=READ_S).topics[self._log].partitions
        return {
            one: self._consumer.get_watermark_offsets(TopicPartition(self._log, one), timeout=READ_S)[1]
            for one in partitions
        }
