"""A broker that another one has taken the log over from writes nothing more into it, whenever it wakes up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.contracts.kafka_stores import KafkaStores
from tests.contracts.stores import tick_writes
from tests.contracts.test_tick_store import payloads, record
from tests.support.kafka_server import KafkaServer
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

from embermq.adapters.kafka import log_producer
from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.ports.errors import TakenOver

WAIT_S = 60.0
Open = Callable[[], KafkaStores]


@pytest.fixture(autouse=True)
def threads_end_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver whose producer is fenced may raise in its thread what is no exception, which pytest cannot show."""
    monkeypatch.setattr(threading, "excepthook", lambda _thread: None)


@pytest.fixture
def opens(kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path) -> Iterator[Open]:
    """Opens the stores of one more broker of a cluster."""
    settings, opened = KafkaSettings(prefix=kafka.prefix()), []

    def open_one() -> KafkaStores:
        opened.append(KafkaStores(kafka, redis_server.url, tmp_path, settings, fence="one-log"))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def serve(stores: KafkaStores, is_done: Callable[[], object], what: str) -> None:
    """Be the broker's thread until something is so."""

    def look() -> bool:
        while not stores.posted.empty():
            stores.posted.get()()
        return bool(is_done())

    wait_until(look, WAIT_S, what)


def is_taken_over(stores: KafkaStores) -> bool:
    return any(isinstance(one, TakenOver) for one in stores.failures)


@pytest.mark.parametrize("commit_s", [60.0, 0.0], ids=["in a transaction", "between two"])
def test_nothing_of_a_broker_before_gets_into_a_log_that_was_taken_over(
    opens: Open, monkeypatch: pytest.MonkeyPatch, commit_s: float
) -> None:
    monkeypatch.setattr(log_producer, "COMMIT_S", commit_s)
    old = opens()
    old.write(records=[record(b"confirmed"), record(b"too")])
    serve(old, lambda: commit_s or old.positions.skipped, "it is committed")
    new = opens()
    assert payloads(new) == [b"confirmed", b"too"]
    end = new.positions.end
    answers = old.submit(tick_writes(records=[record(b"late"), record(b"later")]))
    new.write(records=[record(b"next")])
    serve(old, lambda: is_taken_over(old), "it learns of it")
    assert answers == [] and "has a newer writer" in str(old.failures[0])
    receipt = new.write(records=[record(b"last")])
    assert receipt.base_offset in (end + 2, end + 3)
    assert payloads(new) == [b"confirmed", b"too", b"next", b"last"]


def test_what_is_under_way_when_the_log_is_taken_over_is_read_or_never_confirmed(opens: Open) -> None:
    old = opens()
    confirmed: list[bytes] = []
    for number in range(10):
        sent = [record(b"%d.%d" % (number, index)) for index in range(20)]
        old.write(records=sent)
        confirmed += [b"%d.%d" % (number, index) for index in range(20)]
        answers = old.submit(tick_writes(records=[record(b"%d.way" % number)]))
        new = opens()
        found = payloads(new)
        serve(old, lambda: answers or is_taken_over(old), "it is known what became of it")  # noqa: B023
        if answers:
            confirmed.append(b"%d.way" % number)
        is_kept = b"%d.way" % number in found
        assert is_kept >= bool(answers)
        if is_kept and not answers:
            confirmed.append(b"%d.way" % number)
        assert found == confirmed
        old = new
    assert payloads(old) == confirmed


def test_transactions_end_between_ticks_and_take_one_offset_each(
    opens: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_producer, "COMMIT_S", 0.0)
    stores = opens()
    sent = [b"%d" % number for number in range(30)]
    at = 0
    for payload in sent:
        receipt = stores.write(records=[record(payload)])
        assert receipt.base_offset in (at, at + 1)
        at = receipt.base_offset + 1
        if payload.endswith(b"5"):
            serve(stores, lambda: not stores.appender._is_committing, "it is committed")
    assert at > len(sent)
    assert payloads(stores) == sent
    assert not stores.failures and "did not write" not in caplog.text
    again = opens()
    assert (again.positions.end, again.positions.skipped) == (at, 1), (
        "readers never come to the end of a transaction"
    )
    assert payloads(again) == sent
    again.write(records=[record(b"more")])
    assert payloads(again) == [*sent, b"more"]
    assert again.positions.partition == 0, "nothing seemed to be lost"


def test_a_transaction_that_is_left_open_is_committed_when_nothing_comes(
    opens: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_producer, "COMMIT_S", 0.2)
    stores = opens()
    stores.write(records=[record(b"alone")])
    serve(stores, lambda: stores.positions.skipped, "it is committed")


def test_a_driver_that_breaks_off_is_asked_again_why_it_cannot_go_on(kafka: KafkaServer) -> None:
    class Broken:
        answers: ClassVar[list[Exception]] = [
            SystemError("returned NULL without setting an exception"),
            KafkaException(KafkaError(KafkaError._TIMED_OUT)),
            KafkaException(KafkaError(KafkaError._FENCED)),
        ]

        def commit_transaction(self, _wait_s: float) -> None:
            raise self.answers.pop(0)

    address, settings = parse_address(f"kafka://{kafka.bootstrap}"), KafkaSettings(prefix=kafka.prefix())
    producer = log_producer.LogProducer(address, settings, record_bytes_max=1_000, fence="why")
    producer.driver = Broken()  # type: ignore[assignment]
    assert producer.is_taken_over()
