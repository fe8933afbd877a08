"""The broker hears how far the pipeline's queries are: from the topic that the pipeline writes, on a real Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]
from tests.support.kafka_server import KafkaServer
from tests.support.waiting import wait_until

from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.log_topic import LogTopic
from embermq.adapters.kafka.pipeline_progress import KafkaPipelineProgress
from embermq.model.position import OFFSET_END
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.log_look import Bounds, behind, records_at
from embermq.pipeline.sources.kafka_positions import KafkaPositions

HEARD_S = 30.0


class Place:
    """One message log, the pipeline's word, and the broker's ear."""

    def __init__(self, kafka: KafkaServer) -> None:
        self.kafka = kafka
        self.settings = KafkaSettings(prefix=kafka.prefix())
        self.address = parse_address(f"kafka://{kafka.bootstrap}")
        self.topic = LogTopic(WatchedAdmin(self.address, self.settings), packet_bytes_max=1024)
        self.topic.open(is_new=True)
        self.pipeline = KafkaPositions(KafkaLog(bootstrap=kafka.bootstrap, prefix=self.settings.prefix))
        self.broker = self.listen()

    def listen(self) -> KafkaPipelineProgress:
        """A broker that starts now."""
        self.closed: dict[int, int] = {}
        return KafkaPipelineProgress(self.address, self.settings, self.topic.identity(), closed=self.closed)

    def is_there(self, name: str) -> bool:
        return name in self.pipeline.topics()

    def hears(self, query: str, positions: dict[int, int]) -> None:
        wait_until(
            lambda: self.broker.positions(query) == positions,
            HEARD_S,
            f"{query} at {positions}, heard: {self.broker.positions(query)}, {self.broker.failing}",
        )


@pytest.fixture
def place(kafka: KafkaServer) -> Iterator[Place]:
    found = Place(kafka)
    yield found
    found.broker.close()


def test_a_partition_that_gets_nothing_more_and_was_passed_is_complete(place: Place) -> None:
    place.pipeline.publish("dispatch", {0: 7})
    place.hears("dispatch", {0: 7})
    assert place.broker.complete("dispatch") == {0: 7}
    place.closed[0] = 8  # a start finds so late that the log has lost its end
    assert place.broker.complete("dispatch") == {0: 7}
    place.closed[0] = 7
    assert place.broker.complete("dispatch") == {0: OFFSET_END}


@pytest.mark.promise("application-3", "pipeline-5")
def test_progress_is_heard_and_only_grows(place: Place) -> None:
    assert place.broker.positions("dispatch") == {} and not place.broker.failing
    place.pipeline.publish("dispatch", {0: 5})
    place.pipeline.publish("archive", {0: 3, 1: 4})
    place.hears("dispatch", {0: 5})
    before = place.broker.positions("dispatch")
    place.pipeline.publish("dispatch", {0: 4, 1: 9})
    place.hears("dispatch", {0: 5, 1: 9})
    assert before == {0: 5}, "a snapshot"
    place.hears("archive", {0: 3, 1: 4})
    place.kafka.delete_topic(place.pipeline.kafka.progress_topic)
    again = KafkaPositions(place.pipeline.kafka)
    again.publish("dispatch", {0: 4, 1: 12})
    place.hears("dispatch", {0: 5, 1: 12})


@pytest.mark.in_faults
def test_kafka_may_be_away(place: Place) -> None:
    place.pipeline.publish("dispatch", {0: 5})
    place.hears("dispatch", {0: 5})
    place.kafka.kill()
    wait_until(lambda: place.broker.failing, HEARD_S, "said")
    assert place.broker.positions("dispatch") == {0: 5}
    place.kafka.heal()
    wait_until(lambda: not place.broker.failing, HEARD_S, "over")
    place.pipeline.publish("dispatch", {0: 6})
    place.hears("dispatch", {0: 6})


def test_progress_of_a_message_log_that_was_made_anew_says_nothing_of_this_one(place: Place) -> None:
    place.pipeline.publish("dispatch", {0: 5, 1: 5})
    place.hears("dispatch", {0: 5, 1: 5})
    place.kafka.delete_topic(place.topic.name)
    place.topic.open(is_new=True)
    place.broker.close()
    place.broker = place.listen()
    pipeline = KafkaPositions(place.pipeline.kafka)
    assert pipeline.progress() == {}
    pipeline.publish("dispatch", {1: 2})
    place.hears("dispatch", {1: 2})
    assert pipeline.progress() == {"dispatch": {1: 2}}


@pytest.mark.promise("pipeline-5")
def test_a_topic_that_was_made_a_moment_ago_is_asked_until_it_has_leaders(place: Place) -> None:
    """Its servers name it before they lead it."""
    for number in range(10):
        name = f"{place.settings.prefix}.new-{number}"
        place.kafka.admin.create_topics([NewTopic(name, 20)])[name].result(HEARD_S)
        wait_until(partial(place.is_there, name), HEARD_S, f"{name} is there")
        assert place.pipeline.bounds(name) == dict.fromkeys(range(20), Bounds(0, 0))


@pytest.mark.promise("pipeline-13", "pipeline-14")
def test_the_end_of_a_transaction_is_no_record_that_waits(place: Place) -> None:
    """In a cluster one stands behind the last record whenever nothing comes for a minute."""
    log = place.pipeline.kafka.log_topic
    first, next_one = (
        Producer({"bootstrap.servers": place.kafka.bootstrap, "transactional.id": place.settings.prefix})
        for _ in range(2)
    )

    def produce(producer: Producer, count: int) -> None:
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(log, b"x", partition=0)
        assert producer.flush(HEARD_S) == 0

    first.init_transactions(HEARD_S)
    produce(first, 2)
    assert place.pipeline.bounds() == {0: Bounds(0, 2)}
    first.commit_transaction(HEARD_S)
    bounds = {0: Bounds(0, 3, unused=1)}
    wait_until(lambda: place.pipeline.bounds() == bounds, HEARD_S, "Kafka writes it after its answer")
    assert behind(bounds, {0: 2}) == behind(bounds, {0: 3}) == {}
    assert behind(bounds, {0: 1}) == {0: 1} and records_at(bounds, {0: 1}) == 1
    produce(first, 1)
    assert place.pipeline.bounds() == {0: Bounds(0, 4)}
    next_one.init_transactions(HEARD_S)  # ends what the one before had open
    bounds = {0: Bounds(0, 5, unused=1)}
    wait_until(lambda: place.pipeline.bounds() == bounds, HEARD_S, "it is ended")
    place.kafka.admin.delete_records([TopicPartition(log, 0, 4)])[TopicPartition(log, 0)].result(HEARD_S)
    anew = KafkaPositions(place.pipeline.kafka)
    assert anew.bounds() == {0: Bounds(4, 5, unused=1)} and behind(anew.bounds(), {}) == {}
