"""Limits of what one client publishes and subscribes to, over real sockets."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.measuring import judge
from tests.support.metrics import metric, resident_mib
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import (
    Packet,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
RATE = 50


@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_v5_client_that_publishes_too_fast_hears_0x97(
    own_broker: BrokerProcess, qos: int, total: bool
) -> None:
    own_broker.settings[f"mqtt.publish_rate_{'total_' if total else ''}max"] = RATE
    own_broker.start()

    async def scenario() -> None:
        publisher, subscriber = MqttClient("p"), MqttClient("s")
        await publisher.connect(own_broker.port)
        await subscriber.connect(own_broker.port, expiry_s=60)  # others wait for PUBREL
        await subscriber.subscribe(Subscription("t", 1))
        count = 3 * RATE
        for packet_id in range(1, count + 1):
            publisher.send(Publish("t", b"%d" % packet_id, qos, packet_id))
        kind = Puback if qos == 1 else Pubrec
        await wait_for(lambda: sum(isinstance(packet, kind) for packet in publisher.received) == count)
        answers = [packet for packet in publisher.received if isinstance(packet, kind)]
        assert [answer.packet_id for answer in answers] == list(range(1, count + 1))
        taken = [answer.packet_id for answer in answers if answer.reason_code == 0]
        refused = [answer for answer in answers if answer.reason_code == ReasonCode.QUOTA_EXCEEDED]
        assert len(taken) + len(refused) == count
        assert RATE <= len(taken) < 2 * RATE
        for packet_id in taken if qos == 2 else []:
            publisher.send(Pubrel(packet_id))
        await wait_for(lambda: len(subscriber.messages) == len(taken))
        assert [int(message.payload) for message in subscriber.messages] == taken
        assert metric(own_broker, "refused_publish_rate") == len(refused)
        assert publisher.is_open

    run(scenario())


def test_qos_0_of_a_v5_client_is_dropped(own_broker: BrokerProcess) -> None:
    own_broker.settings["mqtt.publish_rate_max"] = RATE
    own_broker.start()

    async def scenario() -> None:
        publisher, subscriber = MqttClient("p"), MqttClient("s")
        await publisher.connect(own_broker.port)
        await subscriber.connect(own_broker.port)
        await subscriber.subscribe(Subscription("t", 0))
        for _ in range(4 * RATE):
            publisher.send(Publish("t", b"x"))
        await publisher.ping()
        await subscriber.ping()
        assert RATE <= len(subscriber.messages) < 2 * RATE
        dropped = metric(own_broker, "refused_publish_rate")
        assert dropped == 4 * RATE - len(subscriber.messages)

    run(scenario())


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_3_1_1_client_is_not_read_for_a_while_and_not_taken_for_dead(
    own_broker: BrokerProcess, qos: int
) -> None:
    own_broker.settings["mqtt.publish_rate_max"] = RATE
    own_broker.start()

    async def scenario() -> None:
        publisher, subscriber = MqttClient("p", version=V311), MqttClient("s")

        def release(packet: Packet) -> None:
            if isinstance(packet, Pubrec):
                publisher.send(Pubrel(packet.packet_id))

        publisher.on_packet = release
        await publisher.connect(own_broker.port, keep_alive_s=1)
        await subscriber.connect(own_broker.port, expiry_s=60)  # others wait for PUBREL
        await subscriber.subscribe(Subscription("t", 1))
        began = time.monotonic()
        count = 4 * RATE
        for number in range(count):
            publisher.send(Publish("t", b"%d" % number, qos, number + 1 if qos else 0))
        await wait_for(lambda: metric(own_broker, "publishers_paused") == 1)
        await wait_for(lambda: len(subscriber.messages) == count)
        await publisher.ping()
        assert time.monotonic() - began > 2.5, "the second that is saved, and three to wait for"
        assert [int(message.payload) for message in subscriber.messages] == list(range(count))
        assert publisher.is_open
        assert metric(own_broker, "publishers_throttled") >= 1
        assert metric(own_broker, "publishers_paused") == 0
        await asyncio.wait_for(publisher.ended, 30)  # without a ping the keep-alive counts again

    run(scenario())


@pytest.mark.parametrize(("version", "refusal"), [(V311, 0x80), (V5, 0x97)])
def test_one_subscription_too_many(own_broker: BrokerProcess, version: ProtocolVersion, refusal: int) -> None:
    own_broker.settings["mqtt.subscriptions_max"] = 3
    own_broker.start()

    async def scenario() -> None:
        client = MqttClient("s", version=version)
        await client.connect(own_broker.port)
        wanted = [Subscription(text, 1) for text in ("a", "b/+", "c", "d", "a")]
        assert await client.subscribe(*wanted) == (1, 1, 1, refusal, 1)
        await client.unsubscribe("c")
        assert await client.subscribe(Subscription("d", 0)) == (0,)
        assert metric(own_broker, "refused_subscriptions") == 1
        assert metric(own_broker, "subscriptions") == 3

    run(scenario())


@pytest.mark.perf
@pytest.mark.parametrize("kept", [pytest.param(False, marks=pytest.mark.in_faults), True])
def test_ten_thousand_subscriptions_of_one_client_stop_nobody(own_broker: BrokerProcess, kept: bool) -> None:
    own_broker.start()
    count, at_once = 10_000, 1_000

    async def scenario() -> None:
        many, bystander = MqttClient("many"), MqttClient("bystander")
        await many.connect(own_broker.port, clean_start=not kept, expiry_s=3_600 if kept else 0)
        await bystander.connect(own_broker.port)
        before_mib = resident_mib(own_broker)
        worst_s = 0.0
        for start in range(0, count, at_once):
            texts = [f"many/{number}/+/#" for number in range(start, start + at_once)]
            many.send(Subscribe(start // at_once + 1, tuple(Subscription(text, 1) for text in texts)))
            began = time.monotonic()
            await bystander.ping()
            worst_s = max(worst_s, time.monotonic() - began)
        await many.ping()
        assert metric(own_broker, "subscriptions") == count
        assert resident_mib(own_broker) - before_mib < 40
        await bystander.publish("many/9999/x/y", b"here", qos=1)
        await wait_for(lambda: [message.payload for message in many.messages] == [b"here"])
        began = time.monotonic()
        many.abort()
        await bystander.ping()
        worst_s = max(worst_s, time.monotonic() - began)
        judge(worst_s, 0.5, "10,000 subscriptions, s of the longest ping of another")

    run(scenario())


def test_filters_of_many_levels_fill_no_more_memory_than_they_may(own_broker: BrokerProcess) -> None:
    limit_mib = 16
    # Of one user half of what there may be in all.
    own_broker.settings["mqtt.subscriptions_bytes_total_max"] = 2 * limit_mib * 1024 * 1024
    own_broker.start()
    before_mib = resident_mib(own_broker)

    async def scenario() -> None:
        codes: set[int] = set()
        for number in range(8):
            client = MqttClient(f"bomb-{number}")
            await client.connect(own_broker.port, expiry_s=3_600)
            filters = [
                "/".join(
                    ["+" if one & 1 << bit else "a" for bit in range(16)] + ["a", "+"] * 50 + [str(number)]
                )
                for one in range(3_000)
            ]
            codes.update(await client.subscribe(*(Subscription(text, 1) for text in filters)))
            client.abort()
        assert codes == {1, ReasonCode.QUOTA_EXCEEDED}
        limit = metric(own_broker, "subscriptions_bytes_limit")
        assert 2 * limit_mib * 1024 * 1024 == limit
        assert 0.9 * limit / 2 < metric(own_broker, "subscriptions_bytes") <= limit / 2
        refused = metric(own_broker, "refused_subscriptions_user")
        assert refused + metric(own_broker, "subscriptions") == 8 * 3_000
        assert (
            resident_mib(own_broker) - before_mib < 3 * limit_mib
        )  # with what packets of 0.7 MB took in passing

    run(scenario())


@pytest.mark.parametrize("version", [V311, V5])
def test_one_kept_session_too_many(own_broker: BrokerProcess, version: ProtocolVersion) -> None:
    own_broker.settings["mqtt.sessions_total_max"] = 2
    own_broker.settings["mqtt.sessions_user_max"] = 2
    own_broker.start()

    async def enters(client_id: str, *, kept: bool = True) -> int:
        client = MqttClient(client_id, version=version)
        answer = await client.connect(own_broker.port, clean_start=not kept, expiry_s=60 if kept else 0)
        client.close()
        return answer.reason_code

    async def scenario() -> None:
        assert [await enters(name) for name in ("a", "b")] == [0, 0]
        refusal = ReasonCode.QUOTA_EXCEEDED if version is V5 else 3
        assert await enters("c") == refusal
        assert [await enters("c", kept=False), await enters("a")] == [0, 0]
        assert metric(own_broker, "refused_sessions_user") == 1
        assert metric(own_broker, "sessions_kept") == metric(own_broker, "sessions_kept_limit") == 2

    run(scenario())


def test_more_filters_in_one_packet_than_can_be_looked_at_at_once(own_broker: BrokerProcess) -> None:
    own_broker.start()

    async def scenario() -> None:
        bystander = MqttClient("bystander")
        await bystander.connect(own_broker.port)
        for kind in ("subscribe", "unsubscribe"):
            many = MqttClient("many")
            await many.connect(own_broker.port)
            texts = tuple(f"m/{number}" for number in range(90_000))
            if kind == "subscribe":
                many.send(Subscribe(1, tuple(Subscription(text, 1) for text in texts)))
            else:
                many.send(Unsubscribe(1, texts))
            await many.ended
            assert many.disconnect_received is not None
            assert many.disconnect_received.reason_code == 0x97
        await bystander.ping()
        assert metric(own_broker, "subscriptions") == 0

    run(scenario())


def test_the_most_filters_of_one_packet_are_taken(own_broker: BrokerProcess) -> None:
    own_broker.start()

    async def scenario() -> None:
        many = MqttClient("many")
        await many.connect(own_broker.port)
        wanted = [Subscription(f"m/{number}", 1) for number in range(20_000)]
        assert await many.subscribe(*wanted) == (1,) * 20_000
        assert await many.unsubscribe(*(one.topic_filter for one in wanted)) == (0,) * 20_000

    run(scenario())
