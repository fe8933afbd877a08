"""Single records of the message log in a real Kafka, for many that want some at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import pytest
from tests.contracts.kafka_stores import KafkaStores
from tests.contracts.test_tick_store import record
from tests.support.kafka_server import KafkaServer
from tests.support.redis_server import RedisServer

from embermq.adapters.kafka import reading
from embermq.adapters.kafka.client import Failures
from embermq.adapters.kafka.reading import KafkaSourceRecords, PartitionReader
from embermq.ports.errors import StoreError
from embermq.ports.source_records import FoundRecords

ANSWER_S = 60.0
COUNT = 300


@pytest.fixture
def stores(kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path) -> Iterator[KafkaStores]:
    opened = KafkaStores(kafka, redis_server.url, tmp_path)
    yield opened
    opened.close()


def test_those_who_ask_at_once_share_a_thread_and_what_it_reads(
    stores: KafkaStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.write(records=[record(b"%d" % number, "a") for number in range(COUNT)])
    may_begin = threading.Event()
    begun: list[str] = []

    def gated(*args: object, **options: object) -> PartitionReader:
        begun.append(threading.current_thread().name)
        assert may_begin.wait(ANSWER_S)
        return PartitionReader(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "PartitionReader", gated)
    monkeypatch.setattr(reading, "WANTED_AT_ONCE", 90)
    monkeypatch.setattr(reading, "NEAR_RECORDS", 10)
    answers: SimpleQueue[tuple[int, FoundRecords | StoreError]] = SimpleQueue()

    def post(call: object) -> None:
        call()  # type: ignore[operator]

    records = KafkaSourceRecords(stores.address, stores.settings, stores.topic.name, post, Failures())
    for asker in range(10):
        wanted = list(range(asker, COUNT + 50, 30))
        records.fetch(wanted, partial(lambda asker, answer: answers.put((asker, answer)), asker))
    assert [one.name for one in threading.enumerate()].count("kafka source records") == 1
    may_begin.set()
    for _ in range(10):
        asker, answer = answers.get(timeout=ANSWER_S)
        assert not isinstance(answer, StoreError)
        found = {position: one.message.payload for position, one in answer.items()}
        assert found == {position: b"%d" % position for position in range(asker, COUNT, 30)}
    assert 2 <= len(begun) <= 3


def test_an_error_that_nobody_foresaw_is_an_answer_and_the_next_who_ask_get_theirs(
    stores: KafkaStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.write(records=[record(b"0", "a")])
    answers: SimpleQueue[FoundRecords | StoreError] = SimpleQueue()
    failures = Failures()

    def post(call: object) -> None:
        call()  # type: ignore[operator]

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    records = KafkaSourceRecords(stores.address, stores.settings, stores.topic.name, post, failures)
    for place, error in ((reading, "PartitionReader"), (threading.Thread, "start")):
        with monkeypatch.context() as broken:
            broken.setattr(place, error, no_thread if error == "start" else fail)
            records.fetch([0], answers.put)
            assert isinstance(answers.get(timeout=ANSWER_S), StoreError)
        records.fetch([0], answers.put)
        answer = answers.get(timeout=ANSWER_S)
        assert not isinstance(answer, StoreError) and list(answer) == [0]
    assert failures.count == 1


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
