"""paho-mqtt, aiomqtt, mosquitto_pub and mosquitto_sub speak to the real server."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from tests.conformance.clause import of_311
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

V31, V311, V5 = MQTTProtocolVersion.MQTTv31, MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
VERSIONS = (V31, V311, V5)
MOSQUITTO_VERSIONS = ("mqttv31", "mqttv311", "mqttv5")


def v5_properties(kind: int, **values: object) -> Properties:
    found = Properties(kind)  # type: ignore[no-untyped-call]
    for key, value in values.items():
        setattr(found, key, value)
    return found


class Paho:
    """A paho client with its thread; waits instead of callbacks."""

    def __init__(self, client_id: str, version: MQTTProtocolVersion, *, clean: bool = True) -> None:
        clean_session = None if version is V5 else clean
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, clean_session, protocol=version)
        self.version, self.clean = version, clean
        self.messages: list[paho.MQTTMessage] = []
        self.session_present: bool | None = None
        self.reason = ""
        self._answered: set[int] = set()
        self._connected = threading.Event()
        self.client.on_message = lambda _client, _data, message: self.messages.append(message)
        self.client.on_connect = self._on_connect
        self.client.on_subscribe = lambda _c, _d, mid, _codes, _properties: self._answered.add(mid)
        self.client.on_unsubscribe = lambda _c, _d, mid, _codes, _properties: self._answered.add(mid)

    def _on_connect(
        self, _c: object, _d: object, flags: paho.ConnectFlags, reason: object, _p: object
    ) -> None:
        self.session_present = flags.session_present
        self.reason = str(reason)
        self._connected.set()

    def connect(self, port: int, *, expiry_s: int = 0) -> None:
        options: dict[str, object] = {}
        if self.version is V5:
            properties = v5_properties(PacketTypes.CONNECT, SessionExpiryInterval=expiry_s)
            options = {"clean_start": self.clean, "properties": properties}
        self.client.connect("127.0.0.1", port, **options)  # type: ignore[arg-type]
        self.client.loop_start()
        assert self._connected.wait(30), "no CONNACK"

    def subscribe(self, topic_filter: str, qos: int = 2, **options: bool | int) -> None:
        if self.version is V5:
            _, mid = self.client.subscribe(topic_filter, options=SubscribeOptions(qos, **options))  # type: ignore[arg-type]
        else:
            _, mid = self.client.subscribe(topic_filter, qos)
        wait_until(lambda: mid in self._answered, what="SUBACK")

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        self.client.publish(topic, payload, qos, retain).wait_for_publish(10)

    def payloads(self, count: int) -> list[bytes]:
        """The first `count` payloads; waits for them."""
        wait_until(lambda: len(self.messages) >= count, what=f"{count} messages, {len(self.messages)} came")
        return [bytes(message.payload) for message in self.messages]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@contextmanager
def connected(
    broker: BrokerProcess,
    client_id: str,
    version: MQTTProtocolVersion,
    *,
    clean: bool = True,
    expiry_s: int = 0,
) -> Iterator[Paho]:
    client = Paho(client_id, version, clean=clean)
    client.connect(broker.port, expiry_s=expiry_s)
    try:
        yield client
    finally:
        client.close()


@of_311("7.0.0-2")
@pytest.mark.parametrize(("publishing", "subscribing"), list(itertools.product(VERSIONS, VERSIONS)))
def test_every_qos_both_ways_between_versions(
    broker: BrokerProcess, name: str, publishing: MQTTProtocolVersion, subscribing: MQTTProtocolVersion
) -> None:
    with (
        connected(broker, f"s{name}", subscribing) as subscriber,
        connected(broker, f"p{name}", publishing) as publisher,
    ):
        for granted in (0, 1, 2):
            subscriber.subscribe(f"{name}/{granted}/#", granted)
        expected = 0
        for granted, qos in itertools.product((0, 1, 2), (0, 1, 2)):
            publisher.publish(f"{name}/{granted}/{qos}", b"%d" % qos, qos)
            expected += 1
        subscriber.payloads(expected)
        found = {message.topic: message.qos for message in subscriber.messages}
        assert found == {
            f"{name}/{granted}/{qos}": min(granted, qos)
            for granted, qos in itertools.product((0, 1, 2), (0, 1, 2))
        }
        assert len(subscriber.messages) == 9


@pytest.mark.parametrize("version", VERSIONS)
def test_wildcards(broker: BrokerProcess, name: str, version: MQTTProtocolVersion) -> None:
    matches = {
        "#": ["a", "a/b", "a//c", "/a"],
        "+": ["a"],
        "a/#": ["a", "a/b", "a//c"],
        "a/+": ["a/b"],
        "a/+/c": ["a//c"],
        "+/a": ["/a"],
        "/+": ["/a"],
        "a/b": ["a/b"],
    }
    with connected(broker, f"p{name}", version) as publisher:
        for number, (topic_filter, expected) in enumerate(matches.items()):
            with connected(broker, f"s{name}{number}", version) as subscriber:
                subscriber.subscribe(f"{name}/{topic_filter}", 1)
                for topic in ("a", "a/b", "a//c", "/a", "a/x/d"):
                    publisher.publish(f"{name}/{topic}", b"", 1)
                publisher.publish(f"{name}/a", b"end", 1)
                wanted = [f"{name}/{topic}" for topic in expected]
                if topic_filter in ("#", "a/#"):
                    wanted.append(f"{name}/a/x/d")
                subscriber.payloads(len(wanted))
                assert {m.topic for m in subscriber.messages if m.payload == b""} == set(wanted), topic_filter


@pytest.mark.parametrize("version", VERSIONS)
def test_a_kept_session_collects_while_its_client_is_away(
    broker: BrokerProcess, name: str, version: MQTTProtocolVersion
) -> None:
    with connected(broker, f"s{name}", version, clean=False, expiry_s=600) as subscriber:
        subscriber.subscribe(f"{name}/#")
    with connected(broker, f"p{name}", version) as publisher:
        for number in range(50):
            publisher.publish(f"{name}/x", b"%d" % number, number % 3)
    with connected(broker, f"s{name}", version, clean=False, expiry_s=600) as subscriber:
        wanted = [b"%d" % number for number in range(50) if number % 3]
        assert sorted(subscriber.payloads(len(wanted)), key=int) == wanted
        assert [m.payload for m in subscriber.messages if m.qos == 2] == [
            p for p in wanted if int(p) % 3 == 2
        ]
        if version is not V31:
            assert subscriber.session_present
    with connected(broker, f"s{name}", version) as subscriber:
        assert not subscriber.session_present


def test_paho_sees_shared_subscriptions_split(broker: BrokerProcess, name: str) -> None:
    with (
        connected(broker, f"a{name}", V5) as one,
        connected(broker, f"b{name}", V311) as two,
        connected(broker, f"p{name}", V5) as publisher,
    ):
        for member in (one, two):
            member.subscribe(f"$share/g/{name}/+", 1)
        for number in range(100):
            publisher.publish(f"{name}/{number}", b"%d" % number, 1)
        wait_until(lambda: len(one.messages) + len(two.messages) >= 100)
        numbers = sorted(int(message.payload) for member in (one, two) for message in member.messages)
        assert numbers == list(range(100))
        assert len(one.messages) == len(two.messages) == 50


def test_aiomqtt_carries_properties_both_ways(broker: BrokerProcess, name: str) -> None:
    async def talk() -> None:
        async with aiomqtt.Client("127.0.0.1", broker.port, protocol=aiomqtt.ProtocolVersion.V5) as client:
            await client.subscribe(f"{name}/#", qos=1)
            wanted = {
                "ResponseTopic": "reply",
                "CorrelationData": b"\x00\x01",
                "UserProperty": [("k", "1"), ("k", "2")],
            }
            properties = v5_properties(PacketTypes.PUBLISH, **wanted)
            await client.publish(f"{name}/x", b"payload", qos=2, properties=properties)
            message = await asyncio.wait_for(anext(aiter(client.messages)), 30)
            assert (message.payload, message.qos) == (b"payload", 1)
            assert {key: getattr(message.properties, key) for key in wanted} == wanted

    asyncio.run(talk())


def mosquitto(program: str, broker: BrokerProcess, *arguments: str) -> list[str]:
    return [f"mosquitto_{program}", "-h", "127.0.0.1", "-p", str(broker.port), *arguments]


@of_311("7.0.0-2")
@pytest.mark.parametrize("version", MOSQUITTO_VERSIONS)
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_clients(broker: BrokerProcess, name: str, version: str, qos: str) -> None:
    topic = f"{name}/t"
    publish = mosquitto("pub", broker, "-V", version, "-t", topic, "-q", qos, "-r", "-m", "retained")
    subprocess.run(publish, check=True, timeout=30)
    listen = mosquitto(
        "sub", broker, "-V", version, "-t", f"{name}/#", "-q", "2", "-C", "2", "-W", "10", "-v"
    )
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as subscriber:
        assert subscriber.stdout is not None
        assert subscriber.stdout.readline() == f"{topic} retained\n"
        subprocess.run(
            mosquitto("pub", broker, "-V", version, "-t", topic, "-q", qos, "-s"),
            input="from standard input",
            text=True,
            check=True,
            timeout=30,
        )
        assert subscriber.stdout.readline() == f"{topic} from standard input\n"
        assert subscriber.wait(30) == 0
    subprocess.run(mosquitto("pub", broker, "-t", topic, "-r", "-n"), check=True, timeout=30)


@pytest.mark.parametrize("version", MOSQUITTO_VERSIONS)
def test_many_lines_of_mosquitto_pub_arrive_in_order(broker: BrokerProcess, name: str, version: str) -> None:
    count = 900  # what waits in memory for a session that is not kept may be 1,000
    listen = mosquitto(
        "sub",
        broker,
        "-V",
        version,
        "-t",
        name,
        "-q",
        "1",
        "-C",
        str(count + 1),
        "-W",
        "30",
        "-i",
        f"s{name}",
    )
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as subscriber:
        assert subscriber.stdout is not None
        subprocess.run(
            mosquitto("pub", broker, "-t", name, "-r", "-m", "start", "-q", "1"), check=True, timeout=30
        )
        assert subscriber.stdout.readline() == "start\n"
        subprocess.run(
            mosquitto("pub", broker, "-V", version, "-t", name, "-q", "1", "-l"),
            input="".join(f"{number}\n" for number in range(count)),
            text=True,
            check=True,
            timeout=30,
        )
        output, _ = subscriber.communicate(timeout=30)
    assert output.split() == [str(number) for number in range(count)]
    subprocess.run(mosquitto("pub", broker, "-t", name, "-r", "-n"), check=True, timeout=30)
