"""A client's log in Kafka, from CONNECT to the end of its session: by a broker that is killed, asked and restarted. The
test does what the pipeline would do, when it wants to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from confluent_kafka import TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.hand_pipeline import HandPipeline
from tests.support.kafka_server import KafkaServer
from tests.support.metrics import metric
from tests.support.mqtt_client import MqttClient, run
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Subscription
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

DAY_S = 86_400
REFUSED_S = 1.0
TIMEOUT_S = 60
V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5


class Place:
    """A broker on a Kafka, and what its topics are."""

    def __init__(self, kafka: KafkaServer, redis: RedisServer, folder: Path) -> None:
        self.kafka = kafka
        self.redis = redis
        self.prefix = kafka.prefix()
        self.folder = folder
        self.broker = self.broker_on("data")
        self.pipeline = HandPipeline(kafka, self.prefix)

    def broker_on(self, data: str, **settings: object) -> BrokerProcess:
        own = on_servers(self.kafka, self.redis, self.prefix) | {
            "clients.application_ids": json.dumps(["app*"]),
        }
        constants = {"embermq.app.kafka_log.CONNECT_WAIT_S": TIMEOUT_S}
        return BrokerProcess(self.folder / data, settings=own | settings, constants=constants)

    def log_of(self, client_id: str) -> str:
        return f"{self.prefix}.msg.app.{client_id}"

    def logs(self) -> list[str]:
        """Every application log, by its last part."""
        topics = self.kafka.admin.list_topics(timeout=TIMEOUT_S).topics
        root = self.log_of("")
        return sorted(topic.removeprefix(root) for topic in topics if topic.startswith(root))

    def typed(self, *words: str, fails: bool = False) -> str:
        """What `embermq sessions` prints."""
        done = run_program("sessions", *words, "--data-dir", self.broker.data_dir, timeout_s=TIMEOUT_S)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def restores(self, log: str) -> int | None:
        """As the pipeline's driver asks."""
        found: int | None = self._asks(
            "POST", "/api/v1/application-logs/restore", json={"topic": log}
        ).json()["generation"]
        return found

    def ends(self, client_id: str) -> None:
        """An operator deletes the session."""
        self._asks("DELETE", f"/api/v1/clients/{quote(client_id, safe='')}")

    def _asks(self, method: str, path: str, **given: Any) -> httpx.Response:
        transport = httpx.HTTPTransport(uds=str(self.broker.data_dir / "control.sock"))
        with httpx.Client(transport=transport, base_url="http://broker", timeout=TIMEOUT_S) as client:
            return client.request(method, path, **given).raise_for_status()

    async def comes(
        self, client_id: str = "app", *, clean_start: bool = False, expiry_s: int = DAY_S
    ) -> MqttClient:
        client = MqttClient(client_id)
        answer = await client.connect(self.broker.port, clean_start=clean_start, expiry_s=expiry_s)
        assert answer.reason_code == 0, answer
        return client

    async def comes_again(self, client_id: str) -> MqttClient:
        """Until it is let in."""
        while True:
            client = MqttClient(client_id)
            answer = await client.connect(self.broker.port, clean_start=False, expiry_s=DAY_S)
            if answer.reason_code == 0:
                return client
            assert answer.reason_code == ReasonCode.SERVER_UNAVAILABLE
            await client.ended

    async def is_refused(self, client_id: str, version: ProtocolVersion) -> None:
        """After a while, and by what its version has for it."""
        client = MqttClient(client_id, version=version)
        expiry_s = DAY_S if version is V5 else 0
        answer = await client.connect(self.broker.port, clean_start=False, expiry_s=expiry_s)
        assert answer.reason_code == (ReasonCode.SERVER_UNAVAILABLE if version is V5 else 3)
        await client.ended

    async def publishes(self, topic: str, *payloads: bytes) -> None:
        publisher = MqttClient("publisher")
        await publisher.connect(self.broker.port)
        await asyncio.gather(*(publisher.publish(topic, payload, qos=1) for payload in payloads))
        publisher.close()
        await publisher.ended

    async def goes(self, *logs: str) -> None:
        """Wait until just these are left."""
        await wait_for(lambda: self.logs() == sorted(logs), 30, f"only {logs} are left")


async def leaves(client: MqttClient) -> None:
    client.abort()
    await client.ended


@pytest.fixture
def place(kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path) -> Iterator[Place]:
    found = Place(kafka, redis_server, tmp_path)
    with found.broker, found.pipeline:
        yield found
        kafka.heal()


@pytest.mark.promise("application-2")
def test_a_log_is_there_before_connack_and_goes_when_the_pipeline_has_passed(place: Place) -> None:
    async def scenario() -> None:
        client = await place.comes()
        hashed = sha256(b"app/1").hexdigest()
        other = await place.comes("app/1")
        assert place.logs() == sorted(["app", hashed])
        device = await place.comes("device")
        await client.subscribe(Subscription("t", 1))
        await leaves(client)
        await place.publishes("t", b"0", b"1")
        assert json.loads(place.typed("logs", "--json")) == [
            {
                "name": place.log_of(name),
                "client_id": client_id,
                "groups": [],
                "records": 0,
                "lag": 0,
                "problem": "",
            }
            for name, client_id in sorted([("app", "app"), (hashed, "app/1")])
        ]
        assert place.pipeline.carry() == 2
        shown = json.loads(place.typed("show", "app", "--json"))["session"]
        assert (shown["log"], shown["log_records"], shown["behind"]) == (place.log_of("app"), 2, 2)
        assert place.typed("list", "--match", "app").splitlines()[1].split()[-1] == "2"
        await place.publishes("t", b"2")
        first = TopicPartition(place.log_of("app"), 0, 1)
        place.kafka.admin.delete_records([first])[first].result(TIMEOUT_S)  # as a retention would
        back = await place.comes()
        await wait_for(lambda: back.messages, 30, "what is left")
        assert [message.payload for message in back.messages] == [b"1"]
        assert "partition 0: 1 records were deleted before they were read" in place.broker.output()
        await wait_for(lambda: metric(place.broker, "application_entries_lost") == 1, 30, "it is counted")
        await asyncio.to_thread(place.ends, "app")
        await asyncio.sleep(1.2)
        assert place.logs() == sorted(["app", hashed]), "a record is stamped for it that is not carried yet"
        assert place.pipeline.carry() == 1
        await place.goes(hashed)
        for one in (other, device):
            await leaves(one)

    run(scenario())


@pytest.mark.promise("application-2")
def test_a_client_that_returns_never_sees_an_earlier_lifes_records(place: Place) -> None:
    async def scenario() -> None:
        first = await place.comes()
        await first.subscribe(Subscription("t", 1))
        await leaves(first)
        await place.publishes("t", b"delivered to nobody")
        assert place.pipeline.carry() == 1
        await place.publishes("t", b"still on its way")
        again = await place.comes(clean_start=True)
        await again.subscribe(Subscription("t", 1))
        await place.publishes("t", b"new")
        assert place.pipeline.carry() == 2
        await wait_for(lambda: again.messages, 30, "the new one")
        await place.publishes("t", b"newer")
        assert place.pipeline.carry() == 1
        await wait_for(lambda: len(again.messages) == 2, 30, "the newer one")
        assert [message.payload for message in again.messages] == [b"new", b"newer"]
        await leaves(again)
        assert place.logs() == ["app"]

    run(scenario())


@pytest.mark.promise("application-2")
def test_a_crash_between_session_and_log_is_put_right_at_the_start(place: Place) -> None:
    """Killed when the session had ended and its log had not gone; and when the session was stored and its log was not
    there, before anything could match and after."""

    async def scenario() -> None:
        over = await place.comes("appOver")
        kept = await place.comes("appKept")
        new = await place.comes("appNew")
        for client in (over, kept):
            await client.subscribe(Subscription("t", 1))
        for client in (over, kept, new):
            await leaves(client)
        await place.publishes("t", b"0")
        await asyncio.to_thread(place.ends, "appOver")
        place.broker.kill()
        gone = [place.log_of("appKept"), place.log_of("appNew")]
        await asyncio.to_thread(place.kafka.delete_topic, *gone)
        await asyncio.to_thread(place.broker.start)
        await place.goes("appKept", "appNew", "appOver")
        await wait_for(lambda: "appKept' was missing and is there again" in place.broker.output(), 30)
        assert "appNew' was missing" not in place.broker.output()
        place.pipeline.carry()
        await place.goes("appKept", "appNew")
        back = await place.comes("appKept")
        await wait_for(lambda: back.messages, 30, "what was not in the log yet")
        assert [message.payload for message in back.messages] == [b"0"]
        await leaves(back)

    run(scenario())


@pytest.mark.promise("application-2", "pipeline-4")
def test_the_pipeline_is_told_which_logs_there_have_to_be(place: Place) -> None:
    async def scenario() -> None:
        log = place.log_of("app")
        client, other = await place.comes(), await place.comes("app2")
        await client.subscribe(Subscription("t", 1))
        await place.publishes("t", b"0")
        for topic in (log, place.log_of("app2")):
            await asyncio.to_thread(place.kafka.delete_topic, topic)
        assert await asyncio.to_thread(place.restores, log) is None
        assert place.logs() == ["app", "app2"], "all that are missing come with the one that is asked for"
        await leaves(other)
        await leaves(client)
        await asyncio.to_thread(place.ends, "app")
        nobody = await asyncio.to_thread(place.restores, log)
        assert nobody is not None
        back = await place.comes()
        assert await asyncio.to_thread(place.restores, log) is None
        assert place.pipeline.carry() == 1
        await back.subscribe(Subscription("t", 1))
        await place.publishes("t", b"1")
        assert place.pipeline.carry() == 1
        await wait_for(lambda: back.messages, 30)
        assert [message.payload for message in back.messages] == [b"1"]
        for _ in range(20):
            # Who comes and goes all the time: a stamp that is thrown away is of a session that is over.
            back = await place.comes(clean_start=True)
            asked = asyncio.to_thread(place.restores, log)
            await leaves(back)
            assert await asked is None
        await leaves(back)

    run(scenario())


@pytest.mark.promise("application-2")
def test_a_connect_waits_for_kafka_and_no_longer_than_so(place: Place) -> None:
    async def scenario() -> None:
        await leaves(await place.comes("appOld"))
        await asyncio.to_thread(place.broker.stop)
        place.broker.constants["embermq.app.kafka_log.CONNECT_WAIT_S"] = REFUSED_S
        await asyncio.to_thread(place.broker.start)
        await asyncio.to_thread(place.kafka.stop)
        who = (("appNew", V5), ("appOld", V5), ("appThird", V311))
        await asyncio.gather(*(place.is_refused(client_id, version) for client_id, version in who))
        await asyncio.to_thread(place.kafka.start)
        for client_id, _ in who:
            client = await place.comes_again(client_id)
            await client.subscribe(Subscription("t", 1))
            await place.publishes("t", b"0")
            await leaves(client)
        assert place.logs() == ["appNew", "appOld", "appThird"]

    run(scenario())


@pytest.mark.promise("application-2")
def test_a_broker_of_another_data_directory_deletes_nothing(place: Place) -> None:
    async def scenario() -> None:
        await leaves(await place.comes())
        await asyncio.to_thread(place.broker.stop)
        other = place.broker = place.broker_on(
            "other",
            **{
                "stores.session": f"{place.redis.url}/1",
                "application.client_id_validation": "false",
                "kafka.replication_factor": 1,
            },
        )
        with other:
            told = "1 application logs that no session of this data directory reads"
            await wait_for(lambda: told in other.output(), TIMEOUT_S, told)
            refused = MqttClient("app-1")
            answer = await refused.connect(other.port, expiry_s=DAY_S)
            assert answer.reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
            assert answer.properties is not None
            assert "client id 'app-1' has no application log" in str(answer.properties.reason_string)
            client = await place.comes("app2")
            assert "say --yes" in place.typed("logs", "--clean", fails=True)
            shown = place.typed("logs", "--clean", "--dry-run").splitlines()
            assert [line.split() for line in shown[1:]] == [[place.log_of("app"), "nobody", "0", "-"]]
            assert place.logs() == ["app", "app2"]
            assert place.typed("logs", "--clean", "--yes") == f"deleted {place.log_of('app')}\n"
            assert place.logs() == ["app2"]
            await leaves(client)

    run(scenario())
