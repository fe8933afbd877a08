"""One client that sends what is allowed and costs as much as it can; beside it others go on.

The pauses that are allowed are far above those that docs/performance.md tells of: this machine may be busy.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable
from itertools import islice, product

import pytest
from tests.hostile.bystanders import undisturbed
from tests.hostile.watching import metric, resident_bytes
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run
from tests.support.raw_client import RawClient, connect_packet, dial
from tests.support.waiting import wait_for, wait_until

from embermq.mqtt.wire.encoder import puback, pubrec, pubrel
from embermq.mqtt.wire.packets import (
    Connack,
    Disconnect,
    Packet,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

pytestmark = pytest.mark.perf

V5 = ProtocolVersion.V5
PAUSE_MS = 1_500.0
MIB = 2**20
DEEP_MIN = 4_000
"""So many filters of 128 levels a session may have at least."""


def subscribed(client: MqttClient, filters: list[str], at_once: int) -> asyncio.Task[list[int]]:
    """Subscribe with so many filters a packet; the codes of all."""

    async def subscribe() -> list[int]:
        codes: list[int] = []
        for start in range(0, len(filters), at_once):
            wanted = [Subscription(text, 1) for text in filters[start : start + at_once]]
            codes += await client.subscribe(*wanted)
        return codes

    return asyncio.create_task(subscribe())


@pytest.mark.parametrize(("kind", "at_once"), [("exact", 1_000), ("deep", 1_000), ("wild", 10_000)])
def test_10_000_subscriptions_of_one_client(broker: BrokerProcess, kind: str, at_once: int) -> None:
    """`wild`: every filter of 13 levels that are `a` or `+`, so that one topic meets 8,192 nodes and all match.
    `deep`: 128 levels of one character, as costly as bytes of filters can be; those past 1 MiB are refused."""
    broker.start()
    filters = {
        "exact": [f"fleet/{number}/state" for number in range(10_000)],
        "deep": [f"+/{number:04}" + "/a" * 126 for number in range(10_000)],
        "wild": ["/".join(levels) for levels in islice(product("a+", repeat=14), 10_000)],
    }[kind]
    topic = {"exact": "fleet/7/state", "deep": filters[7].replace("+", "x"), "wild": "a/" * 13 + "a"}[kind]

    async def scenario() -> None:
        before = resident_bytes(broker)
        greedy, speaker = MqttClient("greedy"), MqttClient("speaker")
        await greedy.connect(broker.port)
        await speaker.connect(broker.port)
        began_s = time.monotonic()
        codes = await subscribed(greedy, filters, at_once)
        subscribed_s = time.monotonic() - began_s
        fitting = codes.count(1)
        assert fitting >= (10_000 if kind != "deep" else DEEP_MIN)
        assert codes == [1] * fitting + [0x97] * (10_000 - fitting)
        grown = (resident_bytes(broker) - before) / MIB
        began_s = time.monotonic()
        for number in range(50):
            # Another last level each time: nothing that is remembered helps.
            await speaker.publish(topic if number == 0 else f"{topic[:-1]}_{number}", b"x", qos=1)
        each_ms = (time.monotonic() - began_s) * 1000 / 50
        await greedy.ping()
        assert len([message for message in greedy.messages if message.topic == topic]) == 1
        began_s = time.monotonic()
        greedy.close()
        await greedy.ended
        await speaker.ping()
        print_figures(kind, f"{subscribed_s:.2f} s, {grown:.0f} MiB, {each_ms:.1f} ms a publish")
        speaker.close()
        await speaker.ended

    with undisturbed(broker.port, PAUSE_MS, f"10,000 subscriptions, {kind}, {at_once} a packet"):
        run(scenario())
    wait_until(lambda: metric(broker, "subscriptions") == 0, 30.0, "no subscription is left")


def print_figures(what: str, text: str) -> None:
    """For who runs it with `-s` or `-rP`."""
    sys.stdout.write(f"{what}: {text}\n")


@pytest.mark.parametrize("first", [b"\x82", b"\xa2"])
def test_a_subscribe_of_a_whole_packet(broker: BrokerProcess, first: bytes) -> None:
    """260,000 filters in a packet of 1 MiB are more than anybody has time for; 20,000 are not."""
    broker.start()

    async def scenario() -> None:
        last = b"\x00" if first == b"\x82" else b""
        kind: type[Suback] | type[Unsuback] = Suback if last else Unsuback
        for count in (20_000, (MIB - 20) // 4):
            greedy = MqttClient("greedy")
            await greedy.connect(broker.port)
            body = b"\x00\x01\x00" + (b"\x00\x01#" + last) * count
            answer: Awaitable[Suback | Unsuback] = greedy.expect(kind, 1)
            greedy.send_bytes(first + varint(len(body)) + body)
            if count == 20_000:
                assert len((await answer).reason_codes) == count
                await greedy.ping()
                greedy.close()
            else:
                with pytest.raises(ConnectionEnded):
                    await answer
                assert greedy.disconnect_received is not None
                assert greedy.disconnect_received.reason_code == ReasonCode.QUOTA_EXCEEDED
            await greedy.ended

    with undisturbed(broker.port, PAUSE_MS, "SUBSCRIBE or UNSUBSCRIBE of 1 MiB"):
        run(scenario())


def varint(value: int) -> bytes:
    """As the fixed header has it."""
    found = b""
    while value > 127:
        found += bytes((value & 127 | 128,))
        value >>= 7
    return found + bytes((value,))


def test_a_topic_of_65_535_levels(broker: BrokerProcess) -> None:
    """It is refused, and costs no more than its length."""
    broker.start()
    topic = "/" * 65_534

    async def scenario() -> None:
        deep = MqttClient("deep")
        await deep.connect(broker.port)
        codes = await deep.subscribe(
            Subscription(topic, 1), Subscription("+/" * 32_767 + "#", 1), Subscription("+/" * 32_767 + "+", 1)
        )
        assert list(codes) == [ReasonCode.TOPIC_FILTER_INVALID] * 3
        assert await deep.publish(topic, b"x", qos=1) == ReasonCode.TOPIC_NAME_INVALID
        deep.close()
        await deep.ended

    with undisturbed(broker.port, PAUSE_MS, "65,535 levels"):
        run(scenario())


def test_100_000_user_properties_go_on_to_5_subscribers(broker: BrokerProcess) -> None:
    broker.start()
    count = 100_000
    block = b"\x26\x00\x01a\x00\x01b" * count

    async def scenario() -> None:
        readers = [MqttClient(f"reader{number}") for number in range(5)]
        for reader in readers:
            await reader.connect(broker.port)
            await reader.subscribe(Subscription("bomb", 1))
        speaker = MqttClient("speaker")
        await speaker.connect(broker.port)
        began_s = time.monotonic()
        body = b"\x00\x04bomb\x00\x01" + varint(len(block)) + block + b"x"
        speaker.send_bytes(b"\x32" + varint(len(body)) + body)
        await speaker.ping()
        for reader in readers:
            await reader.ping()
            assert [
                len(packet.properties.user_properties) for packet in reader.messages if packet.properties
            ] == [count]
        print_figures("user properties", f"{time.monotonic() - began_s:.2f} s with the clients' own time")
        for client in (*readers, speaker):
            client.close()
            await client.ended

    with undisturbed(broker.port, PAUSE_MS, "100,000 user properties"):
        run(scenario())


def test_65_535_messages_of_qos_2_that_are_never_released(broker: BrokerProcess) -> None:
    """With 3.1.1, which has no Receive Maximum: every packet id is taken, and the next connection finds them so."""
    broker.start()

    async def scenario() -> None:
        before = resident_bytes(broker)
        for start in (False, True):
            hoarder = MqttClient("hoarder", version=ProtocolVersion.V311, keeps=False)
            await hoarder.connect(broker.port, clean_start=False)
            received: set[int] = set()

            def take(packet: Packet, received: set[int] = received) -> None:
                if isinstance(packet, Pubrec):
                    received.add(packet.packet_id)

            hoarder.on_packet = take
            for packet_id in range(1, 65_536):
                hoarder.send(Publish("hoard", b"x", 2, packet_id, False, start))
                if packet_id % 1_000 == 0:
                    await hoarder.ping()
            await hoarder.ping()
            while len(received) < 65_535:
                await hoarder.ping()
            hoarder.abort()
            await hoarder.ended
        print_figures("QoS 2", f"{(resident_bytes(broker) - before) / MIB:.1f} MiB")
        hoarder = MqttClient("hoarder", version=ProtocolVersion.V311, keeps=False)
        await hoarder.connect(broker.port, clean_start=False)
        done = hoarder.expect(Pubcomp, 65_535)
        for packet_id in range(1, 65_536):
            hoarder.send_bytes(pubrel(packet_id))
        await done
        hoarder.close()
        await hoarder.ended

    with undisturbed(broker.port, PAUSE_MS, "65,535 QoS 2 messages"):
        run(scenario())
    assert metric(broker, "messages_stored_total") >= 0


def test_games_with_packet_ids(broker: BrokerProcess) -> None:
    """Acknowledgements of what was never sent, each kind for every id, and the same id for everything."""
    broker.start()

    async def scenario() -> None:
        player = MqttClient("player", acknowledges=False)
        await player.connect(broker.port, expiry_s=60)
        await player.subscribe(Subscription("game", 2))
        for packet_id in range(1, 65_536):
            player.send_bytes(pubrec(packet_id) + pubrel(packet_id) + puback(packet_id))
        await player.ping()
        for _ in range(100):
            player.send(Publish("game", b"x", 2, 7))
            player.send(Subscribe(7, (Subscription("game", 1),)))
            player.send(Unsubscribe(7, ("game",)))
            player.send_bytes(pubrel(7))
        await player.ping()
        assert player.is_open
        player.close()
        await player.ended

    with undisturbed(broker.port, PAUSE_MS, "games with packet ids"):
        run(scenario())


def test_overlapping_groups_multiply_one_message(broker: BrokerProcess) -> None:
    """1 publish, 2,000 shared groups of one client with the same filter, 2,000 copies: as asked, and no pause."""
    broker.start()

    async def scenario() -> None:
        many = MqttClient("many")
        await many.connect(broker.port)
        filters = [f"$share/g{number}/zip/#" for number in range(2_000)]
        assert set(await subscribed(many, filters, 500)) == {1}
        speaker = MqttClient("speaker")
        await speaker.connect(broker.port)
        for _ in range(10):
            await speaker.publish("zip/1", b"x" * 100, qos=0)
        await speaker.ping()
        wanted = 20_000
        for _ in range(200):
            await many.ping()
            if len(many.messages) + await asyncio.to_thread(dropped, broker) >= wanted:
                break
        print_figures("groups", f"{len(many.messages)} of {wanted} copies arrived")
        for client in (many, speaker):
            client.close()
            await client.ended

    with undisturbed(broker.port, PAUSE_MS, "2,000 groups"):
        run(scenario())


def dropped(broker: BrokerProcess) -> int:
    """QoS 0 that a client did not take in time."""
    return int(metric(broker, "dropped_slow_total"))


@pytest.mark.in_faults
def test_50_000_retained_topics(broker: BrokerProcess) -> None:
    """What they take, and that all of them can be asked for and deleted meanwhile."""
    broker.start()

    async def scenario() -> None:
        before = resident_bytes(broker)
        keeper = MqttClient("keeper", keeps=False)
        await keeper.connect(broker.port)
        for number in range(50_000):
            keeper.send(Publish(f"retained/{number}/deep/er/topic", b"x" * 50, 0, 0, True))
            if number % 500 == 0:
                await keeper.ping()
        await keeper.publish("retained/last", b"x", qos=1, retain=True)
        grown = resident_bytes(broker) - before
        print_figures("retained", f"{grown / 50_000:.0f} bytes each")
        assert grown < 50_000 * 3_000
        reader = MqttClient("reader")
        await reader.connect(broker.port)
        await reader.subscribe(Subscription("#", 0))
        # What bystanders publish meanwhile comes as well, and is not retained.
        await wait_for(
            lambda: sum(message.retain for message in reader.messages) >= 50_001, 60.0, "all that is retained"
        )
        assert len({message.topic for message in reader.messages if message.retain}) == 50_001
        for client in (reader, keeper):
            client.close()
            await client.ended

    with undisturbed(broker.port, PAUSE_MS, "50,000 retained topics"):
        run(scenario())


@pytest.mark.parametrize("first", [b"\x10", b"\x30"])
def test_a_length_of_268_mb_takes_no_memory(broker: BrokerProcess, first: bytes) -> None:
    """Refused with its fixed header; where it is allowed nothing is set aside for what may never come."""
    broker.settings |= {"mqtt.packet_bytes_max": 268_435_460, "device.queue_bytes_max": 268_435_460}
    broker.start()
    before = resident_bytes(broker)
    clients = []
    with undisturbed(broker.port, PAUSE_MS, "lengths of 268 MB"):
        for number in range(200):
            client = RawClient(dial(broker.port))
            if first == b"\x30":
                assert client.enter(f"big{number}") == 0
            client.send(first + b"\xff\xff\xff\x7f")
            clients.append(client)
        other = RawClient(dial(broker.port))
        assert other.enter("other") == 0
        other.ping()
        assert resident_bytes(broker) - before < 20 * MIB
        for client in (*clients, other):
            client.close()


def test_a_length_past_the_limit_is_refused_at_once(broker: BrokerProcess) -> None:
    broker.start()
    client = RawClient(dial(broker.port))
    client.send(connect_packet("big") + b"\x30\xff\xff\xff\x7f")
    assert client.expect(Connack).reason_code == 0
    assert client.expect(Disconnect).reason_code == ReasonCode.PACKET_TOO_LARGE
    assert client.read_to_end() == b""
    client.close()


def test_a_topic_alias_for_everything(broker: BrokerProcess) -> None:
    """As many aliases as allowed, each with the longest topic, from 200 clients: memory by limits, not by wishes."""
    broker.start()
    before = resident_bytes(broker)

    async def scenario() -> None:
        clients = [MqttClient(f"alias{number}", keeps=False) for number in range(200)]
        for client in clients:
            await client.connect(broker.port)
            for alias in range(1, 33):
                topic = f"{client.client_id}/{alias}/" + "x" * 4_000
                client.send(Publish(topic, b"", 0, 0, properties=Properties(topic_alias=alias)))
            await client.ping()
        grown = (resident_bytes(broker) - before) / MIB
        print_figures("aliases", f"{grown:.1f} MiB for 6,400 topics of 4 kB")
        assert grown < 6_400 * 4_096 / MIB + 16
        for client in clients:
            client.abort()
            await client.ended

    with undisturbed(broker.port, PAUSE_MS, "topic aliases"):
        run(scenario())
