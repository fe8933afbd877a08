"""`queues.enabled = false`: everybody hears so, and nothing that is stored is touched."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient, run
from tests.support.queue_worker import queue_broker, worker

from embermq.mqtt.wire.packets import Puback, Publish, Suback, Subscribe, Subscription, Will
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.queues.settings import OFF

QUEUES = """
[[queues]]
name = "off/file"
"""


async def publishes(client: MqttClient, topic: str) -> tuple[int, str | None]:
    """Reason code and reason string of the answer."""
    packet_id = client.next_id()
    awaited = client.expect(Puback, packet_id)
    client.send(Publish(topic, b"", 1, packet_id, False))
    answer = await awaited
    return answer.reason_code, answer.properties.reason_string if answer.properties is not None else None


async def subscribes(
    client: MqttClient, topic_filter: str, properties: Properties | None = None
) -> tuple[int, str | None]:
    """The same."""
    packet_id = client.next_id()
    awaited = client.expect(Suback, packet_id)
    client.send(Subscribe(packet_id, (Subscription(topic_filter, 1),), properties))
    answer = await awaited
    said = answer.properties.reason_string if answer.properties is not None else None
    return answer.reason_codes[0], said


def embermq(broker: BrokerProcess, *words: str) -> str:
    done = run_program(*words, "--data-dir", broker.data_dir)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.promise("queues-17", "queues-40")
def test_a_broker_without_queues(tmp_path: Path) -> None:
    async def before() -> None:
        keeper = await worker(broker, "keeper-1", clean_start=False, expiry_s=600)
        await keeper.consumes("$queue/off/kept")
        await keeper.consumes("$queue/off/left")
        keeper.close()
        await (await worker(broker, "p")).enqueues("$queue/off/kept", b"kept")

    async def without() -> None:
        client = await worker(broker, "keeper-1", clean_start=False, expiry_s=600)
        for topic in ("$queue/off/kept", "$queue/off/file/$ack", "$admin/queue/off/new/config"):
            assert await publishes(client, topic) == (0x83, OFF)
        client.send(Publish("$queue/off/kept", b"lost", 0, 0, False))
        for topic in ("$queue/off/kept", "$share/g/$queue/off/new", "$queue/responses/me"):
            assert await subscribes(client, topic) == (0x83, OFF)
        start = Properties(user_properties=(("start-position", "2030-01-31T12:00:00Z"),))
        assert await subscribes(client, "$queue/off/new", start) == (0x83, OFF)
        assert list(await client.unsubscribe("$queue/off/new", "$queue/off/left", "$queue/off/left")) == [
            0x11,
            0x00,
            0x11,
        ]
        assert await client.subscribe(Subscription("plain", 1)) == (1,)
        assert await client.publish("plain", b"m", qos=1) == 0
        old = await worker(broker, "old", version=ProtocolVersion.V311)
        assert await old.subscribe(Subscription("$queue/off/kept", 1)) == (0x80,)
        leaver = MqttClient("leaver")
        refused = await leaver.connect(broker.port, will=Will("$queue/off/kept", b"w", 1, False, None))
        assert refused.reason_code == 0x83
        client.close()

    async def after() -> None:
        keeper = await worker(broker, "keeper-1", clean_start=False, expiry_s=600)
        assert (await keeper.next()).payload == b"kept"
        await (await worker(broker, "p")).enqueues("$queue/off/left", b"left")
        await keeper.gets_nothing()

    with queue_broker(tmp_path, QUEUES) as broker:
        run(before())
        broker.stop()
        broker.settings["queues.enabled"] = "false"
        broker.start()
        assert f"queues.file is not applied: {OFF}" in broker.output()
        run(without())
        for method, path in (("GET", "/queues"), ("PUT", "/queues/new"), ("DELETE", "/queues/off$kept")):
            answer = httpx.request(method, f"http://127.0.0.1:{broker.http_port}/api/v1{path}", timeout=30)
            assert answer.status_code == 409 and answer.json()["detail"] == OFF
            assert answer.headers["content-type"] == "application/problem+json"
        for words in (("list",), ("create", "new"), ("show", "off/kept")):
            assert OFF in embermq(broker, "queues", *words)
        broker.stop()
        broker.settings["queues.enabled"] = "true"
        broker.start()
        run(after())
