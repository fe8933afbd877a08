"""Kafka as the broker fills it and readers see it: records into the message log, whole topics out of it."""

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.support.kafka_server import delete_topics
from tests.support.waiting import wait_until

from embermq.formats.kafka_record import KafkaEncoder
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.sources.kafka_positions import KafkaPositions

DEADLINE_S = 90.0


class EveryLogWanted:
    """In the broker's place: makes each application log again that is asked for."""

    def __init__(self, positions: KafkaPositions) -> None:
        self._positions = positions

    def restore(self, topic: str) -> int | None:
        self._positions.ensure_topic(topic)
        return None


class LogInKafka:
    """The topics of one broker, with a producer."""

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        partitions: int = 2,
        *,
        record_bytes_max: int = 0,
        slot: int | None = None,
    ) -> None:
        self.kafka = KafkaLog(
            bootstrap=bootstrap, prefix=prefix, record_bytes_max=record_bytes_max, slot=slot
        )
        self.positions = KafkaPositions(self.kafka)
        self.positions.ensure_topic(self.kafka.log_topic, partitions)
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self.written = 0
        self._encoder = KafkaEncoder()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 0, "acks": "all"}
        )

    def log(self, name: str, *, takes: int = 0) -> str:
        """An application log, made when it is not there; `takes` so many bytes of a record at most."""
        topic = f"{self.kafka.application_prefix}{name}"
        self.positions.ensure_topic(topic, settings={"max.message.bytes": str(takes)} if takes else {})
        return topic

    def make(self, topic: str, partitions: int) -> None:
        """At once: nobody looks whether its partitions have leaders yet."""
        self._admin.create_topics([NewTopic(topic, partitions)])[topic].result(DEADLINE_S)

    def delete(self, topic: str) -> None:
        """Nothing gets into it any more when it returns."""
        delete_topics(self._admin, topic)

    def trim(self, begin: Mapping[int, int]) -> None:
        """Below these offsets the message log has nothing any more."""
        wanted = [TopicPartition(self.kafka.log_topic, number, at) for number, at in begin.items()]
        for done in self._admin.delete_records(wanted).values():
            done.result(DEADLINE_S)

    def append(self, frames: Iterable[bytes]) -> None:
        """Records of `encode_record`, numbered on; stored when it returns."""
        for frame in frames:
            outgoing = self._encoder.encode(frame)
            self.append_raw(outgoing.key, outgoing.value, outgoing.headers)
        assert not self._producer.flush(DEADLINE_S)

    def append_raw(self, key: bytes, value: bytes, headers: list[tuple[str, bytes | None]]) -> None:
        """One record as it is; may still be on its way when it returns."""
        self._producer.produce(self.kafka.log_topic, value, key, headers=headers)  # type: ignore[arg-type]
        self._producer.poll(0)
        self.written += 1

    def flush(self) -> None:
        assert not self._producer.flush(DEADLINE_S)

    def wait_for_progress(self, query: str, *, what: str = "") -> None:
        """Until a query has published the whole log as done."""

        def is_done() -> bool:
            done = self.positions.progress().get(query, {})
            bounds = self.positions.bounds()
            return all(done.get(number, 0) >= found.end for number, found in bounds.items())

        wait_until(is_done, DEADLINE_S, what or f"{query} has done everything", poll_s=0.2)

    def ends(self) -> dict[int, int]:
        """Of the message log, by partition."""
        return self._ends(self.kafka.log_topic)

    def read(self, topic: str, *, shown: int | None = None) -> list[Message]:
        """All that a topic has now, partition by partition: `shown` records, if some offsets have none."""
        ends = self._ends(topic)
        consumer = Consumer(
            {"bootstrap.servers": self.kafka.bootstrap, "group.id": "tests", "enable.auto.commit": False}
        )
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in ends])
            found: list[Message] = []
            deadline_s = time.monotonic() + DEADLINE_S
            wanted = sum(ends.values()) if shown is None else shown
            while len(found) < wanted:
                assert time.monotonic() < deadline_s, f"{topic} has {len(found)} of {ends}"
                found += [message for message in consumer.consume(1_000, 0.2) if message.error() is None]
        finally:
            consumer.close()
        return sorted(found, key=lambda message: (message.partition() or 0, message.offset() or 0))

    def count(self, topic: str) -> int:
        """How many records a topic has; 0 when it is not there."""
        return sum(self._ends(topic).values()) if topic in self.positions.topics() else 0

    def _ends(self, topic: str) -> dict[int, int]:
        return {number: found.end for number, found in self.positions.bounds(topic).items()}
