"""Session data that comes back older than the log, over sockets: the promises repositories-3 and -4."""

from __future__ import annotations

import pytest
from tests.stores.session_stores import SessionStore
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import arrived, client, gone, kept, talk
from tests.support.metrics import metric
from tests.support.mqtt_client import MqttClient
from tests.support.waiting import wait_for, wait_until

from embermq.mqtt.wire.packets import Pubrel, Subscription


async def away(broker: BrokerProcess, client_id: str, *subscriptions: Subscription) -> None:
    """A session that has subscribed and gone."""
    found = await kept(broker, client_id)
    await found.subscribe(*subscriptions)
    await gone(found)


async def numbered(publisher: MqttClient, topic: str, numbers: range, qos: int) -> None:
    for number in numbers:
        await publisher.publish(topic, b"%d" % number, qos=qos)


async def completed(found: MqttClient) -> None:
    """The broker has its acknowledgement of everything, PUBCOMP included."""
    of_qos_2 = sum(message.qos == 2 for message in found.messages)
    await wait_for(lambda: sum(isinstance(packet, Pubrel) for packet in found.received) >= of_qos_2)
    await found.ping()


def at_rest(broker: BrokerProcess) -> None:
    """All is written that is written late: the floor, cursors, and up to where session data is complete."""
    commits = [-1.0, metric(broker, "commits")]

    def stands_still() -> bool:
        commits.append(metric(broker, "commits"))
        return len(set(commits[-REST_LOOKS:])) == 1

    wait_until(stands_still, 30, "the broker does not come to rest", poll_s=REST_LOOK_S)


REST_LOOKS, REST_LOOK_S = 8, 0.2


@pytest.mark.promise("repositories-3", "repositories-4")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("session_store", ["redis", "redis_cluster"], indirect=True)
def test_an_older_store_is_completed_from_the_log(
    broker: BrokerProcess, session_store: SessionStore, qos: int
) -> None:
    """ "lacks" was away all the time and gets everything once; "reads" was there since the copy, and "live" all the
    time: what they consumed since may come again, in order, and nothing is missing."""
    broker.start()

    async def before() -> None:
        for client_id in ("lacks", "reads", "live"):
            await away(broker, client_id, Subscription("t", qos))
        live = await kept(broker, "live")
        publisher = await client(broker, "publisher")
        await numbered(publisher, "t", range(10), qos)
        await arrived(live, 10)
        await completed(live)

    async def after() -> None:
        live = await kept(broker, "live")
        publisher = await client(broker, "publisher")
        await numbered(publisher, "t", range(10, 15), qos)
        reads = await kept(broker, "reads")
        assert await arrived(reads, 15) == [b"%d" % number for number in range(15)]
        await completed(reads)
        await gone(reads)
        await numbered(publisher, "t", range(15, 20), qos)
        assert await arrived(live, 10) == [b"%d" % number for number in range(10, 20)]
        await completed(live)

    async def repaired() -> None:
        publisher = await client(broker, "publisher")
        await publisher.publish("t", b"20", qos=qos)
        for client_id, first in (("lacks", 0), ("reads", 0), ("live", 10)):
            found = await kept(broker, client_id)
            assert await arrived(found, 21 - first) == [b"%d" % number for number in range(first, 21)]
            await found.ping()
            assert len(found.messages) == 21 - first

    talk(before)
    at_rest(broker)
    older = session_store.copy(broker.data_dir)
    talk(after)
    at_rest(broker)
    broker.kill()
    older.put_back()
    broker.start()
    talk(repaired)


@pytest.mark.promise("repositories-4")
def test_intact_session_data_is_not_repaired(broker: BrokerProcess) -> None:
    """A broker that is killed at any moment: what its store has is all that is owed."""
    broker.start()

    async def work() -> None:
        await away(broker, "away", Subscription("t", 1))
        publisher = await client(broker, "publisher")
        await numbered(publisher, "t", range(50), 1)

    talk(work)
    broker.kill()
    broker.start()
    assert metric(broker, "deliveries_repaired") == 0
    assert metric(broker, "repair_records_missing") == 0

    async def read() -> None:
        found = await kept(broker, "away")
        assert await arrived(found, 50) == [b"%d" % number for number in range(50)]

    talk(read)
