"""An APPLICATION client of a real broker that does not acknowledge, or does not read; what an operator does then."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.kafka_dispatcher import KafkaDispatcher
from tests.support.kafka_server import KafkaServer
from tests.support.metrics import metric
from tests.support.mqtt_client import MqttClient, run
from tests.support.played_pipeline import PlayedPipeline
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_for

from embermq.mqtt.wire.encoder import puback
from embermq.mqtt.wire.packets import Packet, Publish, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
KEPT_S = 3_600
TIMEOUT_S = 60
LARGE = 64 * 1024
MANY = 400
RATE = 500
PATIENT = {
    "clients.application_ids": "app-*",
    "application.pack_timeout_s": 1.5,  # who acknowledges is not late with a busy machine, either
    "application.retries": 1,
}
HASTY = {
    "clients.application_ids": "app-*",
    "application.pack_timeout_s": 0.5,
    "application.ack_strategy": "skip-all",
    "application.replay_rate": RATE,
    "application.write_and_flush": True,
}


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """What is late is sent again once and then parked."""
    yield from _broker(tmp_path_factory.mktemp("patient"), PATIENT)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """What is late is skipped."""
    yield from _broker(tmp_path_factory.mktemp("hasty"), HASTY)


@pytest.fixture(scope="module")
def patient_on_kafka(
    running_kafka: KafkaServer, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """The same, on servers."""
    running_kafka.heal()
    prefix = running_kafka.prefix()
    place = on_servers(running_kafka, module_redis, prefix)
    data_dir = tmp_path_factory.mktemp("patient-on-kafka")
    with (
        BrokerProcess(data_dir, settings=PATIENT | place) as broker,
        KafkaDispatcher(running_kafka, prefix),
    ):
        yield broker


@pytest.fixture(params=["embedded", "kafka"])
def either(request: pytest.FixtureRequest) -> BrokerProcess:
    """Wherever its logs are."""
    name = "patient_on_kafka" if request.param == "kafka" else "patient"
    broker: BrokerProcess = request.getfixturevalue(name)
    return broker


def _broker(data_dir: Path, settings: dict[str, object]) -> Iterator[BrokerProcess]:
    with BrokerProcess(data_dir, settings=settings) as broker, PlayedPipeline(data_dir):
        yield broker


def typed(broker: BrokerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    return run_program("sessions", "parked", *words, "--data-dir", broker.data_dir, timeout_s=TIMEOUT_S)


async def parked(broker: BrokerProcess, *words: str, fails: bool = False) -> str:
    """What `embermq sessions parked` prints, or with `fails` says to be wrong."""
    done = await asyncio.to_thread(typed, broker, *words)
    assert (done.returncode != 0) is fails, done.stderr
    return done.stderr if fails else done.stdout


async def enters(
    broker: BrokerProcess, client_id: str, topic: str, *, version: ProtocolVersion = V311, **options: bool
) -> MqttClient:
    client = MqttClient(client_id, version=version, **options)
    answer = await client.connect(broker.port, clean_start=False, expiry_s=KEPT_S)
    if not answer.session_present:
        await client.subscribe(Subscription(topic, 2))
    return client


async def publish(broker: BrokerProcess, topic: str, *payloads: bytes, qos: int = 1) -> None:
    publisher = MqttClient(f"publisher-{topic}")
    await publisher.connect(broker.port)
    await asyncio.gather(*(publisher.publish(topic, payload, qos=qos) for payload in payloads))
    publisher.close()
    await publisher.ended


def payloads(client: MqttClient) -> list[bytes]:
    return [message.payload for message in client.messages]


async def leaves(client: MqttClient) -> None:
    client.abort()
    await client.ended


@pytest.mark.promise("application-5", "application-6")
def test_an_mqtt_3_client_is_sent_it_again_and_then_it_is_parked(either: BrokerProcess) -> None:
    async def scenario() -> None:
        before = metric(either, "application_parked")
        client = await enters(either, "app-3", "three", acknowledges=False)
        await publish(either, "three", b"one", b"two")
        await publish(either, "three", b"\xff\0", qos=2)
        await wait_for(lambda: len(client.messages) == 6, 30)
        for is_again in (False, True):  # who is late with the third has the first two again before it
            assert [one.payload for one in client.messages if one.dup is is_again] == [
                b"one",
                b"two",
                b"\xff\0",
            ]
        held = client.messages[-1].packet_id
        await wait_for(lambda: metric(either, "application_parked") == before + 3, 30)
        found = json.loads(await parked(either, "list", "app-3", "--json"))
        assert [(one["topic"], one["qos"], one["state"], one["attempts"]) for one in found] == [
            ("three", 1, "parked", 2),
            ("three", 1, "parked", 2),
            ("three", 2, "parked", 2),
        ]
        told = re.findall(r"parked (\d) messages that 'app-3' did not acknowledge", either.output())
        assert sum(map(int, told)) == 3
        client.acknowledges = True  # at once: the command may take longer than a message waits
        assert await parked(either, "redrive", "app-3", "1", "2") == "redriven 2 messages\n"
        await wait_for(lambda: len(client.messages) == 8)
        await client.ping()
        await leaves(client)
        again = await enters(either, "app-3", "three")
        await publish(either, "three", b"new")
        await wait_for(lambda: again.messages)
        assert payloads(again) == [b"new"], "what is parked does not come by itself"
        assert await parked(either, "redrive", "app-3", "--all") == "redriven 1 message\n"
        await wait_for(lambda: len(again.messages) == 2)
        assert [(one.payload, one.packet_id, one.dup) for one in again.messages[1:]] == [
            (b"\xff\0", held, True)
        ]
        await again.ping()
        assert json.loads(await parked(either, "list", "app-3", "--json")) == []
        await leaves(again)

    run(scenario())


@pytest.mark.promise("application-6")
def test_an_mqtt_5_client_is_sent_away_for_it(either: BrokerProcess) -> None:
    async def scenario() -> None:
        client = await enters(either, "app-5", "five", version=V5, acknowledges=False)
        await publish(either, "five", b"x")
        await wait_for(client.ended.done)
        assert client.disconnect_received is not None
        assert client.disconnect_received.reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        assert [message.dup for message in client.messages] == [False]
        before = metric(either, "application_parked")
        again = await enters(either, "app-5", "five", version=V5, acknowledges=False)
        await wait_for(lambda: metric(either, "application_parked") == before + 1)
        assert [message.dup for message in again.messages] == [True]
        assert again.is_open, "nobody has to go for what is parked"
        assert await parked(either, "redrive", "app-5", "--all") == "redriven 1 message\n"
        await wait_for(again.ended.done)
        last = await enters(either, "app-5", "five", version=V5)
        await wait_for(lambda: last.messages)
        assert payloads(last) == [b"x"]
        await last.ping()
        await leaves(last)

    run(scenario())


@pytest.mark.promise("application-6")
def test_deleted_is_gone_and_a_restart_keeps_the_rest(patient: BrokerProcess) -> None:
    async def scenario() -> None:
        before = metric(patient, "application_parked")
        client = await enters(patient, "app-d", "deleted", acknowledges=False)
        await publish(patient, "deleted", b"1", b"\xff\0")
        await wait_for(lambda: metric(patient, "application_parked") == before + 2)
        assert "app-d " in await parked(patient, "list")
        assert "0xff00" in await parked(patient, "show", "app-d", "2")
        assert await parked(patient, "delete", "app-d", "1", "--yes") == "deleted 1 message\n"
        assert "no parked message 1" in await parked(patient, "show", "app-d", "1", fails=True)
        assert "no session" in await parked(patient, "list", "nobody", fails=True)
        assert "numbers of messages" in await parked(patient, "redrive", "app-d", fails=True)
        patient.kill()
        await client.ended
        await asyncio.to_thread(patient.start)
        (left,) = json.loads(await parked(patient, "list", "app-d", "--json"))
        assert (left["number"], left["state"]) == (2, "parked")
        await parked(patient, "redrive", "app-d", "2")
        again = await enters(patient, "app-d", "deleted")
        await wait_for(lambda: again.messages)
        assert payloads(again) == [b"\xff\0"]
        await leaves(again)

    run(scenario())


@pytest.mark.promise("application-4", "application-9")
def test_the_window_slides_past_one_that_is_not_acknowledged(patient: BrokerProcess) -> None:
    """More than a pack, and what has expired is not among it."""

    async def scenario() -> None:
        client = await enters(patient, "app-w", "window", acknowledges=False)

        def answer(packet: Packet) -> None:
            if isinstance(packet, Publish) and packet.payload != b"0":
                client.send_bytes(puback(packet.packet_id))

        client.on_packet = answer
        publisher = MqttClient("publisher-w")
        await publisher.connect(patient.port)
        await publisher.publish("window", b"late", qos=1, properties=Properties(message_expiry_interval=0))
        publisher.close()
        await publish(patient, "window", *(b"%d" % number for number in range(500)))
        await wait_for(lambda: len(set(payloads(client))) == 500)
        assert b"late" not in payloads(client)
        assert [one for one in payloads(client) if one != b"0"] == [
            b"%d" % number for number in range(1, 500)
        ]
        await leaves(client)

    run(scenario())


@pytest.mark.promise("application-7")
def test_a_client_that_does_not_read_pauses_its_reader_and_loses_nothing(patient: BrokerProcess) -> None:
    async def scenario() -> None:
        client = await enters(patient, "app-slow", "slow")
        client.pause_reading()
        sent = metric(patient, "messages_sent")
        rest = bytes(LARGE)
        await publish(patient, "slow", *(b"%04d" % number + rest for number in range(MANY)))
        began = time.monotonic()
        before = -1.0
        while time.monotonic() - began < TIMEOUT_S:
            now = metric(patient, "messages_sent")
            if now == before:
                break
            before = now
            await asyncio.sleep(0.3)  # so long without one more: it waits
        assert before - sent < MANY - 50, "its socket would hold everything"
        client.resume_reading()
        await wait_for(lambda: len(set(payloads(client))) == MANY, TIMEOUT_S)
        first = [one.payload[:4] for one in client.messages if not one.dup]
        assert first == [b"%04d" % number for number in range(MANY)]
        await leaves(client)

    run(scenario())


@pytest.mark.promise("application-6", "application-10", "application-13")
def test_skipped_ones_do_not_come_again_and_a_backlog_has_its_rate(hasty: BrokerProcess) -> None:
    async def scenario() -> None:
        client = await enters(hasty, "app-skip", "skip", acknowledges=False)
        await publish(hasty, "skip", b"1", b"2")
        await wait_for(lambda: metric(hasty, "application_skipped") == 2)
        await leaves(client)
        count = 2 * RATE
        await publish(hasty, "skip", *(b"%d" % number for number in range(count)))
        began = time.monotonic()
        again = await enters(hasty, "app-skip", "skip")
        await wait_for(lambda: len(again.messages) == count, TIMEOUT_S)
        assert time.monotonic() - began > 0.9, "half of them are more than a second's"
        assert payloads(again) == [b"%d" % number for number in range(count)]
        assert not any(message.dup for message in again.messages)
        await leaves(again)

    run(scenario())
