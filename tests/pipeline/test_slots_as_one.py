"""Jobs over past messages of a cluster with several slots: all slots are one, unless one is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.faults.cluster import SLOTS, id_of, nodes
from tests.pipeline.test_replay_kafka import interrupted_after
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq.cli.main import main
from embermq.cluster.slots import slot_of
from embermq.mqtt.wire.packets import Subscription
from embermq.pipeline.jobs import audit, replay, report

MANY = 40
WAIT_S = 240.0
APPLICATION, DEVICE = (
    next(each for each in map("app{}".format, range(99)) if slot_of(each, SLOTS) == 1),
    id_of(0, "waits"),
)
"""The first without a character that would hide it in the name of its log."""
Job = Callable[..., dict[str, Any]]


@pytest.fixture
def job(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[BrokerProcess], Job]:
    """`embermq pipeline JOB` on the data directory of a node, with Spark that has started already."""

    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    for each in (audit, replay, report):
        monkeypatch.setattr(each, "batch_session", started)

    def at(node: BrokerProcess) -> Job:
        given = [word for key, value in node.settings.items() for word in ("--set", f"{key}={value}")]

        def asked(*words: str, code: int = 0) -> dict[str, Any]:
            capsys.readouterr()
            found = main(["pipeline", *words, "--data-dir", str(node.data_dir), *given, "--json"])
            told = capsys.readouterr()
            assert found == code, told.err or told.out
            answer: dict[str, Any] = json.loads(told.out.splitlines()[-1])
            return dict(answer["report"])

        return asked

    return at


def topics(root: str) -> list[str]:
    """One for the publisher of each slot."""
    return [f"{root}/{home}" for home in range(SLOTS)]


def came(client: MqttClient, root: str) -> dict[str, list[int]]:
    """Numbers by topic, in their order."""
    return {
        topic: [int(each.payload) for each in client.messages if each.topic == topic and not each.dup]
        for topic in topics(root)
    }


def marks(client: MqttClient) -> set[str]:
    """Where replayed messages come from."""
    found = (each.properties for each in client.messages if each.topic.startswith("again/"))
    return {dict(one.user_properties)["replayed-from"] for one in found if one is not None}


async def comes(by: BrokerProcess, name: str) -> MqttClient:
    """It has a kept session."""
    client = MqttClient(name)
    await client.connect(by.port, clean_start=False, expiry_s=86_400)
    return client


async def fill(found: list[BrokerProcess]) -> None:
    """Clients of both slots publish. The application, of slot 1, has all of it; the device, of slot 0, waits for what
    will come again."""
    device = await comes(found[1], DEVICE)
    await device.subscribe(Subscription("again/#", 2))
    device.abort()
    application = await comes(found[0], APPLICATION)
    await application.subscribe(Subscription("cars/#", 2))
    for home in range(SLOTS):
        publisher = MqttClient(id_of(home, "car"))
        await publisher.connect(found[1 - home].port)
        for number in range(MANY):
            assert await publisher.publish(f"cars/{home}", b"%d" % number, qos=1) < 0x80
        publisher.close()
    await wait_for(lambda: came(application, "cars") == everything("cars"), WAIT_S, "all has come")
    await application.ping()
    application.abort()


def everything(root: str) -> dict[str, list[int]]:
    return {topic: list(range(MANY)) for topic in topics(root)}


@pytest.mark.in_faults
@pytest.mark.promise("cluster-21", "pipeline-12")
@pytest.mark.timeout(1_200)
def test_audit_report_and_replay_are_of_all_slots(
    job: Callable[[BrokerProcess], Job], etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """What is in the log of the other slot as a copy counts and comes once; a replay that is interrupted in the second
    log goes on there."""
    own: dict[str, object] = {
        "clients.application_ids": json.dumps(["app*"]),
        "pipeline.queries": json.dumps(["dispatch"]),
    }
    with nodes(etcd, servers | own, tmp_path) as found:
        run(fill(found), WAIT_S)
        asked = job(found[1])
        audited = asked("audit", "--dry-run")
        assert [one["slot"] for one in audited["logs"]] == [0, 1]
        assert (audited["records"], audited["differences"]) == (SLOTS * MANY, [])
        assert sum(audited["deliveries"].values()) == SLOTS * MANY
        (account,) = audited["applications"]
        assert (account["client"], account["deliveries"]) == (APPLICATION, SLOTS * MANY)
        assert asked("audit", "--dry-run", "--slot", "0")["records"] == MANY

        reported = asked("report", "--dry-run")
        assert (reported["messages"], reported["publishers_count"]) == (SLOTS * MANY, SLOTS)
        assert reported["receivers"] == [
            {"client": APPLICATION, "messages": SLOTS * MANY, "payload_bytes": reported["payload_bytes"]}
        ]
        assert {one["slot"] for one in reported["ranges"]} == {0, 1}

        words = ("replay", "--from", "earliest", "--filter", "cars/#", "--topic", "again/{topic}")
        assert asked(*words, "--slot", "0", "--dry-run")["chosen"] == MANY
        with interrupted_after(MANY + 10):
            begun = asked(*words, "--rate", "100", code=130)
        assert MANY < begun["replayed"] < begun["chosen"] == SLOTS * MANY
        assert asked(*words)["replayed"] == SLOTS * MANY
        assert asked(*words)["was_done"]
        run(all_came_again(found), WAIT_S)


async def all_came_again(found: list[BrokerProcess]) -> None:
    """Once, in the order of each publisher and topic, and with the slot that each is of."""
    device, wanted = await comes(found[0], DEVICE), everything("again/cars")
    await wait_for(
        lambda: came(device, "again/cars") == wanted, WAIT_S, lambda: str(came(device, "again/cars"))
    )
    await device.ping()
    assert came(device, "again/cars") == wanted
    slots = sorted(int(mark.split(":")[0]) for mark in marks(device))
    assert slots == [home for home in range(SLOTS) for _ in range(MANY)]
    device.close()
