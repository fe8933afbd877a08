"""kill -9 of the broker under full load: nothing acknowledged is lost, QoS 2 arrives once, topics keep their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.faults.data_files import log_extent
from tests.faults.fleet import V5, V311, Fleet
from tests.faults.traffic import Place, Publisher, number_of
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.seeds import ROUNDS
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Packet, Puback, Publish, Subscription, Will

KILLS = 3
MESSAGES = 2_500 if ROUNDS > 1 else 800
"""Of each publisher between two kills: four times that, and three kills, must fit the offline queue."""
QUEUE = {"device.queue_limit": 60_000}


def nothing() -> None:
    """What happens to the disk when only the process dies."""


async def kill_and_restart(
    broker: BrokerProcess, random: Random, after_kill: Callable[[], object] = nothing
) -> None:
    """At a random moment of the load, and in some cases again while the broker is still starting."""
    await asyncio.sleep(random.uniform(0.02, 0.6))
    broker.kill()
    after_kill()
    while random.random() < 0.3:
        broker.launch()
        await asyncio.sleep(random.uniform(0.0, 0.4))
        broker.kill()
        after_kill()
    await asyncio.to_thread(broker.start)


@pytest.mark.promise("device-1", "device-9", "device-11", "repositories-1")
def test_device_subscribers_get_all_that_was_acknowledged(seed: int, tmp_path: Path) -> None:
    """The embedded broker dies under load: DEVICE clients of each version get all, in order, of QoS 2 once."""
    random = Random(seed)
    with BrokerProcess(tmp_path, settings=QUEUE) as broker:

        async def scenario() -> None:
            fleet = Fleet(broker.port, random)
            fleet.subscriber("steady-3.1.1", V311)
            fleet.subscriber("steady-5", V5)
            fleet.subscriber("restless-3.1.1", V311, restless_s=0.4)
            fleet.subscriber("restless-5", V5, restless_s=0.2)
            fleet.subscriber("narrow-5", V5, restless_s=0.8, receive_maximum=20, topic_filter="load/V5/#")
            fleet.subscriber("slow-5", V5, topic_filter="load/V5/q1/#").slow_s = 0.3
            fleet.subscriber("slow-3.1.1", V311, restless_s=1.0, topic_filter="load/V311/q1/#").slow_s = 0.16
            await fleet.start_subscribers()
            fleet.start_publishers()
            for _ in range(KILLS):
                fleet.allow(MESSAGES)
                await kill_and_restart(broker, random)
                fleet.check()
            await wait_for(lambda: not any(each.allowance for each in fleet.publishers), 30)
            await fleet.drain()
            await fleet.stop()
            assert fleet.acknowledged() == 4 * KILLS * MESSAGES
            fleet.judge()

        run(scenario())


RETAINED_ROUNDS = 3
"""Messages of one retained topic before its publisher goes on to the next: the last one stays the newest."""


def retained_by(publisher: Publisher) -> dict[str, int]:
    """Topic to the number of its newest acknowledged message."""
    newest: dict[str, int] = {}
    for topic, number in publisher.acknowledged:
        newest[topic] = max(number, newest.get(topic, -1))
    return newest


async def retained_messages(port: int) -> dict[str, int]:
    """What a new subscriber is given."""
    reader = MqttClient("reader")
    await reader.connect(port)
    await reader.subscribe(Subscription("kept/#", 1))
    quiet = -1
    while quiet != len(reader.messages):
        quiet = len(reader.messages)
        await reader.ping()
        await asyncio.sleep(0.1)
    reader.close()
    assert all(message.retain for message in reader.messages)
    assert len({message.topic for message in reader.messages}) == len(reader.messages)
    return {message.topic: number_of(message.payload) for message in reader.messages}


@pytest.mark.promise("repositories-5a")
def test_the_newest_acknowledged_retained_message_stays(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    with BrokerProcess(tmp_path) as broker:

        async def scenario() -> None:
            publishers = []
            for version, qos in ((V311, 1), (V5, 2)):
                topics = [f"kept/{version.name}/{number}-0" for number in range(10)]
                publisher = Publisher(
                    Place(broker.port), f"keeper-{version.name}", version, qos=qos, topics=topics, window=20
                )
                publisher.retain_rounds = RETAINED_ROUNDS
                publishers.append(publisher)
                publisher.start()
            for _ in range(KILLS):
                for publisher in publishers:
                    publisher.allow(500)
                await kill_and_restart(broker, random)
                for publisher in publishers:
                    publisher.check()
            await wait_for(lambda: not any(each.allowance for each in publishers), 30)
            for publisher in publishers:
                publisher.finish()
            await wait_for(lambda: all(each.is_done for each in publishers), 30)
            kept = await retained_messages(broker.port)
            for publisher in publishers:
                await publisher.stop()
                publisher.check()
                newest = retained_by(publisher)
                assert sum(newest.values()) > 500
                assert {topic: kept.get(topic) for topic in newest} == newest
            assert len(kept) == sum(len(retained_by(each)) for each in publishers)

        run(scenario())


@pytest.mark.promise("repositories-6")
def test_wills_of_clients_that_were_connected_at_the_kill_go_out(seed: int, tmp_path: Path) -> None:
    """Sessions that are kept and sessions that end with their connection, both versions; one leaves in time."""
    random = Random(seed)
    with BrokerProcess(tmp_path) as broker:

        async def scenario() -> None:
            watcher = await enter_watcher(broker.port)
            await watcher.subscribe(Subscription("will/#", 2))
            due: set[bytes] = set()
            for kill in range(KILLS):
                mourned = []
                for number in range(20):
                    version = (V311, V5)[number % 2]
                    payload = b"%d of kill %d" % (number, kill)
                    client = MqttClient(f"mortal-{number}", version=version)
                    will = Will(f"will/{number}", payload, 1 + number % 3 // 2, False, None)
                    keeps = number % 4 > 1
                    await client.connect(
                        broker.port, clean_start=not keeps, expiry_s=3_600 * keeps, will=will
                    )
                    mourned.append((client, payload))
                polite, left_unsaid = mourned.pop(random.randrange(len(mourned)))
                polite.close()
                await polite.ended
                due |= {payload for _, payload in mourned}
                await kill_and_restart(broker, random)
                watcher = await enter_watcher(broker.port, watcher)
                await wait_for(partial(has_heard, watcher, due))
                assert left_unsaid not in {message.payload for message in watcher.messages}

        run(scenario())


def has_heard(watcher: MqttClient, payloads: set[bytes]) -> bool:
    return payloads <= {message.payload for message in watcher.messages}


async def enter_watcher(port: int, before: MqttClient | None = None) -> MqttClient:
    """A kept session that is there again; what it saw before counts."""
    watcher = MqttClient("watcher")
    await watcher.connect(port, clean_start=False, expiry_s=3_600)
    if before is not None:
        watcher.messages[:0] = before.messages
    return watcher


LEVEL_MESSAGES = 2_000
LEVEL_TRIES = 5


def stored_when_killed_at_the_last_answer(data_dir: Path, durability: str) -> int:
    """How many of LEVEL_MESSAGES, each of them acknowledged, are in the log of the next start."""
    with BrokerProcess(data_dir, settings={"log.durability": durability}) as broker:

        async def scenario() -> None:
            done: list[int] = []

            def kill_when_last(packet: Packet) -> None:
                if isinstance(packet, Puback):
                    done.append(packet.packet_id)
                    if len(done) == LEVEL_MESSAGES:
                        broker.kill()

            publisher = MqttClient("publisher", keeps=False)
            await publisher.connect(broker.port)
            publisher.on_packet = kill_when_last
            for number in range(1, LEVEL_MESSAGES + 1):
                publisher.send(Publish("level", b"%d" % number, 1, number))
                if number % 100 == 0:
                    await wait_for(lambda number=number: len(done) >= number - 50)  # type: ignore[misc]
            await publisher.ended
            assert done == list(range(1, LEVEL_MESSAGES + 1))

        run(scenario())
        broker.start()
        return log_extent(data_dir)[1]


@pytest.mark.promise("device-1")
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_what_is_written_before_the_answer_survives_when_only_the_broker_dies(
    durability: str, tmp_path: Path
) -> None:
    assert stored_when_killed_at_the_last_answer(tmp_path, durability) == LEVEL_MESSAGES


@pytest.mark.promise("device-1")
def test_the_level_memory_answers_before_it_writes(tmp_path: Path) -> None:
    """What came in the last moments is gone, what is older is there. On a busy machine the kill may come so late that
    all is written by then, or so early that nothing is: so it is tried several times."""
    ends: list[int] = []
    while len(ends) < LEVEL_TRIES and not any(0 < end < LEVEL_MESSAGES for end in ends):
        ends.append(stored_when_killed_at_the_last_answer(tmp_path / str(len(ends)), "memory"))
    assert 0 < ends[-1] < LEVEL_MESSAGES, ends
