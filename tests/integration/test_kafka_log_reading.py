"""Reading the message log in a real Kafka where something else is in it than records in a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.contracts.kafka_stores import KafkaStores
from tests.contracts.test_tick_store import payloads, record
from tests.support.kafka_server import KafkaServer
from tests.support.redis_server import RedisServer

from embermq.formats.log_record import decode_record, iter_frames
from embermq.ports.tick_store import Receipt

BACK_S = 60.0


@pytest.fixture
def stores(kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path) -> Iterator[KafkaStores]:
    opened = KafkaStores(kafka, redis_server.url, tmp_path)
    yield opened
    opened.close()


def test_transactions_of_somebody_else_neither_hide_records_nor_stop_a_start(
    stores: KafkaStores, kafka: KafkaServer
) -> None:
    stores.write(records=[record(b"0", "a"), record(b"1", "b")])
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": kafka.prefix()})
    producer.init_transactions(BACK_S)
    producer.begin_transaction()
    producer.produce(stores.topic.name, b"not ours", b"a", partition=0)
    producer.commit_transaction(BACK_S)
    stores.reopen()  # the partition ends with an offset that no record has
    producer.begin_transaction()
    producer.produce(stores.topic.name, b"never committed", b"a", partition=0)
    assert producer.flush(BACK_S) == 0
    assert stores.write(records=[record(b"2", "a")]) == Receipt(5, 1)
    assert payloads(stores) == [b"0", b"1", b"2"]
    producer.abort_transaction(BACK_S)
    stores.reopen()
    assert stores.write(records=[record(b"3", "a")]) == Receipt(7, 1)


def test_reading_can_begin_anew_anywhere(stores: KafkaStores) -> None:
    stores.write(records=[record(b"%d" % number) for number in range(300)])
    assert len(stores.log.read(0, records_max=3, bytes_max=9_999)) == 1
    (batch,) = stores.log.read(50, records_max=999, bytes_max=99_999)
    found = [decode_record(frame).message.payload for frame in iter_frames(batch.body)]
    assert found == [b"%d" % number for number in range(50, 300)]
