"""`embermq pipeline rejected retry` of a log in Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.pipeline.log_writer import NOON_MS, record
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_dispatcher import KafkaDispatcher
from tests.support.kafka_server import KafkaServer, create_topic
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq.cli.main import main
from embermq.formats.kafka_record import KafkaEncoder
from embermq.formats.log_record import Stamp
from embermq.mqtt.wire.packets import Subscription
from embermq.pipeline.kafka_log import KafkaLog

LATER = b"has format 2.0: this reader knows major 1"


class Rejecting:
    """In dispatch's place."""

    def __init__(self, kafka: KafkaServer, prefix: str) -> None:
        self._topic = f"{prefix}.msg.rejected"
        self._root = KafkaLog(bootstrap="", prefix=prefix).application_prefix
        self._encode = KafkaEncoder().encode
        create_topic(kafka.admin, self._topic, partitions=1)
        self.producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})

    def reject(
        self, number: int, payload: bytes | None, *clients: str, broken: bool = False, **more: Any
    ) -> None:
        """`broken`: nobody can read it."""
        stamps = tuple(Stamp(f"{self._root}{client}", 1, 1) for client in clients)
        one = self._encode(record("lost/x", payload or b"", stamps=stamps, **more))
        own = [("s", b"0;%d" % number), ("r", b"header f is x" if broken else LATER)]
        headers = [header for header in one.headers if not broken or header[0] != "f"] + own
        value = None if payload is None else one.value
        self.producer.produce(self._topic, value, one.key, headers=headers)  # type: ignore[arg-type]  # invariant


@pytest.mark.promise("pipeline-4")
def test_to_those_that_it_was_for_and_to_nobody_twice(
    servers: dict[str, object], kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dispatch has repeated one; another is damaged, and of one nothing is left."""
    settings = servers | {"clients.application_ids": "app*"}
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    prefix = str(servers["kafka.prefix"])

    def retry(*words: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        typed = [
            "pipeline",
            "rejected",
            "retry",
            "--data-dir",
            str(broker.data_dir),
            "--json",
            *given,
            *words,
        ]
        assert main(typed) == code, capsys.readouterr().err
        found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])["report"]
        return found

    async def scenario() -> None:
        device, application = MqttClient("dev"), MqttClient("app1")
        for client in (device, application):
            await client.connect(broker.port, expiry_s=3_600)
            await client.subscribe(Subscription("lost/#", 1))
        dry = retry("--dry-run", code=3)
        assert {one["to"]: one["found"]["chosen"] for one in dry["receivers"]} == {
            "client app1": 3,
            "client gone": 3,
        }
        found = dry["found"]
        assert (found["chosen"], found["expired"], found["unreadable"], found["missing"]) == (3, 1, 1, 1)
        told = retry("--reason", "has format N.N", code=3)
        kept, gone = told["receivers"]
        assert (kept["put_back"], kept["refused_count"]) == (3, 0)
        assert "there is no session of the client id 'gone'" in gone["problem"]
        await wait_for(lambda: len(application.messages) == 3, 60, "they are put back")
        assert [message.payload for message in application.messages] == [b"0", b"1", b"2"]
        said = application.messages[0].properties
        assert said is not None
        assert dict(said.user_properties)["replayed-accepted-at"] == str(NOON_MS)
        assert dict(said.user_properties)["replayed-from"] == "0:1000"
        again = retry("--client", "app1", code=3)["receivers"][0]
        assert (again["put_back"], again["found"]["before"]) == (0, 3)
        await device.ping()
        assert device.messages == []
        assert retry("--topic", "other", code=3)["receivers"][0]["put_back"] == 3
        for client in (device, application):
            client.close()

    with BrokerProcess(tmp_path / "data", settings=settings) as broker, KafkaDispatcher(kafka, prefix):
        dispatch = Rejecting(kafka, prefix)
        for number in (0, 1, 0, 2):
            dispatch.reject(1_000 + number, b"%d" % number, "app1", "gone")
        dispatch.reject(1_003, b"old", "app1", expires_ms=1)
        dispatch.reject(1_004, b"x", "app1", broken=True)
        dispatch.reject(1_005, None)
        assert not dispatch.producer.flush(60)
        run(scenario(), 240)
