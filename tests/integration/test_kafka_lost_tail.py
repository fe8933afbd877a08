"""A message log in Kafka whose offsets are known beyond its end: they are used up before the first record comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from msgspec import structs
from tests.contracts.kafka_stores import KafkaStores
from tests.contracts.test_tick_store import payloads, record
from tests.integration.test_kafka_log import leave
from tests.support.kafka_server import KafkaServer

from embermq.adapters.kafka import lost_tail
from embermq.adapters.kafka.message_log import DEFAULT_RECORD_BYTES, find_end
from embermq.formats.pipeline_progress import LOG_HEADER, TOPIC_SETTINGS, progress_key, progress_topic
from embermq.ports.errors import StoreUnavailable

LATE = 40


@pytest.fixture
def stores(kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaStores]:
    monkeypatch.setattr(lost_tail, "LATE_RECORDS", LATE)
    opened = KafkaStores(kafka, tmp_path)
    yield opened
    opened.close()


def publish_progress(stores: KafkaStores, kafka: KafkaServer, next_offset: int) -> None:
    """Of partition 0, as the pipeline does it."""
    topic = progress_topic(stores.settings.prefix)
    kafka.create_topic(topic, settings=TOPIC_SETTINGS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    headers: dict[str, str | bytes | None] = {LOG_HEADER: stores.topic.identity().encode()}
    producer.produce(topic, str(next_offset).encode(), progress_key("archive", 0), headers=headers)
    assert producer.flush(30) == 0


def ends(stores: KafkaStores) -> tuple[int, ...]:
    return stores.positions.end().offsets


def test_a_start_after_a_kill_that_has_lost_nothing_writes_nothing(stores: KafkaStores) -> None:
    stores.write(records=[record(b"%d" % number, f"t/{number}") for number in range(20)])
    before = ends(stores)
    for _ in range(2):
        leave(stores)
        stores.reopen()
        assert ends(stores) == before
    stores.reopen()  # in order
    assert ends(stores) == before


def test_what_the_pipeline_has_published_is_passed_and_nobody_reads_what_fills(
    stores: KafkaStores, kafka: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    stores.write(records=[record(b"%d" % number, f"t/{number}") for number in range(20)])
    before = ends(stores)
    publish_progress(stores, kafka, before[0] + 100)
    leave(stores)
    stores.reopen()
    filled = ends(stores)
    assert filled[0] == before[0] + 100 + LATE
    assert all(end >= old for end, old in zip(filled, before, strict=True))
    assert "no record of this broker" not in caplog.text
    assert payloads(stores) == [b"%d" % number for number in range(20)]
    leave(stores)
    stores.reopen()
    assert ends(stores) == filled
    assert stores.log.statistics().body_bytes == 20 * DEFAULT_RECORD_BYTES, "fillers take no room"
    assert payloads(stores) == [b"%d" % number for number in range(20)]
    stores.write(records=[record(b"new", f"t/{number}") for number in range(20)])
    assert payloads(stores) == [b"%d" % number for number in range(20)] + [b"new"] * 20
    after = ends(stores)
    leave(stores)
    caplog.clear()
    stores.reopen()
    assert ends(stores) == after, "once is enough"
    assert caplog.text == ""
    stores.log.trim(stores.positions.end().number)
    assert len(payloads(stores)) == 1, "the last record tells the number"


def test_a_log_of_fillers_alone_at_its_end_has_its_number(
    stores: KafkaStores, kafka: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    """More of them than are looked at."""
    stores.write(records=[record(b"0", "a")])
    publish_progress(stores, kafka, 500)
    leave(stores)
    stores.reopen()
    begun = stores.positions.end()
    caplog.clear()
    leave(stores)
    stores.reopen()
    assert caplog.text == ""
    assert stores.positions.end().number >= begun.number
    assert ends(stores) == begun.offsets


def test_a_fill_that_was_broken_off_goes_on_at_the_next_start(
    stores: KafkaStores, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.write(records=[record(b"%d" % number, f"t/{number}") for number in range(20)])
    before = ends(stores)
    publish_progress(stores, kafka, before[0] + 5)
    leave(stores)
    wait, rounds = lost_tail._Fill.wait, []

    def end(fill: lost_tail._Fill) -> None:
        wait(fill)
        rounds.append(1)
        raise StoreUnavailable("killed")

    with monkeypatch.context() as broken:
        broken.setattr(lost_tail, "FILLED_AT_ONCE", 10)
        broken.setattr(lost_tail._Fill, "wait", end)
        with pytest.raises(StoreUnavailable, match="killed"):
            stores.reopen()
    assert rounds == [1]
    stores.writer.close()
    stores._closing = []
    stores.reopen()
    assert ends(stores)[0] == before[0] + 5 + LATE


def test_records_that_stand_where_others_were_noted_are_a_loss(
    stores: KafkaStores, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of a tick that nobody was told of, at the offsets of records that are gone."""
    stores.write(records=[record(b"0", "a"), record(b"1", "a")])
    leave(stores)
    stores.reopen()
    known = stores.state.known_log()
    assert known.identity == stores.topic.identity()
    caplog.clear()
    before = ends(stores)
    noted_before = structs.replace(known, noted_number=1)
    found = find_end(stores.admin, stores.topic.name, noted_before, known.identity)
    assert max(found.positions.end().offsets) == max(known.noted_offsets) + LATE
    assert max(before) == max(known.noted_offsets)
    assert "has lost its end" in caplog.text
