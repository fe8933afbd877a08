"""Durable queues over several nodes that serve: each belongs to one, and is used by all."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.faults.cluster import SLOTS, WAIT_S, AnyPlace, asked, id_of, join_again, lose_one, nodes
from tests.faults.queue_traffic import AGAIN_S, QUEUE, TOPIC, Consumer, Ledger, Producer, Reader
from tests.faults.test_queue_kill import QUEUES
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq.cluster.slots import slot_of_queue
from embermq.mqtt.wire.packets import Packet, Puback, Publish, Subscription, Will
from embermq.mqtt.wire.properties import Properties

APPLICATIONS = {"clients.application_ids": json.dumps(["w1*", "worker-0*", "worker-1*"])}
"""Consumers of that type are consumers as others are."""
KILLS = 4
PUBLISHED = 60
"""Messages at least that are published from one kill to the next."""


def queue_of(slot: int) -> str:
    """A queue of this slot."""
    return next(each for each in map("work/{}".format, range(100)) if slot_of_queue(each, SLOTS) == slot)


def payloads(client: MqttClient) -> set[bytes]:
    return {message.payload for message in client.messages}


def has_all(client: MqttClient, expected: set[bytes]) -> bool:
    return expected <= payloads(client)


def depth_of(node: BrokerProcess, queue: str) -> int:
    status, text = asked(node, f"/api/v1/queues/{queue.replace('/', '$')}/stats")
    assert status == 200, text
    return int(json.loads(text)["depth"])


def is_empty(node: BrokerProcess, queue: str) -> bool:
    return not depth_of(node, queue)


async def use(found: list[BrokerProcess], owner: int) -> None:
    """Clients of each slot publish to a queue of `owner` by each node, and others consume from it."""
    queue = queue_of(owner)
    topic, dead = f"$queue/{queue}", f"$queue/dlq/{queue}"
    expected: set[bytes] = set()
    workers = [MqttClient(id_of(home, f"w{owner}")) for home in range(SLOTS)]
    for home, worker in enumerate(workers):
        await worker.connect(found[owner].port, clean_start=False, expiry_s=3600)
        while (await worker.subscribe(Subscription(f"$share/g{home}/{topic}", 1)))[0] != 1:
            pass  # nodes find one another soon, not at once
    for home in range(SLOTS):
        publisher = MqttClient(id_of(home, f"p{owner}"))
        await publisher.connect(found[1 - owner].port, will=Will(topic, b"will-%d" % home, 1))
        for qos in (1, 2):
            await publisher.publish(topic, b"%d-%d" % (home, qos), qos=qos)
        publisher.send(Publish(topic, b"%d-0" % home))
        await publisher.ping()
        publisher.abort()
        expected |= {b"%d-%d" % (home, qos) for qos in range(3)} | {b"will-%d" % home}
    for worker in workers:
        await wait_for(partial(has_all, worker, expected), WAIT_S, f"what was published to {topic}")
        for number, message in enumerate(worker.messages, 1):
            assert message.properties is not None
            named = Properties(
                user_properties=(("message-id", dict(message.properties.user_properties)["message-id"]),)
            )
            verb = "$reject" if message.payload == b"0-1" else "$ack"
            answer = worker.expect(Puback, number)
            worker.send(Publish(f"{topic}/{verb}", b"", 1, number, properties=named))
            assert (await answer).reason_code == 0
    assert is_empty(found[owner], queue)
    reader = workers[1 - owner]
    await reader.subscribe(Subscription(dead, 1))
    await wait_for(
        lambda: sum(each.topic == dead for each in reader.messages) == SLOTS, WAIT_S, "the letters"
    )
    for node in found:  # an operator may ask any
        status, text = asked(node, f"/api/v1/queues/{queue.replace('/', '$')}/stats")
        assert (status, json.loads(text)["name"]) == (200, queue), text
        status, text = asked(node, "/api/v1/queues")
        assert queue in [each["name"] for each in json.loads(text)]
    for worker in workers:
        worker.close()


@pytest.mark.promise("cluster-3", "cluster-12")
def test_a_queue_is_used_by_clients_of_all_nodes(
    etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    async def scenario(found: list[BrokerProcess]) -> None:
        for owner in range(SLOTS):
            await use(found, owner)

    with nodes(etcd, servers, tmp_path, queues=APPLICATIONS | {"queues.join_debounce_ms": 20}) as found:
        run(scenario(found))
        for each in found:
            assert each.stop() == 0
            assert "Traceback" not in each.output()


class PatientProducer(Producer):
    """Sends again what is refused, since the slot of the queue has no node now."""

    def take(self, client: MqttClient, packet: Packet) -> None:
        if not isinstance(packet, Puback) or packet.reason_code == 0:
            super().take(client, packet)
            return
        assert packet.reason_code == 0x97, packet
        asyncio.get_running_loop().call_later(AGAIN_S, self._send_again, client, packet.packet_id)

    def _send_again(self, client: MqttClient, packet_id: int) -> None:
        if client is self.client and packet_id in self._waiting:
            self._send(client, packet_id, self._waiting[packet_id], again=False)


class PatientConsumer(Consumer):
    """Likewise."""

    is_patient = True


class PatientReader(Reader):
    """Likewise."""

    is_patient = True


@pytest.mark.promise("cluster-7", "cluster-12", "cluster-16")
@pytest.mark.in_faults
def test_a_queue_loses_nothing_when_nodes_are_killed_or_stand_still(
    seed: int, etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    random = Random(seed)
    file = tmp_path / "queues.toml"
    file.write_text(QUEUES.replace("1500ms", "20s"))  # what a busy machine holds up is not given to others
    settings = APPLICATIONS | {
        "queues.file": file,
        "queues.disconnect_grace_ms": 50,
        "queues.join_debounce_ms": 20,
    }

    async def scenario(found: list[BrokerProcess]) -> None:
        place, ledger = AnyPlace([each.port for each in found], random), Ledger()
        producers = [
            PatientProducer(place, id_of(home, f"producer-{home}"), ledger, [f"{home}-{n}" for n in range(5)])
            for home in range(SLOTS)
        ]
        consumers = [
            PatientConsumer(place, id_of(number % SLOTS, f"worker-{number}"), ledger, random)
            for number in range(4)
        ]
        audit = PatientReader(
            place, id_of(1 - slot_of_queue(QUEUE, SLOTS), "audit"), TOPIC, ledger.audited, behind=8
        )
        letters = PatientReader(place, id_of(0, "reader"), f"$queue/dlq/{QUEUE}", ledger.letters)
        everybody = [audit, *consumers, *producers]
        audit.start()  # a group has what comes from its first consumer on
        await wait_for(lambda: audit.is_subscribed, WAIT_S, "the other group is there")
        for each in (*consumers, *producers):
            each.start()
        for _ in range(KILLS):
            before = len(ledger.published)
            await wait_for(partial(is_published, ledger, producers, before + PUBLISHED), WAIT_S, "a load")
            join_again(found, await lose_one(found, random))
            for each in everybody:
                each.check()
        for producer in producers:
            producer.finishing = True
        for consumer in consumers:
            consumer.finishing = True
        audit.finish()
        await wait_for(lambda: all(each.is_done for each in producers), WAIT_S, "everything is answered")
        await wait_for(lambda: ledger.faults or ledger.backlog <= 0, WAIT_S, "all is settled")
        assert not ledger.faults, ledger.faults[:5]
        letters.start()
        await wait_for(lambda: ledger.rejected <= ledger.letters.keys(), WAIT_S, "the dead letters")
        await wait_for(lambda: ledger.published <= ledger.audited, WAIT_S, "the other group has all")
        await wait_for(lambda: all(each.is_answered for each in consumers), WAIT_S, "the last are answered")
        for each in (*everybody, letters):
            each.check()
            await each.stop()
        ledger.judge()

    with nodes(etcd, servers, tmp_path, spare=True, queues=settings) as found:
        run(scenario(found), 600)


def is_published(ledger: Ledger, producers: list[PatientProducer], count: int) -> bool:
    """They go on meanwhile, as far as the backlog lets them."""
    for each in producers:
        each.fill()
    return len(ledger.published) >= count
