"""The driver asks the broker for an application log that is not there."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from embermq.pipeline.errors import KafkaLogError
from embermq.pipeline.jobs.application_topics import BrokerSessions
from embermq.pipeline.jobs.kafka_dispatch import REQUEST_BYTES_MAX, KafkaDispatch
from embermq.pipeline.jobs.query_job import JobSetup, KafkaSide
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings


@contextmanager
def broker(places: Places, status: str, *bodies: str) -> Iterator[list[bytes]]:
    """Answers a question with each, and shows what they were."""
    places.data_dir.mkdir(parents=True)
    asked: list[bytes] = []

    def question(connection: socket.socket) -> bytes:
        got = b""
        while not got.endswith(b"}" if got.startswith(b"POST") else b"\r\n\r\n"):
            got += connection.recv(4096)
        return got

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(places.control))
        listener.listen()

        def serve() -> None:
            for body in bodies:
                connection, _ = listener.accept()
                with connection:
                    asked.append(question(connection))
                    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
                    connection.sendall(f"{head}{body}".encode())

        thread = Thread(target=serve)
        thread.start()
        yield asked
        thread.join()


@pytest.mark.parametrize(("body", "generation"), [('{"generation": null}', None), ('{"generation": 7}', 7)])
def test_the_broker_says_what_becomes_of_the_log(tmp_path: Path, body: str, generation: int | None) -> None:
    places = Places(tmp_path / "data")
    with broker(places, "200 OK", body) as asked:
        assert BrokerSessions(places).restore("e.msg.app.one") == generation
    head, _, question = asked[0].partition(b"\r\n\r\n")
    assert (
        head.startswith(b"POST /api/v1/application-logs/restore ")
        and question == b'{"topic":"e.msg.app.one"}'
    )


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        ("503 Service Unavailable", '{"detail": "away"}', "does not restore e.msg.app.one: 503 .*away"),
        ("200 OK", '{"other": 1}', "does not restore e.msg.app.one: Object missing"),
    ],
)
def test_an_answer_that_is_none(tmp_path: Path, status: str, body: str, told: str) -> None:
    places = Places(tmp_path / "data")
    with broker(places, status, body), pytest.raises(KafkaLogError, match=told):
        BrokerSessions(places).restore("e.msg.app.one")


@pytest.mark.promise("pipeline-4")
def test_the_topic_for_rejected_records_takes_the_largest_there_is(tmp_path: Path) -> None:
    """With Kafka's own limit, 1 MiB, a large one would end the query again and again."""
    made: dict[str, dict[str, str]] = {}

    def ensure_topic(name: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> bool:
        made[name] = dict(settings or {})
        raise KafkaLogError("seen")

    positions: Any = SimpleNamespace(
        kafka=KafkaLog(bootstrap="h:9092", prefix="e"), ensure_topic=ensure_topic, bounds=dict
    )
    nothing: Any = None
    job = KafkaDispatch(JobSetup(DriverSettings(), Places(tmp_path), KafkaSide(positions, nothing)))
    with pytest.raises(KafkaLogError, match="seen"):
        job.stream(nothing, nothing)
    assert int(made["e.msg.rejected"]["max.message.bytes"]) >= REQUEST_BYTES_MAX


def test_brokers_that_share_a_place_for_checkpoints_do_not_remove_one_another_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start of a query empties its folder."""
    emptied: list[tuple[str, str]] = []

    def fresh_checkpoint(_: object, folder: str, query: str) -> str:
        emptied.append((folder, query))
        raise KafkaLogError("seen")

    monkeypatch.setattr("embermq.pipeline.jobs.kafka_dispatch.fresh_checkpoint", fresh_checkpoint)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=lambda *_: None))
    nobody: Any = SimpleNamespace()
    for prefix, folder in (("a", "hdfs://h/c/"), ("b", "hdfs://h/c"), ("a", "")):
        kafka = KafkaLog(bootstrap="h:9092", prefix=prefix)
        positions: Any = SimpleNamespace(
            kafka=kafka,
            bounds=dict,
            progress=dict,
            topics=set,
            record_limits=lambda topics: dict.fromkeys(topics, 1),
            raise_record_limits=dict,
        )
        settings = DriverSettings(checkpoints_dir=folder)
        job = KafkaDispatch(JobSetup(settings, Places(tmp_path), KafkaSide(positions, nobody)))
        with pytest.raises(KafkaLogError, match="seen"):
            job.start(spark)
    assert emptied == [
        ("hdfs://h/c/a", "dispatch"),
        ("hdfs://h/c/b", "dispatch"),
        (str(tmp_path / "pipeline" / "checkpoints"), "dispatch"),
    ]


def test_no_broker(tmp_path: Path) -> None:
    with pytest.raises(KafkaLogError, match=r"control.sock: the broker does not restore e\.msg\.app\.one: "):
        BrokerSessions(Places(tmp_path)).restore("e.msg.app.one")
