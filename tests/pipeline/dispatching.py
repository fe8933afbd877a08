"""Dispatch in the Spark of this process, kept alive as by the driver; and what its records say."""

import threading

from confluent_kafka import Message
from pyspark.sql import SparkSession
from tests.pipeline.kafka_topics import EveryLogWanted, LogInKafka

from embermq.pipeline.jobs.application_topics import SessionTopics
from embermq.pipeline.jobs.kafka_dispatch import KafkaDispatch
from embermq.pipeline.jobs.query_job import JobSetup, KafkaSide
from embermq.pipeline.keeper import Keeper
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings, Mode
from embermq.pipeline.turns import Turns


def setup_of(
    log: LogInKafka,
    places: Places,
    mode: Mode = "auto",
    *,
    target_wait_ms: int = 2_000,
    producer_bytes_max: int = 64 * 1024 * 1024,
    sessions: SessionTopics | None = None,
    rest: tuple[float, int] = (120.0, 30),
) -> JobSetup:
    settings = DriverSettings(
        queries=("dispatch",),
        target_wait_ms=target_wait_ms,
        producer_bytes_max=producer_bytes_max,
        backoff_first_ms=1,
        mode=mode,
        rest_after_s=rest[0],
        rest_batch_s=rest[1],
    )
    return JobSetup(settings, places, KafkaSide(log.positions, sessions or EveryLogWanted(log.positions)))


def header(message: Message, name: str) -> str:
    found = [one[1] for one in message.headers() or [] if one[0] == name]
    assert len(found) == 1 and isinstance(found[0], bytes), (name, message.headers())
    return found[0].decode()


def payloads(log: LogInKafka, topic: str) -> list[bytes]:
    return [bytes(one.value() or b"") for one in log.read(topic)]


class Running:
    """A keeper of dispatch in this process's Spark, as the driver has one."""

    def __init__(self, spark: SparkSession, setup: JobSetup) -> None:
        self._spark = spark
        self._stopping = threading.Event()
        self.keeper = Keeper(KafkaDispatch, setup, spark, self._stopping, Turns(["dispatch"]))
        self.keeper.start()

    def __enter__(self) -> Keeper:
        return self.keeper

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for query in self._spark.streams.active:
            query.stop()
