"""A message log in Kafka whose offsets are known beyond its end: it goes on in another partition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]
from tests.contracts.kafka_stores import PACKET_BYTES_MAX, KafkaStores
from tests.contracts.stores import tick_writes
from tests.contracts.test_tick_store import payloads, record
from tests.integration.test_kafka_log import leave, serve
from tests.support.kafka_server import KafkaServer
from tests.support.redis_server import RedisServer

from embermq.adapters.kafka import log_topic
from embermq.adapters.kafka.address import KafkaSettings
from embermq.adapters.kafka.log_topic import KEPT, RECORD_LIMIT, continue_behind, message_topic
from embermq.formats.pipeline_progress import LOG_HEADER, TOPIC_SETTINGS, progress_key, progress_topic
from embermq.model.position import position_of
from embermq.ports.errors import StoreUnavailable
from embermq.ports.tick_store import Receipt


@pytest.fixture
def stores(kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path) -> Iterator[KafkaStores]:
    opened = KafkaStores(kafka, redis_server.url, tmp_path)
    yield opened
    opened.close()


def publish_progress(stores: KafkaStores, kafka: KafkaServer, next_offset: int, partition: int = 0) -> None:
    """As the pipeline does it."""
    topic = progress_topic(stores.settings.prefix)
    kafka.create_topic(topic, settings=TOPIC_SETTINGS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    headers: dict[str, str | bytes | None] = {LOG_HEADER: stores.topic.identity().encode()}
    producer.produce(topic, str(next_offset).encode(), progress_key("archive", partition), headers=headers)
    assert producer.flush(30) == 0


def test_a_start_after_a_kill_that_has_lost_nothing_changes_nothing(stores: KafkaStores) -> None:
    stores.write(records=[record(b"%d" % number, f"t/{number}") for number in range(20)])
    for _ in range(2):
        leave(stores)
        stores.reopen()
        assert stores.positions.ends() == {0: 20}
    stores.reopen()  # in order
    assert stores.positions.ends() == {0: 20}


@pytest.mark.parametrize("who", ["pipeline", "broker"])
def test_what_was_known_behind_the_end_is_not_given_again(
    stores: KafkaStores, kafka: KafkaServer, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    stores.write(records=[record(b"%d" % number) for number in range(20)], dispatcher_floor=5)
    if who == "pipeline":
        publish_progress(stores, kafka, 120)
        leave(stores)
    else:
        stores.writer_of_state.note_log(120, 0, 0, lambda: None)
        leave(stores)
    stores.reopen()
    assert "has lost its end: partition 0 ends at offset 20, partition 0 was known up to 120" in caplog.text
    assert stores.positions.ends() == {0: 20, 1: 0}
    assert stores.write(records=[record(b"20"), record(b"21")]) == Receipt(position_of(1, 0), 2)
    assert payloads(stores) == [b"%d" % number for number in range(22)]
    caplog.clear()
    for leaves in (leave, KafkaStores.close):
        leaves(stores)
        stores.reopen()
        assert (caplog.text, stores.positions.ends()) == ("", {0: 20, 1: 2}), "once is enough"
    assert payloads(stores) == [b"%d" % number for number in range(22)]
    stores.log.trim(position_of(1, 1))
    assert payloads(stores) == [b"21"]


def test_a_log_that_loses_its_end_under_a_broker_ends_it_and_goes_on_elsewhere(stores: KafkaStores) -> None:
    stores.write(records=[record(b"0"), record(b"1")])
    stores.positions._end += 5  # as if it had written so many more
    stores.submit(tick_writes(records=[record(b"2")]))
    serve(stores, lambda: bool(stores.failures), "the broker ends")
    (failure,) = stores.failures
    assert "has lost its end, 5 records that it had confirmed" in str(failure)
    stores.reopen()
    assert stores.positions.end == position_of(1, 0)
    assert payloads(stores) == [b"0", b"1", b"2"]


def test_a_partition_that_was_added_and_not_used_is_used_at_the_next_start(stores: KafkaStores) -> None:
    stores.write(records=[record(b"0")])
    continue_behind(stores.admin, stores.topic, stores.positions, 900)
    leave(stores)
    stores.reopen()
    assert stores.positions.end == position_of(1, 0)


def test_a_pipeline_that_cannot_be_asked_does_not_stop_a_start(
    stores: KafkaStores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> dict[int, int]:
        raise StoreUnavailable("away")

    stores.write(records=[record(b"0")])
    leave(stores)
    monkeypatch.setattr(log_topic, "_told_offsets", fail)
    stores.reopen()
    assert "how far the pipeline is cannot be asked: away" in caplog.text
    assert stores.positions.ends() == {0: 1}


def test_partitions_that_an_operator_has_made_are_none_that_was_lost(
    kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = KafkaSettings(prefix=kafka.prefix())
    name = message_topic(settings.prefix)
    kafka.create_topic(name, partitions=3, settings=KEPT | {RECORD_LIMIT: str(4 * PACKET_BYTES_MAX)})
    stores = KafkaStores(kafka, redis_server.url, tmp_path, settings)
    assert stores.write(records=[record(b"0"), record(b"1")]) == Receipt(position_of(2, 0), 2)
    kafka.admin.create_partitions([NewPartitions(name, 4)])[name].result(30)
    stores.reopen()
    assert stores.write(records=[record(b"2")]) == Receipt(position_of(3, 0), 1)
    stores.reopen()
    assert stores.positions.ends() == {0: 0, 1: 0, 2: 2, 3: 1}
    assert payloads(stores) == [b"0", b"1", b"2"]
    statistics = stores.log.statistics()
    assert (statistics.start_offset, statistics.end_offset) == (position_of(2, 0), position_of(3, 1))
    stores.log.trim(statistics.end_offset)
    assert payloads(stores) == []
    assert "lost" not in caplog.text
    stores.close()


def test_a_topic_that_was_made_anew_goes_on_behind_what_was_known(
    stores: KafkaStores, kafka: KafkaServer
) -> None:
    stores.write(records=[record(b"0"), record(b"1")])
    stores.close()
    name = stores.topic.name
    kafka.delete_topic(name)
    kafka.create_topic(name, settings=KEPT | {RECORD_LIMIT: str(4 * PACKET_BYTES_MAX)})
    for _ in range(2):
        stores.reopen()
        assert stores.positions.ends() == {0: 0, 1: 0}
    assert stores.write(records=[record(b"2")]) == Receipt(position_of(1, 0), 1)
