"""The topics below $SYS, from a running broker, as Mosquitto's own client shows them."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from tests.faults.data_files import log_extent
from tests.integration.conftest import quiet
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq.formats.segment_reader import SegmentReader
from embermq.formats.segments import FOLDER, LogEnd
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

ROOT = "$SYS/broker/"
V311 = ProtocolVersion.V311


async def entered(broker: BrokerProcess, client_id: str, version: ProtocolVersion) -> MqttClient:
    found = MqttClient(client_id, version=version)
    assert (await found.connect(broker.port)).reason_code == 0
    return found


def values(client: MqttClient) -> dict[str, str]:
    return {message.topic.removeprefix(ROOT): message.payload.decode() for message in client.messages}


def test_bytes_and_packets_are_counted_exactly(own_broker: BrokerProcess) -> None:
    own_broker.settings["mqtt.sys_interval_s"] = 1
    own_broker.start()

    async def dialogue() -> None:
        client = await entered(own_broker, "c", V311)
        await client.subscribe(Subscription("t", 1))
        for qos in (0, 1):
            await client.publish("t", b"12345", qos=qos)
        await wait_for(lambda: len(client.messages) == 2)
        await client.ping()
        said = (
            Connect("c", V311, True, 0, None, None, None, None),
            Subscribe(1, (Subscription("t", 1),)),
            Publish("t", b"12345", 0),
            Publish("t", b"12345", 1, 1),
            Publish("t", b"12345", 1, 1),  # its PUBACK is as long as ours
        )
        received = sum(len(encode(packet, V311)) for packet in said[:4]) + 4 + 2
        sent = (
            sum(
                len(encode(packet, V311))
                for packet in (Connack(False, 0), Suback(1, (1,)), *said[2:4], Pingresp())
            )
            + 4
        )
        assert len(encode(Pingreq(), V311)) == 2
        client.close()
        await client.ended
        watcher = await entered(own_broker, "w", V311)
        await watcher.subscribe(Subscription("$SYS/broker/#", 0))
        await wait_for(lambda: values(watcher).get("clients/connected") == "1")
        before = len(watcher.messages)
        await wait_for(lambda: len(watcher.messages) > before + 5)
        found = values(watcher)
        assert (found["publish/messages/received"], found["publish/bytes/received"]) == ("2", "10")
        assert int(found["bytes/received"]) >= received + 2
        assert int(found["bytes/sent"]) >= sent
        assert found["uptime"].endswith(" seconds")
        watcher.close()
        await watcher.ended

    run(dialogue())
    quiet(own_broker)


def test_mosquittos_client_shows_them_and_nothing_is_stored(own_broker: BrokerProcess) -> None:
    own_broker.settings["mqtt.sys_interval_s"] = 1
    own_broker.start()

    async def kept() -> None:
        """A session that is kept, subscribed to everything below $SYS, over several intervals."""
        client = MqttClient("kept")
        await client.connect(own_broker.port, clean_start=False, expiry_s=1_000)
        await client.subscribe(Subscription("$SYS/#", 2))
        await wait_for(lambda: int(values(client).get("uptime", "0 seconds").split()[0]) >= 2)
        assert {message.qos for message in client.messages} == {0}
        client.abort()
        await client.ended

    run(kept())
    shown = subprocess.run(
        [
            "mosquitto_sub",
            "-p",
            str(own_broker.port),
            "-t",
            "$SYS/#",
            "-F",
            "%t %r %p",
            "-C",
            "50",
            "-W",
            "30",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    assert len({line.split(" 1 ")[0] for line in shown}) == 50
    assert any(line.startswith("$SYS/broker/version 1 embermq version ") for line in shown)
    assert "$SYS/broker/retained messages/count 1 0" in shown
    assert "$SYS/broker/messages/stored 1 0" in shown
    own_broker.stop()
    store = sqlite3.connect(f"file:{own_broker.data_dir}/broker.db?mode=ro", uri=True)
    assert log_extent(own_broker.data_dir) == (0, 0)
    for table in ("retained", "device_queue"):
        assert store.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (0,), table
    store.close()


def end_of_log(data_dir: Path) -> LogEnd | None:
    with closing(SegmentReader(data_dir / FOLDER)) as reader:
        return reader.end()


def test_an_idle_broker_commits_nothing_for_them(own_broker: BrokerProcess) -> None:
    own_broker.settings["mqtt.sys_interval_s"] = 1
    own_broker.start()

    async def dialogue() -> None:
        client = await entered(own_broker, "c", V311)
        await client.subscribe(Subscription("$SYS/broker/uptime", 0))
        await wait_for(lambda: len(client.messages) > 1)
        before = end_of_log(own_broker.data_dir)
        await wait_for(lambda: len(client.messages) > 3)
        assert end_of_log(own_broker.data_dir) == before
        client.close()
        await client.ended

    run(dialogue())


def test_a_v5_client_may_have_them_as_they_are_kept(own_broker: BrokerProcess) -> None:
    own_broker.settings["mqtt.sys_interval_s"] = 1
    own_broker.start()

    async def dialogue() -> None:
        client = await entered(own_broker, "c", ProtocolVersion.V5)
        properties = Properties(subscription_identifiers=(7,))
        answer = client.expect(Suback, 1)
        client.send(Subscribe(1, (Subscription("$SYS/broker/uptime", 1, False, True, 2),), properties))
        await answer
        await wait_for(lambda: len(client.messages) > 1)
        assert {(m.retain, m.properties) for m in client.messages} == {(True, properties)}
        client.close()
        await client.ended

    run(dialogue())
