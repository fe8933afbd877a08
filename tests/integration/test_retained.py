"""Retained messages against the real server: their end, the log that is trimmed beneath them, very many of them."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import quiet
from tests.support.broker_process import BrokerProcess
from tests.support.measuring import is_judged, judge
from tests.support.mqtt_client import MqttClient, run
from tests.support.seeds import ROUNDS
from tests.support.waiting import wait_for, wait_until

from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Publish, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.process_cost import read_pss_bytes

MIB = 1024 * 1024
TOPICS = 100_000 if is_judged() or ROUNDS > 1 else 20_000
"""Very many."""
KIB_EACH = 2
"""What a retained message of 100 bytes may take in memory."""


def metric(broker: BrokerProcess, name: str) -> float:
    """The value of a metric that is one number, whatever its labels."""
    url = f"http://127.0.0.1:{broker.http_port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found, f"{name} is not among the metrics"
    return float(found.group(1))


def stored(broker: BrokerProcess) -> list[str]:
    """Topics of the retained messages that are in the data directory."""
    store = sqlite3.connect(f"file:{broker.data_dir}/broker.db?mode=ro", uri=True)
    try:
        return [topic for (topic,) in store.execute("SELECT topic FROM retained ORDER BY topic")]
    finally:
        store.close()


async def entered(broker: BrokerProcess, client_id: str) -> MqttClient:
    found = MqttClient(client_id)
    assert (await found.connect(broker.port)).reason_code == 0
    return found


async def left(*clients: MqttClient) -> None:
    for client in clients:
        client.close()
        await client.ended


async def retains(broker: BrokerProcess, *messages: Publish) -> None:
    client = await entered(broker, "publisher")
    for message in messages:
        await client.publish(
            message.topic, message.payload, qos=1, retain=True, properties=message.properties
        )
    await left(client)


def expires(seconds: int) -> Properties:
    return Properties(message_expiry_interval=seconds)


def test_what_expires_leaves_memory_and_store_by_itself(own_broker: BrokerProcess) -> None:
    own_broker.start()
    run(
        retains(
            own_broker,
            Publish("soon", b"1", properties=expires(8)),
            Publish("replaced", b"1", properties=expires(8)),
            Publish("later", b"1", properties=expires(1_000)),
            Publish("replaced", b"2"),
            Publish("for ever", b"1"),
        )
    )
    all_of_them = ["for ever", "later", "replaced", "soon"]
    wait_until(lambda: stored(own_broker) == all_of_them, 7, "the checkpoint has them")
    wait_until(lambda: stored(own_broker) == ["for ever", "later", "replaced"], 30, "it is removed")
    assert metric(own_broker, "embermq_retained_messages") == 3
    assert metric(own_broker, "embermq_retained_expired_total") == 1
    own_broker.restart()
    assert metric(own_broker, "embermq_retained_messages") == 3


def test_what_expires_while_the_broker_is_down_is_removed_at_its_start(own_broker: BrokerProcess) -> None:
    own_broker.start()
    run(retains(own_broker, Publish("soon", b"1", properties=expires(1)), Publish("stays", b"1")))
    over = time.monotonic() + 1.1
    own_broker.kill()
    wait_until(lambda: time.monotonic() > over)
    own_broker.start()
    assert metric(own_broker, "embermq_retained_messages") == 1
    wait_until(lambda: stored(own_broker) == ["stays"], 30, "it is removed")


def test_the_log_is_trimmed_beneath_retained_messages_and_they_stay(own_broker: BrokerProcess) -> None:
    """A retained message holds back nothing of the log: its body is kept beside it."""
    own_broker.settings |= {"log.retention_bytes": MIB}
    own_broker.start()
    kept = Publish("kept", b"body", properties=Properties(content_type="text"))

    async def fill() -> None:
        await retains(own_broker, kept)
        client = await entered(own_broker, "filler")
        for number in range(48):
            await client.publish(f"filler/{number}", bytes(64 * 1024), qos=1)
        trimmed = False
        while not trimmed:  # trimming goes with a commit
            await client.publish("filler/more", b"x", qos=1)
            trimmed = await asyncio.to_thread(metric, own_broker, "embermq_log_start_offset") > 1
        await left(client)

    run(fill())
    assert metric(own_broker, "embermq_log_body_bytes") < 2 * MIB
    own_broker.kill()
    own_broker.start()

    async def look() -> None:
        client = await entered(own_broker, "late")
        await client.subscribe(Subscription("#", 1))
        await wait_for(lambda: client.messages)
        assert [(m.topic, m.payload, m.retain, m.properties) for m in client.messages] == [
            (kept.topic, kept.payload, True, kept.properties)
        ]
        await left(client)

    run(look())


def frames(payload: bytes) -> list[bytes]:
    return [
        encode(
            Publish(f"site/{number % 100}/{number}/{_leaf(number)}", payload, 0, 0, True), ProtocolVersion.V5
        )
        for number in range(TOPICS)
    ]


def _leaf(number: int) -> str:
    return "rare" if number % 1_000 == 0 else "x"


@pytest.fixture(scope="module")
def full_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With very many retained messages."""
    broker = BrokerProcess(tmp_path_factory.mktemp("retained"), settings={"log.durability": "os"})
    try:
        _fill(broker)
        yield broker
    finally:
        broker.close()


def _fill(broker: BrokerProcess) -> None:
    broker.start()
    before = read_pss_bytes(broker.pid, children=False)

    async def fill() -> None:
        client = await entered(broker, "filler")
        client.send_bytes(b"".join(frames(bytes(100))))
        await client.publish("site/last", b"x", qos=1)  # not retained: it says that all have been taken
        await left(client)

    run(fill())
    assert metric(broker, "embermq_retained_messages") == TOPICS
    each = (read_pss_bytes(broker.pid, children=False) - before) / TOPICS
    assert each < KIB_EACH * 1024, f"{each:.0f} bytes each"


async def bystander(client: MqttClient, over: asyncio.Event) -> list[float]:
    """Seconds from PINGREQ to PINGRESP, one after another, until it is over."""
    taken: list[float] = []
    while not over.is_set():
        began = time.perf_counter()
        await client.ping()
        taken.append(time.perf_counter() - began)
    return taken


@pytest.mark.perf
@pytest.mark.parametrize(
    ("topic_filter", "qos", "count"),
    [
        pytest.param("#", 0, TOPICS, marks=pytest.mark.in_faults),
        ("+/+/+/rare", 1, TOPICS // 1_000),
        ("+/+/+/none", 0, 0),
        ("site/7/#", 2, TOPICS // 100),
    ],
)
def test_very_many_are_found_while_others_are_served(
    full_broker: BrokerProcess, topic_filter: str, qos: int, count: int
) -> None:
    async def dialogue() -> None:
        finder, other = await entered(full_broker, "finder"), await entered(full_broker, "other")
        over = asyncio.Event()
        watching = asyncio.create_task(bystander(other, over))
        await finder.subscribe(Subscription(topic_filter, qos))
        await wait_for(lambda: len(finder.messages) >= count, 60, f"{count} messages")
        for _ in range(20):
            await finder.ping()
        over.set()
        taken = sorted(await watching)
        assert len(finder.messages) == len({message.topic for message in finder.messages}) == count
        judge(taken[-1], 0.5, f"s of the longest of {len(taken)} waits beside {topic_filter}")
        await left(finder, other)

    run(dialogue())
    quiet(full_broker)


def test_what_changes_while_very_many_are_sent_is_seen_as_it_is(full_broker: BrokerProcess) -> None:
    """Each topic is heard of; the last word about it is the present one, and nothing that was deleted before it was
    its turn is sent as retained after it went."""

    async def dialogue() -> None:
        finder, publisher = await entered(full_broker, "finder"), await entered(full_broker, "publisher")
        await finder.subscribe(Subscription("site/#", 0))
        changed = [
            f"site/{number % 100}/{number}/x" for number in range(TOPICS // 2 + 1, TOPICS, TOPICS // 100)
        ]
        for number, topic in enumerate(changed):
            await publisher.publish(topic, b"" if number % 2 else b"new", qos=1, retain=True)
        await wait_for(lambda: len({message.topic for message in finder.messages}) == TOPICS, 60)
        heard: dict[str, list[tuple[bytes, bool]]] = {topic: [] for topic in changed}
        for message in finder.messages:
            if message.topic in heard:
                heard[message.topic].append((message.payload, message.retain))
        for number, topic in enumerate(changed):
            said = (b"" if number % 2 else b"new", False)
            assert heard[topic][-1] == said, f"{topic}: {heard[topic]}"
            assert heard[topic].count(said) == 1
        for topic in changed:  # as they were, for the next test
            await publisher.publish(topic, bytes(100), qos=1, retain=True)
        await left(finder, publisher)

    run(dialogue())
    quiet(full_broker)


@pytest.mark.perf
def test_the_start_with_very_many_takes_seconds(full_broker: BrokerProcess, tmp_path: Path) -> None:
    def started(broker: BrokerProcess) -> float:
        began = time.monotonic()
        broker.restart()
        return time.monotonic() - began

    with BrokerProcess(tmp_path / "empty") as empty:
        judge(started(full_broker) - started(empty), 5, "s that very many retained messages add to a start")
    assert metric(full_broker, "embermq_retained_messages") == TOPICS
