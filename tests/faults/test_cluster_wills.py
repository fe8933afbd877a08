"""Wills and the end of sessions do not need the node that had them."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from tests.faults.cluster import WAIT_S, id_of, nodes, serves_anew, starts
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_for, wait_until

from embermq.formats.redis_layout import client_keys
from embermq.mqtt.wire.packets import Disconnect, Subscription, Will
from embermq.mqtt.wire.properties import Properties

FAR_S = 3_600
DUE = ("own", "handed-on", "retained", "delayed", "expires")
"""Clients whose wills are to come."""


async def comes(
    port: int, name: str, *, delay_s: int = 0, expiry_s: int = FAR_S, clean: bool = True
) -> MqttClient:
    """A client of slot 0 whose will is told to the topic of its name."""
    client = MqttClient(id_of(0, name))
    will = Will(
        f"wills/{name}", name.encode(), 2, name == "retained", Properties(will_delay_interval=delay_s)
    )
    connack = await client.connect(port, clean_start=clean, expiry_s=expiry_s, will=will)
    assert connack.session_present is not clean
    return client


async def leaves(redis: RedisServer, client: MqttClient) -> None:
    """It has no will any more, and the store knows it: DISCONNECT has no answer by which its client would."""
    client.send(Disconnect())
    key = client_keys(client.client_id, "").will
    await wait_for(lambda: not redis.ask("EXISTS", key), WAIT_S, f"{key} goes")


async def told(subscriber: MqttClient, publisher: MqttClient, topic: str) -> Counter[str]:
    """How often each will has come up to now: what is published after it comes behind it."""
    await publisher.publish(topic, b"", qos=2)
    await wait_for(
        lambda: any(message.topic == topic for message in subscriber.messages), WAIT_S, f"{topic} comes"
    )
    return Counter(
        message.payload.decode() for message in subscriber.messages if message.topic.startswith("wills/")
    )


@pytest.mark.promise("cluster-10")
def test_wills_are_published_once_when_their_node_is_out_and_not_of_who_comes_back(
    etcd: EtcdServer, kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Two kills: those of who comes back between them are due with the second one, the others never again."""

    async def scenario(zero: BrokerProcess, one: BrokerProcess, spare: BrokerProcess) -> None:
        subscriber = MqttClient(id_of(1, "reads"))
        await subscriber.connect(one.port)
        await subscriber.subscribe(Subscription("#", 2))
        for name, by, delay_s, expiry_s in (
            ("own", zero, 0, FAR_S),
            ("handed-on", one, 0, FAR_S),
            ("retained", zero, 0, 0),
            ("delayed", zero, 1, FAR_S),
            ("expires", one, FAR_S, 1),
            ("back", zero, FAR_S, FAR_S),
            ("back-elsewhere", one, FAR_S, FAR_S),
        ):
            await comes(by.port, name, delay_s=delay_s, expiry_s=expiry_s)
        ended = await comes(zero.port, "ended", delay_s=0)
        await leaves(redis_server, ended)
        zero.kill()
        await wait_for(partial(serves_anew, spare, 0), WAIT_S, "the node that stood by has the slot")
        back = [
            await comes(by.port, name, delay_s=0, clean=False)
            for name, by in (("back", one), ("back-elsewhere", spare))
        ]
        publisher = MqttClient(id_of(0, "publishes"))
        await publisher.connect(spare.port)
        heard = partial(has_heard, subscriber, set(DUE))
        await wait_for(heard, WAIT_S, "the wills of those that are away")
        assert await told(subscriber, publisher, "first") == Counter(DUE)
        late = MqttClient(id_of(1, "late"))
        await late.connect(one.port)
        await late.subscribe(Subscription("wills/#", 1))
        await wait_for(lambda: bool(late.messages), WAIT_S, "the retained one")
        assert [(message.payload, message.retain) for message in late.messages] == [(b"retained", True)]

        before = starts(zero)
        zero.launch()
        await leaves(redis_server, back[0])
        spare.kill()
        await wait_for(partial(serves_anew, zero, before), WAIT_S, "the first one has its slot again")
        publisher = MqttClient(id_of(0, "publishes-again"))
        await publisher.connect(zero.port)
        await wait_for(
            partial(has_heard, subscriber, {"back-elsewhere"}), WAIT_S, "the will of who came back"
        )
        assert await told(subscriber, publisher, "second") == Counter((*DUE, "back-elsewhere"))
        again = MqttClient(id_of(0, "expires"))
        assert not (await again.connect(one.port, clean_start=False)).session_present

    with nodes(etcd, on_servers(kafka, redis_server), tmp_path, spare=True) as found:
        wait_until(lambda: b"stands by" in found[2].output_from(0), WAIT_S, "one stands by")
        run(scenario(*found))
        assert not any("Traceback" in each.output() for each in found)


def has_heard(subscriber: MqttClient, names: set[str]) -> bool:
    return names <= {message.payload.decode() for message in subscriber.messages}
