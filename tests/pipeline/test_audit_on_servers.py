"""`embermq pipeline audit` with the log in Kafka and sessions in Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_dispatcher import KafkaDispatcher
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.queue_worker import queue_broker
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for, wait_until

from embermq.cli.main import main
from embermq.formats.redis_layout import client_keys
from embermq.formats.redis_queues import queue_keys
from embermq.mqtt.wire.packets import Puback, Subscription
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.pipeline.jobs import audit as job

Audit = Callable[..., dict[str, Any]]
SUBSCRIBED = Subscription("t/#", 1)
CHECKED = {"client": "app1", "owed": 4, "settled": 3, "passed": 0, "is_checked": True, "unchecked": ""}


@pytest.fixture
def broker(servers: dict[str, object], tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {name.replace(".", "__"): value for name, value in servers.items()}
    own = settings | {"clients__application_ids": "app*"}
    with queue_broker(tmp_path, '[[queues]]\nname = "kept"\n', **own) as broker:
        yield broker


@pytest.fixture
def dispatcher(broker: BrokerProcess, kafka: KafkaServer) -> Iterator[KafkaDispatcher]:
    with closing(KafkaDispatcher(kafka, str(broker.settings["kafka.prefix"]))) as dispatcher:
        yield dispatcher


@pytest.fixture
def audit(
    spark: SparkSession,
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Audit:
    """The command in this process, with Spark that has started already; returns the report."""

    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(job, "batch_session", started)
    given = [word for key, value in broker.settings.items() for word in ("--set", f"{key}={value}")]

    def audited(*words: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        found = main(["pipeline", "audit", "--data-dir", str(broker.data_dir), *given, "--json", *words])
        told = capsys.readouterr()
        assert found == code, told.err or told.out
        report: dict[str, Any] = json.loads(told.out.splitlines()[-1])["report"]
        return report

    return audited


async def _fill(broker: BrokerProcess) -> None:
    """0 is in a queue. Of 1 to 4 app1 has acknowledged all but 2, which it has refused; when it is away 5 and 6 come.
    app2 has got 1 to 4 and has gone for good, app3 shares s/#, where 7 goes; dev-1 is away."""
    publisher, one, two, three, device = map(MqttClient, ("pub", "app1", "app2", "app3", "dev-1"))
    for client in (publisher, one, two, three, device):
        await client.connect(broker.port, expiry_s=3_600)
    await publisher.publish("$queue/kept", b"q", qos=1)
    one.acknowledges = False
    for client in (one, two, device):
        await client.subscribe(SUBSCRIBED)
    await three.subscribe(Subscription("$share/g/s/#", 1))
    three.abort()
    device.abort()
    for number in range(1, 5):
        await publisher.publish("t/a", b"%d" % number, qos=1)
    await wait_for(lambda: (len(one.messages), len(two.messages)) == (4, 4), 60)
    for message in one.messages:
        assert message.packet_id is not None
        is_refused = message.payload == b"2"
        code = ReasonCode.QUOTA_EXCEEDED if is_refused else ReasonCode.SUCCESS
        one.send(Puback(message.packet_id, code))
    await one.ping()
    one.abort()
    await two.ping()
    two.abort()
    last = MqttClient("app2")
    await last.connect(broker.port, expiry_s=0)  # and its session ends
    last.close()
    for topic in ("t/b", "t/b", "s/x"):
        await publisher.publish(topic, b"more", qos=1)
    publisher.close()


async def _publish_one_more(broker: BrokerProcess) -> None:
    publisher = MqttClient("pub")
    await publisher.connect(broker.port)
    await publisher.publish("t/c", b"nobody carries it", qos=1)
    publisher.close()


@pytest.mark.promise("pipeline-1", "pipeline-12")
def test_each_loss_is_found_where_it_is_and_nothing_else(
    broker: BrokerProcess, redis_server: RedisServer, dispatcher: KafkaDispatcher, audit: Audit
) -> None:
    """`pipeline audit` on Kafka and Redis: it names each thing that is taken away, and accounts for all others."""
    reader = client_keys("app1", "").reader
    run(_fill(broker), 300)
    dispatcher.carry()
    dispatcher.report()
    wait_until(
        lambda: not redis_server.ask("EXISTS", client_keys("app2", "").session), 60, "its session ends"
    )
    wait_until(lambda: _place(redis_server, reader).get("settled") == 4, 60, "what app1 said is stored")
    stored = client_keys("dev-1", "").messages
    wait_until(lambda: redis_server.ask("ZCARD", stored) == 6, 60, "what dev-1 is to get is stored")
    wait_until(lambda: redis_server.ask("HLEN", queue_keys("kept", "").entries) == 1, 60, "the queue has it")
    run(_publish_one_more(broker), 300)
    dispatcher.read()
    dispatcher.carried = len(dispatcher.records)
    dispatcher.report()
    broker.stop()
    place = _place(redis_server, reader)
    redis_server.ask("HSET", reader, "place", json.dumps(place | {"settled": 3}, separators=(",", ":")))
    redis_server.ask("SETRANGE", redis_server.ask("ZRANGE", stored, 1, 1)[0], 200, b"?" * 500)
    report = audit("--dry-run", code=3)
    found = [(one["kind"], one["who"], one["offset"], one["messages"]) for one in report["differences"]]
    assert found == [
        ("damaged", "dev-1", None, 1),
        ("not accounted for", "app1", None, 1),
        ("lost", "app1", 8, 1),
    ]
    (log,) = report["logs"]
    assert (report["records"], log["start"], log["end"]) == (9, 0, 9)
    assert report["deliveries"] == {
        "acknowledged": 3,
        "refused": 1,
        "waits": 2,
        "lost": 1,
        "session ended, not checked": 4,
    }
    accounts = {one["client"]: one for one in report["applications"]}
    assert {name: accounts["app1"][name] for name in CHECKED} == CHECKED
    assert report["stored"] == [{"client": "dev-1", "waits": 7, "under_way": 0}]
    assert report["queues"][-1] == {"queue": "kept", "accepted": 1, "entries": 1, "delayed": 0}
    told = " ".join(report["not_checked"])
    assert "1 messages for the shared subscriptions of shared.s.mlw" in told
    assert "4 deliveries to sessions that have ended" in told


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-12")
def test_a_message_of_a_queue_that_nobody_has_is_found(
    broker: BrokerProcess,
    kafka: KafkaServer,
    redis_server: RedisServer,
    dispatcher: KafkaDispatcher,
    audit: Audit,
) -> None:
    run(_fill(broker), 300)
    broker.stop()
    redis_server.ask("DEL", queue_keys("kept", "").bodies)
    assert audit("--dry-run")["differences"] == []  # the log has it, and the next start puts it back
    log = TopicPartition(f"{broker.settings['kafka.prefix']}.msg.all", 0, 1)
    kafka.admin.delete_records([log])[log].result(60)
    report = audit("--dry-run", code=3)
    found = [(one["kind"], one["who"], one["offset"]) for one in report["differences"]]
    assert found == [("queued without its message", "kept", 0)]
    assert {one["unchecked"] for one in report["applications"]} >= {"its life began before the range"}


def _place(redis_server: RedisServer, reader: str) -> dict[str, Any]:
    place: dict[str, Any] = json.loads(redis_server.ask("HGET", reader, "place"))
    return place
