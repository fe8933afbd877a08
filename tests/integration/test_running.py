"""Starting, stopping, settings, accounts, the HTTP surface, very many connections."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.forked_program import run_program
from tests.support.measuring import judge
from tests.support.metrics import metric
from tests.support.mqtt_client import ConnectionEnded, MqttClient
from tests.support.redis_server import RedisServer
from tests.support.waiting import DEADLINE_S, wait_for, wait_until

from embermq.mqtt.wire.packets import Connack, Publish, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.process_cost import read_cpu, read_pss_bytes

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
IDLE_CONNECTIONS = 5_000
KIB_EACH = 20


def get(broker: BrokerProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def entered(
    port: int,
    client_id: str = "c",
    *,
    version: ProtocolVersion = V5,
    host: str = "127.0.0.1",
    **options: object,
) -> Connack:
    """The answer to a CONNECT."""

    async def enter() -> Connack:
        found = MqttClient(client_id, version=version)
        try:
            return await found.connect(port, **options)  # type: ignore[arg-type]
        finally:
            found.abort()
            await found.ended

    return asyncio.run(enter())


@pytest.mark.perf
def test_sigterm_says_8b_and_ends_within_five_seconds(own_broker: BrokerProcess) -> None:
    own_broker.start()

    async def talk() -> tuple[list[MqttClient], float]:
        found = [MqttClient(f"c{number}", version=V5 if number % 2 else V311) for number in range(40)]
        for one in found:
            await one.connect(own_broker.port, clean_start=False, expiry_s=60)
            await one.subscribe(Subscription("t", 1))
        acknowledged = await found[0].publish("t", b"last", qos=1)
        assert acknowledged < 0x80
        began = time.monotonic()
        os.kill(own_broker.pid, signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*(one.ended for one in found)), DEADLINE_S)
        return found, began

    found, began = asyncio.run(talk())
    assert own_broker.wait() == 0
    judge(time.monotonic() - began, 5, "SIGTERM with 40 clients, s to the end")
    for one in found:
        said = one.disconnect_received
        if one.version is V5:
            assert said is not None and said.reason_code == 0x8B
        else:
            assert said is None


@pytest.mark.perf
def test_sigterm_under_full_load_ends_within_five_seconds(own_broker: BrokerProcess) -> None:
    own_broker.start()

    async def talk() -> None:
        publisher, subscriber = MqttClient("p", keeps=False), MqttClient("s", keeps=False, acknowledges=False)
        for one in (publisher, subscriber):
            await one.connect(own_broker.port, clean_start=False, expiry_s=60)
        await subscriber.subscribe(Subscription("t", 2))
        window = asyncio.Semaphore(200)
        publisher.on_packet = lambda _packet: window.release()

        async def publish() -> None:
            while publisher.is_open:
                await window.acquire()
                publisher.send(Publish("t", b"x" * 200, 1, publisher.next_id()))

        load = asyncio.create_task(publish())
        await wait_for(lambda: publisher._last_id > 2_000, 20)
        began = time.monotonic()
        os.kill(own_broker.pid, signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(publisher.ended, subscriber.ended), DEADLINE_S)
        load.cancel()
        assert await asyncio.to_thread(own_broker.wait) == 0
        judge(time.monotonic() - began, 5, "SIGTERM under full load, s to the end")

    asyncio.run(talk())
    assert not own_broker.is_running


def test_sigterm_ends_a_start_that_waits_for_a_store(tmp_path: Path, redis_server: RedisServer) -> None:
    settings = {"stores.log": f"kafka://127.0.0.1:{free_port()}", "stores.session": redis_server.url}
    broker = BrokerProcess(tmp_path, settings={**settings, "kafka.request_timeout_s": 100})
    broker.launch()
    try:
        wait_until((tmp_path / "users.db").exists, 20, "the start is under way")
        assert broker.stop() == 0
        assert "stopped before it was ready" in broker.output()
    finally:
        broker.close()


def test_a_second_broker_on_the_same_directory_is_refused_by_name(own_broker: BrokerProcess) -> None:
    own_broker.start()
    second = BrokerProcess(own_broker.data_dir)
    second.launch()
    assert second.wait() != 0
    assert str(own_broker.data_dir) in second.output()
    assert str(own_broker.pid) in second.output()
    assert "Traceback" not in second.output()
    second.close()
    assert entered(own_broker.port).reason_code == 0
    own_broker.kill()
    own_broker.start()
    assert own_broker.stop() == 0


def test_a_port_that_is_taken_is_told(own_broker: BrokerProcess, tmp_path: Path) -> None:
    own_broker.start()
    other = BrokerProcess(tmp_path / "other", settings={"listeners.mqtt": f"127.0.0.1:{own_broker.port}"})
    other.launch()
    assert other.wait() != 0
    assert f"listeners.mqtt: cannot listen on 127.0.0.1:{own_broker.port}" in " ".join(other.output().split())
    assert "Traceback" not in other.output()
    other.close()


def test_settings_come_from_file_environment_and_set(tmp_path: Path) -> None:
    file = tmp_path / "embermq.toml"
    file.write_text(
        "[mqtt]\nreceive_maximum = 11\nkeep_alive_max_s = 22\nmax_qos = 1\n[device]\nqueue_limit = 5\n"
    )
    broker = BrokerProcess(
        tmp_path / "data",
        env={"EMBERMQ_MQTT__KEEP_ALIVE_MAX_S": "33", "EMBERMQ_MQTT__MAX_QOS": "0"},
        settings={"mqtt.max_qos": 1},
        arguments=("--config", str(file)),
    )
    with broker:
        properties = entered(broker.port).properties
        assert properties is not None
        assert (properties.receive_maximum, properties.server_keep_alive, properties.maximum_qos) == (
            11,
            33,
            1,
        )


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("mqtt.recieve_maximum=5", "receive_maximum"),
        ("device.queue_limit=70000", "65535"),
        ("device.queue_limit=0", "queue_limit"),
        ("log.durability=fast", "durability"),
        ("listeners.mqtt=nonsense", "listeners.mqtt"),
    ],
)
@pytest.mark.promise("device-6")
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, assignment: str, told: str) -> None:
    done = run_program("run", "--no-pipeline", "--data-dir", tmp_path, "--set", assignment)
    assert done.returncode != 0
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_what_mqtt_3_cannot_tell_a_client_is_in_the_log(tmp_path: Path) -> None:
    """At the level `debug`, since anybody could fill it."""
    settings = {"logging.level": "debug", "mqtt.max_qos": 1, "mqtt.packet_bytes_max": 2_000_000}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:

        async def scenario() -> None:
            old = MqttClient("old\x1b-1", version=V311)
            await old.connect(broker.port)
            assert await old.subscribe(Subscription("$queue/a", 0)) == (0x80,)
            with pytest.raises(ConnectionEnded):
                await old.publish("$queue/a//b", b"", qos=1)
            again = MqttClient("old-2", version=V311)
            await again.connect(broker.port)
            with pytest.raises(ConnectionEnded):
                await again.publish("t", b"", qos=2)
            third = MqttClient("old-3", version=V311)
            await third.connect(broker.port)
            with pytest.raises(ConnectionEnded):
                await third.publish("$queue/a\nERROR forged", bytes(1024 * 1024 + 1), qos=1)

        asyncio.run(scenario())
        told = broker.output()
        assert "queue a\\nERROR forged: payload of 1048577 bytes" in told
        assert "DEBUG refused client 'old\\x1b-1' at 127.0.0.1:" in told
        assert ": SUBSCRIBE: " in told and ": PUBLISH: " in told
        assert ": QoS 2, the maximum is 1" in told
        assert "\x1b" not in told


def test_accounts_decide_who_enters_and_as_what(own_broker: BrokerProcess) -> None:
    for name, kind in (("ann", "device"), ("billing", "application")):
        done = run_program(
            "users", "add", name, "--type", kind, "--data-dir", own_broker.data_dir, stdin="secret\n"
        )
        assert done.returncode == 0, done.stderr
    own_broker.start()
    port = own_broker.port
    assert entered(port, username="ann", password=b"secret").reason_code == 0
    assert entered(port, username="billing", password=b"secret").reason_code == 0
    for username, password in (("ann", b"wrong"), ("ann", None), ("nobody", b"secret"), ("", b"")):
        assert entered(port, username=username, password=password).reason_code == 0x86
    assert entered(port, version=V311, username="ann", password=b"wrong").reason_code in (4, 5)
    assert entered(port).reason_code == 0, "anonymous clients may enter on loopback"
    assert "secret" not in own_broker.output()
    assert own_broker.stop() == 0


@pytest.mark.parametrize(("allowed", "reason"), [(False, 0x87), (True, 0)])
def test_anonymous_clients_enter_elsewhere_only_when_allowed(
    own_broker: BrokerProcess, allowed: bool, reason: int
) -> None:
    """A listener on every interface is none on loopback, whichever way a client comes."""
    own_broker.settings["listeners.mqtt"] = f"0.0.0.0:{own_broker.port}"
    own_broker.settings["clients.allow_anonymous"] = str(allowed).lower()
    own_broker.start()
    assert entered(own_broker.port).reason_code == reason
    assert own_broker.stop() == 0


def test_health_readiness_and_metrics(broker: BrokerProcess) -> None:
    assert f"  dashboard  http://127.0.0.1:{broker.http_port}/\n" in broker.output()
    status, body = get(broker, "/health")
    assert (status, json.loads(body)["status"]) == (200, "ok")
    status, body = get(broker, "/ready")
    assert status == 200
    assert json.loads(body)["ready"] is True
    entered(broker.port, "metrics")
    status, body = get(broker, "/metrics")
    assert status == 200
    values = dict(line.rsplit(" ", 1) for line in body.splitlines() if line and not line.startswith("#"))
    assert all(name.startswith(("embermq_", "mqtt_queue", "process_")) for name in values)
    assert float(values["process_resident_memory_bytes"]) > 1_000_000
    assert 'embermq_build_info{durability="fsync",python="' in body
    accepted = [float(value) for name, value in values.items() if "connections_accepted" in name]
    assert accepted and accepted[0] >= 1
    assert get(broker, "/nothing")[0] == 404
    assert get(broker, "/api/v1/pipeline")[0] == 200


def test_commits_and_acknowledgements_are_counted_by_how_long_they_took(own_broker: BrokerProcess) -> None:
    own_broker.start()

    async def talk() -> None:
        publisher = MqttClient("p")
        await publisher.connect(own_broker.port)
        for qos in (0, 1, 1, 2):
            await publisher.publish("t", b"", qos=qos)
        publisher.close()

    began = time.monotonic()
    asyncio.run(talk())
    took_s = time.monotonic() - began
    wait_until(lambda: metric(own_broker, "acknowledged_seconds_count") == 3, 20, "all were acknowledged")
    assert 0 < metric(own_broker, "acknowledged_seconds_sum") < took_s
    assert 3 <= metric(own_broker, "sync_seconds_count") <= metric(own_broker, "commit_seconds_count")
    assert metric(own_broker, "sync_seconds_sum") < metric(own_broker, "commit_seconds_sum")
    text = get(own_broker, "/metrics")[1]
    assert 'embermq_acknowledged_seconds_bucket{le="+Inf"} 3.0' in text


def test_deliveries_are_counted_by_how_old_the_oldest_of_a_tick_was(own_broker: BrokerProcess) -> None:
    own_broker.settings["clients.application_ids"] = "app"
    own_broker.start()

    def count(client_type: str) -> float:
        return metric(own_broker, f'delivered_seconds_count{{client_type="{client_type}"}}')

    async def is_delivered(qos: int, client_id: str, client_type: str, *, keeps: bool) -> None:
        subscriber, publisher = MqttClient(client_id), MqttClient("p")
        properties = Properties(session_expiry_interval=86_400 * keeps)
        await subscriber.connect(own_broker.port, properties=properties)
        await subscriber.subscribe(Subscription("t", qos))
        await publisher.connect(own_broker.port)
        before = count(client_type)
        await publisher.publish("t", b"", qos=qos)
        await wait_for(lambda: subscriber.messages, 60, f"QoS {qos} to {client_id}")
        await wait_for(lambda: count(client_type) == before + 1, 60, f"one delivery to {client_id} more")
        for client in (subscriber, publisher):
            client.close()
            await client.ended

    async def talk() -> None:
        await is_delivered(1, "plain", "DEVICE", keeps=False)
        for qos in (1, 2):
            await is_delivered(qos, f"kept{qos}", "DEVICE", keeps=True)
        for qos in (1, 2):
            await is_delivered(qos, "app", "APPLICATION", keeps=True)

    began = time.monotonic()
    asyncio.run(talk())
    took_s = time.monotonic() - began
    for client_type in ("DEVICE", "APPLICATION"):
        assert metric(own_broker, f'delivered_seconds_sum{{client_type="{client_type}"}}') < took_s


@pytest.mark.perf
@pytest.mark.in_faults
def test_five_thousand_idle_connections(own_broker: BrokerProcess) -> None:
    own_broker.settings["clients.connect_timeout_s"] = 120  # a busy machine takes as long for some of them
    own_broker.start()

    def used_s() -> float:
        return read_cpu(own_broker.pid, children=False).own_s

    async def talk() -> None:
        before = read_pss_bytes(own_broker.pid, children=False)
        found: list[MqttClient] = []
        for start in range(0, IDLE_CONNECTIONS, 100):
            some = [MqttClient(f"idle{start + number}") for number in range(100)]
            found += some
            await asyncio.gather(*(one.connect(own_broker.port, keep_alive_s=600) for one in some))
        each = (read_pss_bytes(own_broker.pid, children=False) - before) / IDLE_CONNECTIONS / 1024
        assert each < KIB_EACH, f"{each:.1f} KiB a connection"
        publisher = MqttClient("p")
        await publisher.connect(own_broker.port)
        began = time.monotonic()
        await publisher.ping()
        judge(time.monotonic() - began, 1, "s of a ping beside idle connections")
        used = used_s()
        quiet_from = time.monotonic()
        await wait_for(lambda: time.monotonic() - quiet_from > 1.0)
        judge(used_s() - used, 0.5, "CPU s of a second with idle connections")
        for one in [*found, publisher]:
            one.abort()
        await asyncio.gather(*(one.ended for one in [*found, publisher]))

    asyncio.run(talk())
    wait_until(lambda: "embermq_connections 0" in get(own_broker, "/metrics")[1], 20, "all are gone")
    assert own_broker.stop() == 0


def test_a_broker_that_is_killed_comes_back_with_what_it_promised(own_broker: BrokerProcess) -> None:
    own_broker.start()

    async def before() -> None:
        subscriber, publisher = MqttClient("s"), MqttClient("p")
        for one in (subscriber, publisher):
            await one.connect(own_broker.port, clean_start=False, expiry_s=600)
        await subscriber.subscribe(Subscription("t/#", 2))
        subscriber.close()
        for number in range(200):
            assert await publisher.publish("t/x", b"%d" % number, qos=1 + number % 2, retain=True) < 0x80
        own_broker.kill()
        await publisher.ended

    async def after() -> None:
        subscriber = MqttClient("s")
        connack = await subscriber.connect(own_broker.port, clean_start=False, expiry_s=600)
        assert connack.session_present
        await wait_for(lambda: len(subscriber.messages) >= 200, 20)
        for qos in (1, 2):
            numbers = [int(message.payload) for message in subscriber.messages if message.qos == qos]
            assert numbers == list(range(qos - 1, 200, 2))
        late = MqttClient("late")
        await late.connect(own_broker.port)
        await late.subscribe(Subscription("t/x", 0))
        await wait_for(lambda: late.messages, 30)
        assert late.messages[0].payload == b"199"
        for one in (subscriber, late):
            one.abort()
            await one.ended

    asyncio.run(before())
    own_broker.start()
    asyncio.run(after())
    assert own_broker.stop() == 0


def test_a_connection_at_the_wrong_moment_of_a_stop(own_broker: BrokerProcess) -> None:
    own_broker.start()

    async def talk() -> None:
        os.kill(own_broker.pid, signal.SIGTERM)
        for number in range(50):
            found = MqttClient(f"c{number}")
            try:
                await found.connect(own_broker.port, clean_start=False, expiry_s=60)
            except (OSError, ConnectionEnded):
                continue
            finally:
                found.abort()

    asyncio.run(talk())
    assert own_broker.wait() == 0


@pytest.mark.promise("pipeline-5")
def test_damaged_files_of_the_pipeline_stop_neither_the_broker_nor_its_housekeeping(
    own_broker: BrokerProcess,
) -> None:
    own_broker.data_dir.mkdir()
    damaged = [own_broker.data_dir / name for name in ("applications.db", "messages.db")]
    for path in damaged:
        path.write_bytes(b"no database" * 1_000)
    own_broker.settings["clients.application_ids"] = "app*"
    own_broker.start()

    async def talk() -> None:
        application, publisher = MqttClient("app"), MqttClient("p")
        await application.connect(own_broker.port, clean_start=False, expiry_s=60)
        await publisher.connect(own_broker.port)
        await application.subscribe(Subscription("t", 1))
        assert await publisher.publish("t", b"x", qos=1) < 0x80
        await wait_for(lambda: "application logs wait" in own_broker.output(), 20)
        assert application.is_open
        for path in damaged:
            path.unlink()
        await wait_for(lambda: "application logs can be read again" in own_broker.output(), 20)
        assert application.is_open
        assert await publisher.publish("t", b"x", qos=1) < 0x80
        for one in (application, publisher):
            one.abort()
            await one.ended

    asyncio.run(talk())
    assert get(own_broker, "/api/v1/pipeline")[0] == 200
    assert own_broker.stop() == 0
