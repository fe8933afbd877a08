"""`embermq sessions` and a broker that is running."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Publish, Subscription, Will
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

KEPT_S = 3_600
STORED = 7
TIMEOUT_S = 60
V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5


def typed(broker: BrokerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    return run_program("sessions", *words, "--data-dir", broker.data_dir, timeout_s=TIMEOUT_S)


async def asked(broker: BrokerProcess, *words: str) -> str:
    """What it prints, when it says that all is well."""
    done = await asyncio.to_thread(typed, broker, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def refused(broker: BrokerProcess, *words: str) -> str:
    done = await asyncio.to_thread(typed, broker, *words)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


async def with_stored(broker: BrokerProcess, client_id: str, topic: str) -> None:
    """A kept session whose client is away, with messages stored for it."""
    client = MqttClient(client_id)
    await client.connect(broker.port, expiry_s=KEPT_S)
    options = Subscription(topic, 1, no_local=True)
    await client.subscribe(options, properties=Properties(subscription_identifiers=(42,)))
    client.abort()
    await client.ended
    publisher = MqttClient(f"{client_id}-publisher")
    await publisher.connect(broker.port)
    await asyncio.gather(*(publisher.publish(topic, b"m", qos=1) for _ in range(STORED)))
    publisher.close()
    await publisher.ended


def test_list_and_show_tell_what_is_held(broker: BrokerProcess, name: str) -> None:
    async def scenario() -> None:
        away, here = f"{name}-away", f"{name}-here"
        await with_stored(broker, away, f"{name}/t")
        client = MqttClient(here, version=V311)
        await client.connect(broker.port)
        found = json.loads(await asked(broker, "list", "--match", f"{name}-*", "--json"))
        by_id = {one["client_id"]: one for one in found}
        assert by_id[away]["queued"] == STORED and not by_id[away]["connected"] and by_id[away]["kept"]
        assert by_id[away]["expires"] is not None
        assert by_id[here]["connected"] and by_id[here]["version"] == "3.1.1"
        assert by_id[here]["peer"].startswith("127.0.0.1:")
        only_away = json.loads(await asked(broker, "list", "--match", f"{name}-*", "--away", "--json"))
        assert [one["client_id"] for one in only_away if one["client_id"] in (away, here)] == [away]
        table = await asked(broker, "list", "--match", away)
        assert table.splitlines()[1].split() == [away, "device", "away", "1", "7", "0", "-"]
        detail = json.loads(await asked(broker, "show", away, "--json"))
        assert detail["subscriptions"] == [
            {
                "topic_filter": f"{name}/t",
                "qos": 1,
                "no_local": True,
                "retain_as_published": False,
                "retain_handling": 0,
                "identifier": 42,
            }
        ]
        assert f"{name}/t  (QoS 1, no local, identifier 42)" in await asked(broker, "show", away)
        assert detail["unacknowledged"] == [], "it is stored, and counted as queued"
        slow = MqttClient(f"{name}-slow", acknowledges=False)
        await slow.connect(broker.port, expiry_s=KEPT_S)
        await slow.subscribe(Subscription(f"{name}/slow", 1))
        await client.publish(f"{name}/slow", b"m", qos=1)
        await wait_for(lambda: bool(slow.messages))
        (waiting,) = json.loads(await asked(broker, "show", slow.client_id, "--json"))["unacknowledged"]
        assert (waiting["topic"], waiting["partition"], waiting["messages"]) == (f"{name}/slow", 0, 1)
        line = f"not acknowledged, from\n  {name}/slow  0:{waiting['offset']}  (1)\n"
        assert line in await asked(broker, "show", slow.client_id)
        slow.close()
        client.close()
        await client.ended

    run(scenario())


@pytest.mark.parametrize("version", [V311, V5])
def test_disconnect_ends_the_connection_and_keeps_the_session(
    broker: BrokerProcess, name: str, version: ProtocolVersion
) -> None:
    async def scenario() -> None:
        client = MqttClient(name, version=version)
        await client.connect(broker.port, clean_start=False, expiry_s=KEPT_S)
        await asked(broker, "disconnect", name)
        await client.ended
        said = client.disconnect_received
        if version is V5:
            assert said is not None and said.reason_code == ReasonCode.ADMINISTRATIVE_ACTION
        assert "is not connected" in await refused(broker, "disconnect", name)
        again = MqttClient(name, version=version)
        assert (await again.connect(broker.port, clean_start=False, expiry_s=KEPT_S)).session_present
        again.close()
        await again.ended

    run(scenario())


def test_delete_takes_queue_and_subscriptions_and_lets_the_will_out(own_broker: BrokerProcess) -> None:
    async def scenario() -> None:
        await with_stored(own_broker, "gone", "stored/t")
        watcher = MqttClient("watcher")
        await watcher.connect(own_broker.port)
        await watcher.subscribe(Subscription("wills/#", 1))
        client = MqttClient("gone")
        will = Will("wills/gone", b"left", 1, False, Properties(will_delay_interval=600))
        client.acknowledges = False
        assert (
            await client.connect(own_broker.port, clean_start=False, expiry_s=KEPT_S, will=will)
        ).session_present
        await asked(own_broker, "delete", "gone", "--yes")
        await client.ended
        assert client.disconnect_received is not None
        assert client.disconnect_received.reason_code == ReasonCode.ADMINISTRATIVE_ACTION
        await wait_for(lambda: bool(watcher.messages), 30, "the will")
        assert watcher.messages[0].payload == b"left"
        assert "there is no session" in await refused(own_broker, "delete", "gone", "--yes")
        watcher.close()
        await watcher.ended

    async def after() -> None:
        again = MqttClient("gone")
        assert not (await again.connect(own_broker.port, clean_start=False, expiry_s=KEPT_S)).session_present
        await again.ping()
        assert not any(isinstance(packet, Publish) for packet in again.received)
        again.close()
        await again.ended

    own_broker.start()
    run(scenario())
    own_broker.kill()  # what delete said was done is done
    own_broker.start()
    run(after())


def test_a_client_id_does_not_steer_the_terminal(broker: BrokerProcess, name: str) -> None:
    async def scenario() -> None:
        client = MqttClient(f"{name}\x1b[2J/ä?&=%20")
        await client.connect(broker.port)
        shown = await asked(broker, "list", "--match", f"{name}*")
        assert f"{name}\\x1b[2J/ä?&=%20" in shown and "\x1b" not in shown
        await asked(broker, "disconnect", client.client_id)
        await client.ended

    run(scenario())


def test_what_is_for_the_pipeline_alone_is_not_offered_to_other_machines(broker: BrokerProcess) -> None:
    answer = httpx.get(f"http://127.0.0.1:{broker.http_port}/api/v1/session?client_id=c", timeout=30)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_pins_name_the_dispatcher(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        await wait_for(
            lambda: "dispatcher" in typed(broker, "pins").stdout, 60, "the first round of retention"
        )

    run(scenario())


def test_without_a_broker_it_says_so(own_broker: BrokerProcess, tmp_path: Path) -> None:
    async def scenario() -> None:
        assert "no broker is running" in await refused(own_broker, "list")

    own_broker.start()
    socket = own_broker.data_dir / "control.sock"
    assert stat.S_ISSOCK(socket.stat().st_mode) and not socket.stat().st_mode & 0o077
    own_broker.kill()
    assert socket.exists()
    run(_after_a_kill(own_broker))
    own_broker.start()
    own_broker.stop()
    assert not socket.exists()
    run(scenario())


async def _after_a_kill(broker: BrokerProcess) -> None:
    assert "no broker answers" in await refused(broker, "list")


def test_a_data_directory_with_a_long_name_has_its_socket_all_the_same(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    with BrokerProcess(deep) as broker:
        assert typed(broker, "list").stdout.startswith("client id")
