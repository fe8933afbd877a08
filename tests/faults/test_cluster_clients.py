"""Mosquitto's programs and paho-mqtt over two nodes: who publishes is a client of one, who subscribes of the other."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from tests.faults.cluster import SLOTS, id_of, nodes, tell_without_a_log
from tests.integration.test_real_clients import V5, V31, V311, Paho, connected, mosquitto
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Subscription

MESSAGES = 30
WAIT_S = 60
Pair = list[BrokerProcess]
each_way = pytest.mark.parametrize("home", [0, pytest.param(1, marks=pytest.mark.in_faults)])
"""The slot and the node of who publishes."""
left = partial(pytest.param, marks=pytest.mark.in_faults)
of_paho = pytest.mark.parametrize("version", [left(V31), left(V311), V5])
of_mosquitto = pytest.mark.parametrize("version", [left("mqttv31"), "mqttv311", left("mqttv5")])


async def reach_one_another(found: Pair) -> None:
    """QoS 0 goes from node to node as soon as these have found one another."""
    clients = [MqttClient(id_of(home, "first")) for home in range(SLOTS)]
    for client, node in zip(clients, found, strict=True):
        await client.connect(node.port)
        await client.subscribe(Subscription("a/#", 0))
    await tell_without_a_log(clients)


@pytest.fixture(scope="module")
def pair(
    running_etcd: EtcdServer,
    running_kafka: KafkaServer,
    module_redis: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    running_etcd.heal()
    running_etcd.control("del", "", "--prefix")
    running_kafka.heal()
    folder = tmp_path_factory.mktemp("pair")
    with nodes(running_etcd, on_servers(running_kafka, module_redis), folder) as found:
        run(reach_one_another(found))
        yield found
        for each in found:
            assert each.stop() == 0
            assert "Traceback" not in each.output()


@pytest.fixture
def name() -> str:
    """Unlike any other test's, for topics and client ids. 3.1 allows 23 characters in an id."""
    return uuid4().hex[:12]


@pytest.mark.promise("cluster-3", "cluster-5", "cluster-8")
@each_way
@of_paho
def test_paho_publishes_to_clients_of_another_node(
    pair: Pair, name: str, version: MQTTProtocolVersion, home: int
) -> None:
    """What was retained comes first, then each QoS in its order, and the will in the end."""
    will = f"{name}/will"
    going = Paho(id_of(home, f"w{name}"), version)
    going.client.will_set(will, b"gone", 1)
    with (
        connected(pair[1 - home], id_of(1 - home, f"s{name}"), version) as subscriber,
        connected(pair[home], id_of(home, f"p{name}"), version) as publisher,
    ):
        publisher.publish(f"{name}/kept", b"kept", 1, retain=True)
        subscriber.subscribe(f"{name}/#", 2)
        assert subscriber.payloads(1) == [b"kept"]
        assert subscriber.messages[0].retain
        for number in range(MESSAGES):
            publisher.publish(f"{name}/{number % 3}", b"%d" % number, number % 3)
        subscriber.payloads(1 + MESSAGES)
        messages = subscriber.messages[1:]
        for qos in range(3):
            numbers = [int(message.payload) for message in messages if message.qos == qos]
            assert numbers == list(range(qos, MESSAGES, 3))
        assert not any(message.retain for message in messages)
        going.connect(pair[home].port)
        going.client.loop_stop()
        link = going.client.socket()
        assert isinstance(link, socket.socket)
        link.shutdown(socket.SHUT_RDWR)
        subscriber.payloads(2 + MESSAGES)
        assert [(each.topic, each.payload) for each in subscriber.messages[1 + MESSAGES :]] == [
            (will, b"gone")
        ]
        publisher.publish(f"{name}/kept", b"", 1, retain=True)
    going.close()


@pytest.mark.promise("cluster-3", "cluster-7")
@each_way
@of_paho
def test_paho_finds_what_came_by_another_node_while_it_was_away(
    pair: Pair, name: str, version: MQTTProtocolVersion, home: int
) -> None:
    """It comes back by the node to which the publisher is connected."""
    away = partial(connected, client_id=id_of(1 - home, f"s{name}"), version=version)
    with away(pair[1 - home], clean=False, expiry_s=600) as subscriber:
        subscriber.subscribe(f"{name}/#")
    with connected(pair[home], id_of(home, f"p{name}"), version) as publisher:
        for number in range(MESSAGES):
            publisher.publish(f"{name}/{number % 3}", b"%d" % number, number % 3)
    with away(pair[home], clean=False, expiry_s=600) as subscriber:
        subscriber.payloads(MESSAGES - MESSAGES // 3)
        for qos in (1, 2):
            numbers = [int(message.payload) for message in subscriber.messages if message.qos == qos]
            assert numbers == list(range(qos, MESSAGES, 3))
        assert len(subscriber.messages) == MESSAGES - MESSAGES // 3
        if version is not V31:
            assert subscriber.session_present
    with away(pair[1 - home]) as subscriber:
        assert not subscriber.session_present


def publish(node: BrokerProcess, *words: str, text: str = "") -> None:
    subprocess.run(mosquitto("pub", node, *words), input=text, text=True, check=True, timeout=WAIT_S)


@pytest.mark.promise("cluster-3", "cluster-5", "cluster-8")
@each_way
@of_mosquitto
def test_mosquitto_pub_reaches_mosquitto_sub_on_another_node(
    pair: Pair, name: str, version: str, home: int
) -> None:
    """Likewise; who has the will is another mosquitto_sub, which is killed."""
    publisher = ("-V", version, "-i", id_of(home, f"p{name}"))
    kept = (*publisher, "-t", f"{name}/kept", "-q", "1", "-r")
    listens = ("-V", version, "-W", str(WAIT_S), "-i")
    publish(pair[home], *kept, "-m", "kept")
    count = 2 + MESSAGES
    listen = (*listens, id_of(1 - home, f"s{name}"), "-t", f"{name}/#", "-q", "2", "-C", str(count))
    will = ("--will-topic", f"{name}/will", "--will-payload", "gone", "--will-qos", "2")
    going = (*listens, id_of(home, f"w{name}"), "-t", f"{name}/kept", *will)
    with (
        subprocess.Popen(
            mosquitto("sub", pair[1 - home], *listen, "-F", "%t %q %r %p"), stdout=subprocess.PIPE, text=True
        ) as subscriber,
        subprocess.Popen(mosquitto("sub", pair[home], *going), stdout=subprocess.PIPE, text=True) as dying,
    ):
        assert subscriber.stdout is not None and dying.stdout is not None
        assert subscriber.stdout.readline() == f"{name}/kept 1 1 kept\n"
        numbers = [f"{number}\n" for number in range(MESSAGES // 3)]
        for qos in ("0", "1", "2"):
            publish(pair[home], *publisher, "-t", f"{name}/{qos}", "-q", qos, "-l", text="".join(numbers))
        for qos in ("0", "1", "2"):
            came = [subscriber.stdout.readline() for _ in numbers]
            assert came == [f"{name}/{qos} {qos} 0 {number}" for number in numbers]
        assert dying.stdout.readline() == "kept\n"
        dying.kill()
        assert subscriber.stdout.readline() == f"{name}/will 2 0 gone\n"
        assert subscriber.wait(WAIT_S) == 0
    publish(pair[home], *kept, "-n")


@pytest.mark.promise("cluster-3", "cluster-7")
@each_way
@of_mosquitto
def test_mosquitto_sub_finds_what_came_by_another_node_while_it_was_away(
    pair: Pair, name: str, version: str, home: int
) -> None:
    lasting = ("-x", "600") if version == "mqttv5" else ()
    away = ("-V", version, "-i", id_of(1 - home, f"s{name}"), "-c", *lasting, "-t", f"{name}/#", "-q", "2")
    subprocess.run(mosquitto("sub", pair[1 - home], *away, "-E"), check=True, timeout=WAIT_S)
    numbers = [f"{number}\n" for number in range(MESSAGES)]
    for qos in ("1", "2"):
        words = ("-V", version, "-i", id_of(home, f"p{name}"), "-t", f"{name}/{qos}", "-q", qos, "-l")
        publish(pair[home], *words, text="".join(numbers))
    found = subprocess.run(
        mosquitto("sub", pair[home], *away, "-C", str(2 * MESSAGES), "-W", str(WAIT_S), "-F", "%q %p"),
        check=True,
        timeout=2 * WAIT_S,
        stdout=subprocess.PIPE,
        text=True,
    )
    came = found.stdout.splitlines(keepends=True)
    for qos in ("1", "2"):
        assert [line for line in came if line.startswith(qos)] == [f"{qos} {number}" for number in numbers]


@pytest.mark.promise("cluster-3")
def test_no_node_says_that_nobody_subscribes(pair: Pair, name: str) -> None:
    async def scenario() -> None:
        reader, publisher = (MqttClient(id_of(home, name)) for home in range(SLOTS))
        await reader.connect(pair[0].port)
        await reader.subscribe(Subscription(name, 2))
        await publisher.connect(pair[1].port)
        assert [await publisher.publish(name, b"x", qos=qos) for qos in (1, 2)] == [0, 0]
        await wait_for(lambda: len(reader.messages) == 2, WAIT_S, "they came")

    run(scenario())
