"""Application logs made and deleted on their own thread, on a real Kafka that goes away, hangs and comes back."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from threading import Event

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin._config import ConfigResource
from tests.support.application_log_writer import ApplicationLogWriter, HandLoop
from tests.support.kafka_server import KafkaServer

from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.application_logs import KafkaApplicationLogs
from embermq.adapters.kafka.application_topics import ApplicationTopics, LogProperties
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.formats.application_logs import ApplicationLogNames
from embermq.ports.application_logs import FoundLog, LogSize
from embermq.ports.errors import StoreError, StoreUnavailable

PATIENCE_S = 30.0
HURRIED_S = 0.5
LOOK_S = 0.05
ROUNDS_S = 0.5
"""In which it is looked several times whether a log may be deleted."""
Found = FoundLog | StoreError


class HeldTopics(ApplicationTopics):
    """Deletes when `may_delete` is set; `deleting` when it is about to."""

    def __init__(self, admin: WatchedAdmin, names: ApplicationLogNames, properties: LogProperties) -> None:
        super().__init__(admin, names, properties)
        self.deleting, self.may_delete = Event(), Event()
        self.may_delete.set()

    def delete(self, logs: Collection[str]) -> None:
        self.deleting.set()
        assert self.may_delete.wait(30)
        super().delete(logs)


class Place:
    """A prefix of its own; `log_ends` and `dispatched` are the message log's and the pipeline's."""

    def __init__(self, kafka: KafkaServer, request_timeout_s: float = 10) -> None:
        self.kafka = kafka
        self.settings = KafkaSettings(prefix=kafka.prefix(), request_timeout_s=request_timeout_s)
        self.loop = HandLoop()
        self.writer = ApplicationLogWriter(kafka.bootstrap)
        self.log_ends = {0: 0, 1: 0}
        self.dispatched: dict[int, int] = {}
        self.names = ApplicationLogNames(self.settings.prefix)
        properties = LogProperties(packet_bytes_max=2_000_000, min_insync_replicas=1)
        admin = WatchedAdmin(parse_address(f"kafka://{kafka.bootstrap}"), self.settings)
        self.topics = HeldTopics(admin, self.names, properties)
        self.logs = KafkaApplicationLogs(
            self.topics,
            self.names,
            self.loop.post,
            log_ends=lambda: self.log_ends,
            dispatched=lambda: self.dispatched,
            patience_s=PATIENCE_S,
        )

    def asks(self, log: str, partitions: int = 1) -> list[Found]:
        answers: list[Found] = []
        self.logs.ensure(log, partitions, answers.append)
        return answers

    def finds(self, log: str, partitions: int = 1) -> Found:
        answers = self.asks(log, partitions)
        self.loop.run_until(lambda: answers, 60, f"an answer about {log}")
        return answers[0]

    def makes(self, client_id: str) -> tuple[str, FoundLog]:
        log = self.logs.name(client_id)
        found = self.finds(log)
        assert isinstance(found, FoundLog), found
        return log, found

    def there(self) -> list[str]:
        """Names of all logs; asked again while Kafka cannot tell."""
        while True:
            answers: list[list[LogSize] | StoreError] = []
            self.logs.sizes(answers.append)
            self.loop.run_until(answers.__len__, 30)
            (found,) = answers
            if isinstance(found, list):
                return [size.name for size in found]


@pytest.fixture
def place(kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr("embermq.adapters.kafka.application_logs.LOOK_S", LOOK_S)
    found = Place(kafka)
    yield found
    kafka.heal()
    found.topics.may_delete.set()
    found.logs.close()


@pytest.mark.promise("application-2")
def test_a_log_goes_with_its_groups_when_the_pipeline_has_passed(place: Place) -> None:
    log, found = place.makes("app")
    assert found.is_new and found.ends == {0: 0}
    again = place.finds(log)
    assert again == FoundLog({0: 0}, found.identity)
    place.writer.write(log, [b"0", b"1"])
    group = Consumer({"bootstrap.servers": place.kafka.bootstrap, "group.id": f"{log}-group"})
    group.commit(offsets=[TopicPartition(log, 0, 2)], asynchronous=False)
    place.log_ends, place.dispatched = {0: 5, 1: 3}, {0: 5, 1: 2}
    place.logs.ended(log)
    place.log_ends = {0: 900, 1: 900}  # what comes later is not stamped for it
    place.loop.run_for(ROUNDS_S)
    assert place.there() == [log]
    place.dispatched = {0: 5, 1: 3}
    place.loop.run_until(lambda: not place.there(), 30, "it is deleted")
    fresh = place.finds(log)
    assert isinstance(fresh, FoundLog) and fresh.is_new and fresh.identity != found.identity
    place.loop.run_until(
        lambda: group.committed([TopicPartition(log, 0)], timeout=30)[0].offset < 0, 30, "positions are gone"
    )
    group.close()


@pytest.mark.promise("application-2")
def test_a_client_that_is_back_keeps_its_log_with_what_is_in_it(place: Place) -> None:
    log, found = place.makes("app")
    place.writer.write(log, [b"an earlier life's"])
    place.log_ends = {0: 5}
    place.logs.ended(log)
    assert place.finds(log) == FoundLog({0: 1}, found.identity)
    place.dispatched = {0: 5, 1: 5}
    place.loop.run_for(ROUNDS_S)
    assert place.there() == [log]
    place.logs.ended(log)
    place.loop.run_until(lambda: not place.there(), 30, "its next end counts")


@pytest.mark.promise("application-2")
def test_a_client_that_comes_while_its_log_is_deleted_gets_another_one(place: Place) -> None:
    log, found = place.makes("app")
    place.writer.write(log, [b"an earlier life's"])
    place.topics.may_delete.clear()
    place.logs.ended(log)
    assert place.topics.deleting.wait(30)
    answers = place.asks(log)
    place.loop.run_for(0.3)
    assert answers == []
    place.topics.may_delete.set()
    place.loop.run_until(lambda: answers, 30)
    fresh = answers[0]
    assert isinstance(fresh, FoundLog) and fresh.is_new and fresh.identity != found.identity
    place.loop.run_for(ROUNDS_S)
    assert place.there() == [log]


def test_logs_are_made_as_configured_and_a_wrong_number_of_partitions_is_told_at_once(place: Place) -> None:
    log, _ = place.makes("app")
    resource = ConfigResource(ConfigResource.Type.TOPIC, log)
    found = place.kafka.admin.describe_configs([resource])[resource].result(60)
    wanted = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(2_000_000 + 1024 * 1024),
        "min.insync.replicas": "1",
        "message.timestamp.type": "LogAppendTime",
    }
    assert {name: found[name].value for name in wanted} == wanted
    problem = place.finds(log, 4)
    assert isinstance(problem, StoreError) and f"{log} has 1 partitions, 4 are configured" in str(problem)
    assert place.logs.failing == ""


@pytest.mark.in_faults
@pytest.mark.promise("application-2")
def test_while_kafka_is_away_a_client_waits_so_long_and_an_end_is_not_forgotten(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embermq.adapters.kafka.application_logs.DELETE_AGAIN_S", 1.0)
    place = Place(kafka, request_timeout_s=1)
    log, _ = place.makes("old")
    place.logs._patience_s = HURRIED_S
    kafka.kill()
    new = place.logs.name("new")
    began_s = time.monotonic()
    refused = place.finds(new)
    assert isinstance(refused, StoreUnavailable)
    assert HURRIED_S <= time.monotonic() - began_s < PATIENCE_S
    place.logs.ended(log)
    place.loop.run_until(lambda: place.logs.failing, 30)
    kafka.start()
    place.loop.run_until(lambda: not place.logs.failing, 60)
    assert place.there() == []
    place.logs._patience_s = PATIENCE_S
    found = place.finds(new)
    assert isinstance(found, FoundLog) and found.ends == {0: 0}
    place.logs.close()


def test_who_waits_is_let_in_when_kafka_is_back_in_time(kafka: KafkaServer) -> None:
    place = Place(kafka)
    place.makes("app")
    kafka.pause()
    waiting = [place.asks(place.logs.name(f"app{number}")) for number in range(50)]
    place.loop.run_for(0.3)
    kafka.resume()
    place.loop.run_until(lambda: all(waiting), 60)
    assert all(isinstance(answers[0], FoundLog) for answers in waiting)
    place.logs.close()


def test_the_end_of_the_broker_does_not_wait_for_a_kafka_that_hangs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embermq.adapters.kafka.application_logs.CLOSE_S", 60.0)
    place.makes("app")
    place.kafka.pause()
    answers = place.asks(place.logs.name("other"))
    place.logs.ends({"x": 1}, answers.append)  # type: ignore[arg-type]
    place.loop.run_for(0.3)
    began_s = time.monotonic()
    place.logs.close()
    assert time.monotonic() - began_s < 30
    place.loop.run_for(0.3)
    assert answers == [], "nobody is there any more"


def test_questions_that_wait_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "embermq.adapters.kafka.application_logs"
    monkeypatch.setattr(f"{module}.ENSURED_MAX", 1)
    monkeypatch.setattr(f"{module}.CALLS_MAX", 1)
    place.kafka.pause()
    first, second = place.asks("one"), place.asks("two")
    place.loop.run_until(lambda: second, 30)
    assert first == [] and "1 application logs wait to be made already" in str(second[0])
    answers: list[object] = []
    for _ in range(3):
        place.logs.ends({"x": 1}, answers.append)
    place.loop.run_until(lambda: answers, 30)
    assert "1 questions about application logs wait already" in str(answers[0])


def test_what_nobody_reads_can_be_deleted_at_once(place: Place) -> None:
    log, _ = place.makes("left")
    other, _ = place.makes("other")
    place.log_ends = {0: 5}
    place.logs.ended(log)
    answers: list[StoreError | None] = []
    place.logs.delete([log, "not.there"], answers.append)
    place.loop.run_until(lambda: answers, 30)
    assert answers == [None]
    assert place.there() == [other]


def test_logs_are_trimmed_and_their_ends_told(place: Place) -> None:
    log, _ = place.makes("app")
    place.writer.write(log, [b"0", b"1", b"2"])
    place.logs.trim({(log, 0): 2})
    ends: list[object] = []
    place.logs.ends({log: 1, place.logs.name("nobody"): 1}, ends.append)
    place.loop.run_until(lambda: ends, 30)
    assert ends == [{(log, 0): 3}]
    assert place.topics.sizes()[0].starts == {0: 2}
