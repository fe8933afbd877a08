"""A broker and its pipeline on a Kafka that wants TLS, a certificate and a password, and gives the rights that the docs
name and no others. The password is one that every kind of quoting has to take care of, and is seen nowhere."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from tests.faults.spark_processes import jvm_of
from tests.kafka_pipeline.kafka_pipeline_broker import KafkaPipelineBroker
from tests.support import mqtt_client
from tests.support.certificates import Authority
from tests.support.forked_program import run_program
from tests.support.kafka_gate import KafkaGate, for_java
from tests.support.kafka_rights import AUTHORIZER, give_documented_rights, refusals
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for, wait_until

from embermq.mqtt.wire.packets import Subscription

USER = "ember"
SEEN = "correct-horse"
"""Stands in the password as it is, however that is quoted."""
PASSWORD = rf"""q"b\s\\;e%20t'`-{SEEN}-${{1}} #[x]=y&@/:?"""
REFUSED = "invalid credentials with SASL mechanism SCRAM-SHA-512"
QUERIES = ("dispatch", "archive", "traffic")
MESSAGES = 20
DAY_S = 86_400
SEEN_S = 60.0
ITERATIONS = 4_096


class Guarded:
    """The broker, and where its password might be seen."""

    def __init__(self, kafka: KafkaServer, authority: Authority, folder: Path) -> None:
        self.kafka = kafka
        folder.mkdir()
        self.password_file = folder / "password"
        self.password_file.write_text(f"{PASSWORD}\n")
        self.printed: list[str] = []
        settings = {
            "stores.log": f"kafka+ssl://{USER}@{kafka.bootstrap}?password_file={self.password_file}"
            f"&ca_file={authority.certificate}&cert_file={for_java(authority.client(), folder / 'own.pem')}",
            "pipeline.queries": json.dumps(QUERIES),
        }
        self.broker = KafkaPipelineBroker(kafka, folder, settings)
        self.broker.installed = True  # or its command line would be that of what it is forked from

    def command(self, *words: str) -> str:
        """What `embermq WORDS...` prints with the broker's settings."""
        settings = self.broker.settings.items()
        given = [word for key, value in settings for word in ("--set", f"{key}={value}")]
        done = run_program(*words, "--data-dir", self.broker.data_dir, *given)
        self.printed.append(done.stdout + done.stderr)
        assert done.returncode == 0, self.printed[-1]
        return done.stdout

    def password_is(self, password: str) -> None:
        """From now on, for who logs in."""
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
        change = UserScramCredentialUpsertion(USER, scram, password.encode())
        for answer in self.kafka.admin.alter_user_scram_credentials([change]).values():
            answer.result(SEEN_S)

    def ready(self) -> str:
        """What /ready says, behind its status."""
        answer = httpx.get(f"http://127.0.0.1:{self.broker.http_port}/ready", timeout=SEEN_S)
        self.printed.append(answer.text)
        return f"{answer.status_code} {answer.text}"

    def shows_password(self) -> list[str]:
        """Where it stands: what was printed, files, and what `ps` shows of the processes that run."""
        broker = self.broker
        texts = {"printed": "".join(self.printed).encode(), "output": broker.output_from(0)}
        found = (Path(at, name) for at, _, names in os.walk(broker.data_dir) for name in names)
        files = [path for path in found if path.is_file()]
        for pid in (broker.pid, *broker.descendants()):
            files += [Path(f"/proc/{pid}/cmdline"), Path(f"/proc/{pid}/environ")]
        for path in files:
            with suppress(OSError):  # it is gone
                texts[str(path)] = path.read_bytes()
        return [place for place, text in texts.items() if SEEN.encode() in text]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    authority = Authority(tmp_path / "authority")
    gate = KafkaGate(
        username=USER,
        password=PASSWORD,
        certificate=authority.server(),
        authority=authority.certificate,
        mutual=True,
    )
    with KafkaServer(tmp_path / "kafka", gate=gate, settings=AUTHORIZER) as kafka:
        found = Guarded(kafka, authority, tmp_path / "with space")
        give_documented_rights(kafka, USER, found.broker.prefix)
        with found.broker:
            found.broker.wait_for_pipeline()
            yield found


class Clients:
    """An application, two that share a subscription, and who publishes to them."""

    def __init__(self) -> None:
        self.application = MqttClient("appGuarded")
        self.members = [MqttClient("appMember1"), MqttClient("appMember2")]
        self.publisher = MqttClient("publisher-to-guarded")

    async def come(self, port: int) -> None:
        for client in (self.application, *self.members, self.publisher):
            await client.connect(port, expiry_s=DAY_S)
        assert await self.application.subscribe(Subscription("guarded/#", 2)) == (2,)
        for member in self.members:
            assert await member.subscribe(Subscription("$share/both/guarded/+", 2)) == (2,)

    async def publish(self, payload: bytes, qos: int = 1) -> None:
        assert await self.publisher.publish(f"guarded/{len(payload)}", payload, qos=qos) < 0x80

    async def have(self, payloads: list[bytes]) -> None:
        """All have come to the application, and each to one of those that share."""
        for clients in ([self.application], self.members):
            await wait_for(lambda: len(came_to(clients)) >= len(payloads), SEEN_S, "all have come")  # noqa: B023
            assert sorted(came_to(clients)) == sorted(payloads)


def came_to(clients: list[MqttClient]) -> list[bytes]:
    return [message.payload for client in clients for message in client.messages]


def looks_well(guarded: Guarded) -> None:
    """What commands tell while all goes well."""
    broker = guarded.broker

    def is_done() -> bool:
        told = json.loads(guarded.command("pipeline", "status", "--json"))
        done = {query["name"]: query["position"] for query in told["queries"]}
        is_all = told["log_end"] >= MESSAGES and done == dict.fromkeys(QUERIES, told["log_end"])
        return is_all and not told["warnings"]

    wait_until(is_done, SEEN_S, "all queries have done all")
    stored = guarded.command("messages", "show", "--topic", "guarded/1", "--json").splitlines()
    assert [json.loads(line)["payload"] for line in stored] == [str(number) for number in range(10)]
    logs = guarded.command("sessions", "logs")
    assert f"{broker.log_of('appGuarded')} " in logs
    assert f"{broker.prefix}.msg.app.shared.guarded.slw " in logs
    assert "an acknowledged message survives" in guarded.command("check-config")


async def is_told(guarded: Guarded) -> None:
    """Kafka lets nobody in: driver, Spark and commands say why."""
    driver_log = guarded.broker.data_dir / "pipeline" / "driver.log"

    def dispatch_tells() -> bool:
        return REFUSED in guarded.broker.query("dispatch")["last_error"]

    await wait_for(dispatch_tells, SEEN_S, "Spark tells")
    await wait_for(
        lambda: f"WARNING embermq.pipeline.kafka_lags: {guarded.kafka.bootstrap}" in driver_log.read_text()
    )
    told = await asyncio.to_thread(guarded.command, "pipeline", "status")
    assert "warning: the log was not looked at" in told and REFUSED in told.partition("warning: the log")[2]


@pytest.mark.in_faults
@pytest.mark.promise(
    "application-3", "application-11", "pipeline-1", "pipeline-13", "pipeline-14", "pipeline-16"
)
def test_all_works_and_the_password_is_seen_nowhere_also_when_it_is_wrong(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_client, "ANSWER_S", 300.0)  # of what is published while Kafka lets nobody in
    broker, kafka = guarded.broker, guarded.kafka
    first = [b"%d" % number for number in range(MESSAGES)]

    async def scenario() -> None:
        clients = Clients()
        await clients.come(broker.port)
        for number, payload in enumerate(first):
            await clients.publish(payload, qos=1 + number % 2)
        await clients.have(first)
        await asyncio.to_thread(looks_well, guarded)
        guarded.password_is("another one")
        await asyncio.to_thread(kafka.restart)
        await is_told(guarded)
        late = asyncio.create_task(clients.publish(b"late"))
        await wait_for(lambda: REFUSED in guarded.ready(), SEEN_S, "the broker tells")
        assert guarded.shows_password() == []
        assert not late.done()
        guarded.password_is(PASSWORD)
        await late
        await clients.have([*first, b"late"])
        await wait_for(lambda: guarded.ready().startswith("200"), SEEN_S, "all is well")

    run(scenario(), 350)
    assert jvm_of(broker) and any((broker.data_dir / "pipeline" / "checkpoints").rglob("offsets/*"))
    assert guarded.shows_password() == []
    broker.pipeline = False
    broker.restart()  # which reads the log
    assert refusals(kafka) == []
