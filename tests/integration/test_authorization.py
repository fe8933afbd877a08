"""Rules in the running broker: every action, by real clients of both kinds of version, and rules that change."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from cryptography.x509.oid import NameOID
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient, run
from tests.support.raw_client import RawClient, dial
from tests.support.users import PASSWORD, add_users
from tests.support.waiting import wait_for, wait_until

from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Connack, Connect, Publish, Suback, Subscribe, Subscription, Will
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

V5, V311 = ProtocolVersion.V5, ProtocolVersion.V311
RULES = """\
[[rule]]
deny = "receive"
topics = "+/secret/#"

[[rule]]
allow = ["publish", "read"]
user = "ann"
topics = ["ann/#", "shared/#"]

[[rule]]
allow = "read"
user = "bob"

[[rule]]
allow = "publish"
user = "bob"
topics = "shared/%u"

[[rule]]
allow = "takeover"
user = "ann"
"""


class Broker(BrokerProcess):
    """A broker with rules, and the users ann and bob."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.rules = folder / "rules.toml"
        self.rules.write_text(RULES)
        super().__init__(folder / "data", settings={"authorization.rules": self.rules, **settings})
        add_users(self.data_dir, "ann", "bob")

    def changes(self, text: str) -> None:
        """Replace the file, and wait until the broker has taken it by itself."""
        before = len(self.output_from(0))
        self.rules.write_text(text)
        wait_until(lambda: b"rules from" in self.output_from(before), what="the new rules")

    def counter(self, name: str) -> int:
        url = f"http://127.0.0.1:{self.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return int(
            float(next(line.split()[1] for line in lines if line.startswith(f"embermq_{name}_total ")))
        )


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("rules"))
    with broker:
        yield broker
        assert "Traceback" not in broker.output()


async def enter(
    broker: BrokerProcess, user: str, client_id: str, version: ProtocolVersion = V5, **options: object
) -> MqttClient:
    client = MqttClient(client_id, version=version)
    answer = await client.connect(broker.port, username=user, password=PASSWORD, **options)  # type: ignore[arg-type]
    assert answer.reason_code == 0
    return client


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_action(ruled: Broker, name: str, version: ProtocolVersion, qos: int) -> None:
    async def scenario() -> None:
        ann, bob = (
            await enter(ruled, "ann", f"a{name}", version),
            await enter(ruled, "bob", f"b{name}", version),
        )
        refused = 0x87 if version is V5 else 0x80
        assert list(await ann.subscribe(Subscription("#", 2), Subscription("shared/#", 2))) == [refused, 2]
        assert list(await bob.subscribe(Subscription("#", 2))) == [2]
        said = 0x87 if version is V5 and qos else 0
        assert await bob.publish(f"ann/{name}", b"1", qos=qos) == said
        assert await bob.publish("shared/bob", b"2", qos=qos) == 0
        assert await bob.publish("shared/ann", b"3", qos=qos) == said
        assert await ann.publish(f"ann/{name}", b"4", qos=qos) == 0
        await ann.publish("ann/secret/x", b"5", qos=qos)
        await ann.publish("shared/x", b"6", qos=qos)
        await wait_for(lambda: len(bob.messages) >= 3 and len(ann.messages) >= 2)
        await bob.ping()
        assert [message.payload for message in bob.messages] == [b"2", b"4", b"6"]
        assert [message.payload for message in ann.messages] == [b"2", b"6"]
        ann.close()
        bob.close()

    run(scenario())


def test_what_the_broker_says_of_itself_is_read_by_rule(ruled: Broker, name: str) -> None:
    """A rule without topics is about them as well, one about `#` would not be."""

    async def scenario() -> None:
        ann, bob = await enter(ruled, "ann", f"a{name}"), await enter(ruled, "bob", f"b{name}")
        assert list(await ann.subscribe(Subscription("$SYS/#", 1))) == [0x87]
        assert list(await bob.subscribe(Subscription("$SYS/broker/version", 1))) == [1]
        await wait_for(lambda: bob.messages)
        assert bob.messages[0].topic == "$SYS/broker/version"
        assert ann.messages == []
        ann.close()
        bob.close()

    run(scenario())


def test_mosquitto_clients_and_retained_messages(ruled: Broker, name: str) -> None:
    def words(user: str) -> list[str]:
        return ["-p", str(ruled.port), "-u", user, "-P", PASSWORD.decode(), "-q", "1"]

    for topic in (f"ann/{name}", f"ann/secret/{name}"):
        done = subprocess.run(
            ["mosquitto_pub", *words("ann"), "-V", "5", "-t", topic, "-m", topic, "-r"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
    heard = subprocess.run(
        ["mosquitto_sub", *words("bob"), "-t", f"ann/+/{name}", "-t", f"ann/{name}", "-W", "1"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert heard.stdout == f"ann/{name}\n"
    denied = subprocess.run(
        ["mosquitto_pub", *words("bob"), "-V", "5", "-t", f"ann/{name}", "-m", "x"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "Not authorized" in denied.stderr
    for topic in (f"ann/{name}", f"ann/secret/{name}"):  # what is retained would come to the next test
        subprocess.run(["mosquitto_pub", *words("ann"), "-t", topic, "-n", "-r"], check=True, timeout=30)


@pytest.mark.parametrize(("version", "code"), [(V311, 5), (V5, 0x87)])
def test_wills(ruled: Broker, name: str, version: ProtocolVersion, code: int) -> None:
    async def scenario() -> None:
        bob = await enter(ruled, "bob", f"b{name}")
        await bob.subscribe(Subscription("ann/+", 1))
        refused = MqttClient(f"c{name}", version=version)
        answer = await refused.connect(
            ruled.port, username="bob", password=PASSWORD, will=Will(f"ann/{name}", b"no", 1)
        )
        assert answer.reason_code == code
        await refused.ended
        ann = await enter(ruled, "ann", f"a{name}", version, will=Will(f"ann/{name}", b"will", 1))
        ann.abort()
        await wait_for(lambda: bob.messages)
        assert [message.payload for message in bob.messages] == [b"will"]
        bob.close()

    run(scenario())


def test_a_file_that_changes(tmp_path: Path) -> None:
    """For those who are there, by itself and without another word; what is broken changes nothing."""

    async def scenario(broker: Broker) -> None:
        ann, bob = await enter(broker, "ann", "a"), await enter(broker, "bob", "b")
        await bob.subscribe(Subscription("#", 1))
        assert await ann.publish("ann/1", b"1", qos=1) == 0
        broker.changes(RULES.replace('user = "bob"\n\n', 'user = "bob"\ntopics = "shared/#"\n\n'))
        assert await ann.publish("ann/1", b"2", qos=1) == 0x10
        assert await ann.publish("shared/1", b"3", qos=1) == 0
        broker.changes(RULES.replace('"ann/#", ', ""))
        assert await ann.publish("ann/1", b"4", qos=1) == 0x87
        for broken, told in (
            (RULES + "\n[[rule]]\nalow = 1\n", "rules.toml:24: unknown key 'alow'; the nearest is allow"),
            (None, f"cannot read {broker.rules}: No such file or directory"),
        ):
            if broken is None:
                broker.rules.unlink()
            else:
                broker.rules.write_text(broken)
            await wait_for(partial(_has_said, broker, told), what=told)
            assert await ann.publish("ann/1", b"5", qos=1) == 0x87
            assert await ann.publish("shared/1", b"6", qos=1) == 0
        broker.changes(RULES)
        assert await ann.publish("ann/1", b"7", qos=1) == 0
        await wait_for(lambda: len(bob.messages) >= 5)
        assert [message.payload for message in bob.messages] == [b"1", b"3", b"6", b"6", b"7"]
        assert broker.output().count("the rules stay as they were") == 2
        assert broker.counter("publishes_denied") == 3
        assert broker.counter("deliveries_denied") == 1
        ann.close()
        bob.close()

    broker = Broker(tmp_path)
    with broker:
        run(scenario(broker))
        assert "Traceback" not in broker.output()


def _has_said(broker: BrokerProcess, text: str) -> bool:
    return text in broker.output()


def test_hangup_reads_at_once_and_tells_of_what_is_broken(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    with broker:
        broker.rules.write_text("[[rule]]\n")
        os.kill(broker.pid, signal.SIGHUP)
        told = "authorization.rules: " + str(broker.rules) + ":1: a rule has either allow or deny"
        wait_until(lambda: told in broker.output())
        assert broker.stop() == 0
        assert broker.output().count(told) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[rule]]\nallow = 'everything'\n", "rules.toml:2: allow: 'everything' is not one of publish, "),
        (None, "rules.toml: No such file or directory"),
    ],
)
def test_a_broken_file_keeps_it_from_starting(tmp_path: Path, text: str | None, told: str) -> None:
    rules = tmp_path / "rules.toml"
    if text is not None:
        rules.write_text(text)
    done = run_program(
        "run", "--no-pipeline", "--data-dir", tmp_path / "data", "--set", f"authorization.rules={rules}"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("embermq: authorization.rules: ")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_the_same_client_id_as_another_user(ruled: Broker, name: str) -> None:
    async def scenario() -> None:
        first = await enter(ruled, "bob", name, clean_start=False, expiry_s=100)
        await first.subscribe(Subscription("ann/#", 1))
        ann = await enter(ruled, "ann", f"p{name}")
        assert await ann.publish("ann/x", b"1", qos=1) == 0
        assert await first.publish("shared/bob", b"", qos=1) in (0, 0x10)
        await wait_for(lambda: first.messages)
        other = await enter(ruled, "ann", name, clean_start=False, expiry_s=100)
        assert await other.publish("shared/x", b"", qos=1) in (0, 0x10)
        assert await other.publish("ann/x", b"2", qos=1) == 0
        again = await enter(ruled, "bob", name, clean_start=False, expiry_s=100)
        assert await again.publish("shared/x", b"", qos=1) == 0x87
        assert await again.publish("shared/bob", b"", qos=1) in (0, 0x10)
        assert await again.publish("ann/x", b"", qos=1) == 0x87
        for client in (again, ann):
            client.close()

    run(scenario())


def test_a_certificate_holds_for_a_session_that_is_away_over_a_restart(tmp_path: Path) -> None:
    """The rules speak of the certificate; nobody is there to show it while messages come."""
    authority = Authority(tmp_path / "certificates")
    gate = authority.client((NameOID.ORGANIZATION_NAME, "Works"), (NameOID.COMMON_NAME, "gate-7"))
    port = free_port()
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\nallow = "read"\ncertificate = "CN=gate-*,O=Works"\n[[rule]]\nallow = "publish"\n'
    )
    settings = {
        "listeners.mqtts": f"127.0.0.1:{port}",
        "tls.cert": authority.server("broker"),
        "tls.ca": authority.certificate,
        "tls.client_certificates": "optional",
        "tls.identity": "off",
        "authorization.rules": rules,
    }
    keeps = Properties(session_expiry_interval=1_000)

    def enters(context: object) -> RawClient:
        client = RawClient(dial(port, tls=context))  # type: ignore[arg-type]
        client.send(encode(Connect("gate", V5, False, 0, None, None, None, keeps), V5))
        assert client.expect(Connack).reason_code == 0
        return client

    async def publishes() -> None:
        publisher = MqttClient("p")
        await publisher.connect(broker.port)
        assert await publisher.publish("t", b"while away", qos=1) == 0
        publisher.close()

    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        client = enters(authority.trusting(gate))
        client.send(encode(Subscribe(1, (Subscription("t", 1),)), V5))
        assert client.expect(Suback).reason_codes == (1,)
        client.close()
        broker.restart()
        run(publishes())
        client = enters(authority.trusting(gate))
        assert client.expect(Publish).payload == b"while away"
        client.close()
        # The same client without its certificate is not the one the rule is about.
        run(publishes())
        without = enters(authority.trusting())
        without.send(encode(Subscribe(1, (Subscription("t", 1),)), V5))
        assert without.expect(Suback).reason_codes == (0x87,)
        without.close()
