"""Shared subscriptions over several nodes that serve: a group is one, wherever its members are."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial
from operator import eq
from pathlib import Path
from random import Random

import pytest
from tests.faults.cluster import (
    NO_QUEUES,
    SLOTS,
    WAIT_S,
    all_is_taken,
    asked,
    cluster_fleet,
    id_of,
    join_again,
    lose_one,
    nodes,
)
from tests.faults.fleet import V5, V311
from tests.faults.test_group_kill import judge, missing
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq.cluster.slots import slot_of
from embermq.mqtt.wire.packets import Packet, Publish, Pubrel, Subscription

APPLICATIONS = NO_QUEUES | {"clients.application_ids": json.dumps(["member-0*", "two*"])}
"""Members of that type are members as others are."""
KILLS = 2
MESSAGES = 250
EACH = 20


def group_of(slot: int, topic_filter: str) -> str:
    """A shared subscription of this slot."""
    names = (f"$share/g{number}/{topic_filter}" for number in range(1_000))
    return next(name for name in names if slot_of(name, SLOTS) == slot)


async def member(client: MqttClient, port: int, *groups: str, kept: bool = True) -> None:
    """Connected and subscribed to all of them. Nodes find one another soon, not at once."""
    await client.connect(port, clean_start=not kept, expiry_s=3600 if kept else 0)

    for group in groups:
        while (await client.subscribe(Subscription(group, 2)))[0] != 2:
            pass


def payloads(*clients: MqttClient) -> Counter[bytes]:
    return Counter(message.payload for client in clients for message in client.messages)


def has_all(expected: set[bytes], *clients: MqttClient) -> bool:
    return expected <= payloads(*clients).keys()


def count_releases(released: Counter[str], client_id: str, packet: Packet) -> None:
    released[client_id] += isinstance(packet, Pubrel)


@pytest.mark.promise("cluster-9")
def test_each_message_goes_to_one_member_wherever_members_and_publishers_are(
    etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    async def scenario(found: list[BrokerProcess]) -> None:
        publishers = [MqttClient(id_of(home, "publishes")) for home in range(SLOTS)]
        for home, publisher in enumerate(publishers):
            await publisher.connect(found[home].port)
        for owner in range(SLOTS):
            topic = f"work/{owner}"
            group = group_of(owner, topic)
            here = [MqttClient(id_of(home, f"member-{owner}")) for home in range(SLOTS)]
            passing = MqttClient(id_of(1 - owner, f"passing-{owner}"))
            for client in here:
                await member(client, found[owner].port, group)
            await member(passing, found[1 - owner].port, group, kept=False)
            everybody = [*here, passing]
            released = Counter[str]()
            for client in everybody:
                client.on_packet = partial(count_releases, released, client.client_id)
            sent: set[bytes] = set()
            for qos in (1, 2):
                for number in range(EACH):
                    for home, publisher in enumerate(publishers):
                        payload = f"{qos}-{home}-{number}".encode()
                        await publisher.publish(topic, payload, qos=qos)
                        sent.add(payload)
            await wait_for(partial(has_all, sent, *everybody), WAIT_S, f"the group of slot {owner} has all")
            assert payloads(*everybody) == Counter(sent)
            assert all(client.messages for client in everybody)
            of_qos_2 = Counter(
                client.client_id for client in everybody for each in client.messages if each.qos == 2
            )
            await wait_for(
                partial(eq, released, of_qos_2), WAIT_S, "the group's slot has what they acknowledged"
            )
            for client in everybody[1:]:
                client.close()
            await leaves(found, publishers, group, topic, here)

        for publisher in publishers:
            publisher.close()
        for each in found:
            await wait_for(
                partial(has_no_session, each), WAIT_S, "what has ended at home has ended everywhere"
            )

    with nodes(etcd, servers, tmp_path, queues=APPLICATIONS) as found:
        run(scenario(found))
        for each in found:
            assert each.stop() == 0
            assert "Traceback" not in each.output()


async def leaves(
    found: list[BrokerProcess], publishers: list[MqttClient], group: str, topic: str, here: list[MqttClient]
) -> None:
    """What a member has not acknowledged goes to others with QoS 1, and stays with QoS 2; what comes while all are away
    waits; who has unsubscribed gets nothing."""
    stays = here[0]
    leaver = MqttClient(here[1].client_id, acknowledges=False)
    await leaver.connect(found[0].port, clean_start=False, expiry_s=3600)
    assert leaver.connack is not None and leaver.connack.session_present
    stays.messages.clear()

    def both_have_some() -> bool:
        publishers[0].send(Publish(topic, b"live"))
        return bool(leaver.messages) and bool(stays.messages)

    await wait_for(both_have_some, WAIT_S, "the member is there again")
    for number in range(4):
        for qos in (1, 2):
            await publishers[1].publish(topic, f"{qos}/{number}".encode(), qos=qos)
    expected = {f"{qos}/{number}".encode() for number in range(4) for qos in (1, 2)}
    await wait_for(partial(has_all, expected, stays, leaver), WAIT_S, "all is under way")
    held = {message.payload for message in leaver.messages if message.qos == 2}
    leaver.abort()
    await wait_for(partial(has_all, expected - held, stays), WAIT_S, "QoS 1 has gone to the other one")
    again = MqttClient(leaver.client_id)
    await again.connect(found[1].port, clean_start=False, expiry_s=3600)
    await wait_for(partial(has_all, held, again), WAIT_S, "QoS 2 has stayed")
    assert all(message.dup for message in again.messages if message.payload in held)
    assert not held & payloads(stays).keys()
    stays.close()
    again.close()
    await publishers[0].publish(topic, b"waits", qos=1)
    last = MqttClient(again.client_id)
    await last.connect(found[1].port, clean_start=False, expiry_s=3600)
    await wait_for(partial(has_all, {b"waits"}, last), WAIT_S, "what waited")
    assert list(await last.unsubscribe(group)) == [0]
    assert list(await last.unsubscribe(group)) == [0x11]
    last.close()
    back = MqttClient(stays.client_id)
    await back.connect(found[0].port)
    other = MqttClient(id_of(0, f"other-{topic[-1]}"))
    await member(other, found[0].port, group)
    await publishers[0].publish(topic, b"for the other", qos=1)
    await wait_for(partial(has_all, {b"for the other"}, other), WAIT_S, "the new member has it")
    assert b"for the other" not in payloads(last, back), "one has left the group, one has begun anew"
    for client in (other, again):
        client.close()
        ends = MqttClient(client.client_id)
        await ends.connect(found[0].port)
        ends.close()
    back.close()


def has_no_session(node: BrokerProcess) -> bool:
    """Also none of a member, and no queue of a group."""
    return "\nembermq_sessions 0.0\n" in asked(node, "/metrics")[1]


@pytest.mark.promise("cluster-7", "cluster-9")
@pytest.mark.in_faults
def test_a_group_gets_all_once_when_nodes_are_killed_or_stand_still(
    seed: int, etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    random = Random(seed)

    async def scenario(found: list[BrokerProcess]) -> None:
        group = group_of(random.randrange(SLOTS), "load/#")
        fleet = cluster_fleet(found, random)
        for home in range(SLOTS):
            for name, version in (("one", V311), ("two", V5)):
                fleet.subscriber(id_of(home, name), version, restless_s=0.5, topic_filter=group)
        fleet.subscriber(
            id_of(1, "narrow"), V5, restless_s=0.5, receive_maximum=2, topic_filter=group
        ).slow_s = 0.05
        await fleet.start_subscribers()
        fleet.start_publishers()
        for _ in range(KILLS):
            fleet.allow(MESSAGES)
            await asyncio.sleep(random.uniform(0.02, 0.6))
            join_again(found, await lose_one(found, random))
            fleet.check()
        await all_is_taken(fleet)
        await fleet.drain()
        await wait_for(lambda: not missing(fleet), WAIT_S, "the group has everything")
        await fleet.stop()
        assert fleet.acknowledged() == len(fleet.publishers) * KILLS * MESSAGES
        judge(fleet)

    with nodes(etcd, servers, tmp_path, spare=True, queues=APPLICATIONS) as found:
        run(scenario(found), 600)
