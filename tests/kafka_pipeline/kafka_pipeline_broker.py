"""One broker with its log in Kafka and its pipeline, for all tests of a process; and what tests ask of it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.kafka_server import KafkaCluster, KafkaServer
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_until

from embermq.adapters.kafka.client import may_work_later

RUNS_S = 180.0
READ_S = 30.0
Kafka = TypeVar("Kafka", KafkaServer, KafkaCluster)


class PipelineBroker(BrokerProcess, Generic[Kafka]):
    """May be killed and started again by a test; `heal` puts it right for the next one. Its Redis is its own."""

    def __init__(self, kafka: Kafka, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self.kafka: Kafka = kafka
        self.prefix: str = kafka.prefix()
        self.redis = RedisServer(folder / "redis")
        own: dict[str, object] = on_servers(kafka, self.redis, self.prefix) | {
            "clients.application_ids": json.dumps(["app*"]),
            "device.queue_limit": 60_000,
            "log.retention_hours": 0.001,
            "pipeline.queries": json.dumps(["dispatch", "archive"]),
        }
        super().__init__(folder / "data", pipeline=True, settings=own | dict(settings or {}))
        # So long the pipeline is down for everybody to see.
        self.constants["embermq.pipeline.settings.BACKOFF_FIRST_MS"] = 3_000

    def launch(self) -> None:
        if not self.redis.is_running:
            self.redis.start()
        super().launch()

    def close(self) -> None:
        super().close()
        self.redis.close()

    def heal(self) -> None:
        """Kafka, broker and pipeline run."""
        self.kafka.heal()
        if not self.is_running:
            self.start()
        self.wait_for_pipeline()

    def status(self) -> dict[str, Any]:
        """Of the pipeline, as REST tells it."""
        answer = httpx.get(f"http://127.0.0.1:{self.http_port}/api/v1/pipeline", timeout=READ_S)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def query(self, name: str) -> dict[str, Any]:
        """What status has of one query; {} before it has any."""
        return next((query for query in self.status()["queries"] if query["name"] == name), {})

    def wait_for_pipeline(self) -> None:
        wait_until(
            lambda: self.query("dispatch").get("state") == "running",
            RUNS_S,
            "dispatch runs",
            poll_s=0.1,
        )

    def kill_driver(self) -> int:
        """kill -9 of Spark's driver; the process id that it had."""
        pid = int(self.status()["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def command_line(self, *words: str) -> str:
        """What `embermq WORDS...` prints with this broker's settings."""
        given: list[str] = [
            word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")
        ]
        done = run_program(*words, "--data-dir", self.data_dir, *given, timeout_s=RUNS_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log_of(self, client_id: str) -> str:
        """The application log of a client whose id is plain."""
        return f"{self.prefix}.msg.app.{client_id}"

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """First offset and end of each partition; {} without such a topic. A partition that has no leader yet is asked
        again."""
        consumer = self._consumer()
        found: dict[int, tuple[int, int]] = {}

        def is_told() -> bool:
            found.clear()
            partitions = consumer.list_topics(topic, timeout=READ_S).topics[topic].partitions
            try:
                for number in partitions:
                    place = TopicPartition(topic, number)
                    found[number] = consumer.get_watermark_offsets(place, timeout=READ_S)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:  # gone since it was listed
                    found.clear()
                    return True
                if not may_work_later(error.args[0]):
                    raise
                return False
            return True

        try:
            wait_until(is_told, READ_S, f"{topic} has leaders")
        finally:
            consumer.close()
        return found

    def count(self, topic: str) -> int:
        """How many records a topic has; 0 while it is not there."""
        try:
            return sum(end - first for first, end in self.bounds(topic).values())
        except KafkaException:
            return 0

    def records(self, topic: str) -> list[Message]:
        """All that a topic has now, partition by partition."""
        bounds = {one: found for one, found in self.bounds(topic).items() if found[0] < found[1]}
        consumer, found, left = self._consumer(), [], set(bounds)
        try:
            consumer.assign([TopicPartition(topic, one, first) for one, (first, _) in bounds.items()])

            def is_read() -> bool:
                for message in consumer.consume(1_000, 0.2):
                    if message.error() is not None:  # the client tries it again by itself
                        continue
                    found.append(message)
                    partition = message.partition() or 0
                    if (message.offset() or 0) + 1 >= bounds[partition][1]:
                        left.discard(partition)
                return not left

            wait_until(is_read, READ_S, f"{topic} is read")
        finally:
            consumer.close()
        return sorted(found, key=lambda message: (message.partition() or 0, message.offset() or 0))

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap,
                "group.id": "tests",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )


KafkaPipelineBroker = PipelineBroker[KafkaServer]
