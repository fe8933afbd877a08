"""The promises of docs/guarantees/repositories.md over sockets: what is left of a session after a kill."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.stores.conftest import talk_until_killed
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import DAY_S, arrived, client, flood, gone, kept, passed, present, talk
from tests.support.metrics import metric
from tests.support.mqtt_client import MqttClient
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Puback, Publish, Pubrec, Pubrel, Subscription, Will
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

V31, V311, V5 = ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5


async def stored(found: MqttClient) -> None:
    """What the client did before is stored: what follows is answered after it."""
    assert await found.subscribe(Subscription("nothing", 1)) == (1,)


async def back_with_nothing(broker: BrokerProcess, client_id: str) -> None:
    """The client returns, and nothing of an earlier session is there."""
    found = await kept(broker, client_id)
    assert not present(found)
    await found.ping()
    assert found.messages == []


# In flight


@pytest.mark.promise("repositories-1", "device-8")
def test_what_is_in_flight_is_resent_in_the_order_of_its_first_sending(
    broker: BrokerProcess, seed: int
) -> None:
    """Of QoS 1 and 2, acknowledged out of order, over a cut and a kill, part of it stored before it was sent."""
    random = Random(seed)
    count = 120
    broker.start()
    left: list[tuple[bytes, int, int]] = []

    async def before() -> None:
        subscriber = await kept(broker, "s", acknowledges=False)
        await subscriber.subscribe(Subscription("t", 2))
        publisher = await client(broker, "p")
        for number in range(count):
            if number == count // 2:
                await arrived(subscriber, number)
                await gone(subscriber)
            await publisher.publish("t", b"%d" % number, qos=random.choice((1, 2)))
        back = await kept(broker, "s", acknowledges=False)
        await arrived(back, count)
        found = list(back.messages)
        first = [int(message.payload) for message in subscriber.messages]  # QoS 1 may overtake QoS 2 there
        assert [int(message.payload) for message in found] == first + list(range(count // 2, count))
        for qos in (1, 2):
            of_one = [int(message.payload) for message in found if message.qos == qos]
            assert of_one == sorted(of_one)
        for message in random.sample(found, count // 3):
            if message.qos == 1:
                back.send(Puback(message.packet_id))
                found.remove(message)
        left.extend((message.payload, message.packet_id, message.qos) for message in found)
        await stored(back)

    async def after() -> None:
        back = await kept(broker, "s")
        await arrived(back, len(left))
        assert [(message.payload, message.packet_id, message.qos) for message in back.messages] == left
        assert all(message.dup for message in back.messages)

    talk_until_killed(broker, before)
    talk(after)


@pytest.mark.promise("repositories-1")
def test_an_incoming_qos_2_message_is_known_after_a_kill(broker: BrokerProcess) -> None:
    broker.start()

    async def before() -> None:
        subscriber = await kept(broker, "s")
        await subscriber.subscribe(Subscription("t", 2))
        await gone(subscriber)
        publisher = await kept(broker, "p", acknowledges=False)
        for packet_id in (7, 8):
            taken = publisher.expect(Pubrec, packet_id)
            publisher.send(Publish("t", b"%d" % packet_id, 2, packet_id))
            assert (await taken).reason_code == 0
        await stored(publisher)

    async def after() -> None:
        subscriber = await kept(broker, "s")
        publisher = await kept(broker, "p")
        assert present(publisher)
        for packet_id in (7, 8):
            taken = publisher.expect(Pubrec, packet_id)
            publisher.send(Publish("t", b"%d" % packet_id, 2, packet_id, dup=True))
            assert (await taken).reason_code == 0
            publisher.send(Pubrel(packet_id))
        await publisher.publish("t", b"9", qos=2)
        assert sorted(await arrived(subscriber, 3)) == [b"7", b"8", b"9"]
        await subscriber.ping()
        assert len(subscriber.messages) == 3

    talk_until_killed(broker, before)
    talk(after)


@pytest.mark.promise("repositories-1", "device-8")
def test_an_orderly_restart_keeps_ids_and_order(broker: BrokerProcess) -> None:
    broker.start()
    first: list[Publish] = []

    async def before() -> None:
        subscriber = await kept(broker, "s", acknowledges=False)
        await subscriber.subscribe(Subscription("t/#", 2), Subscription("$share/g/u", 1))
        publisher = await client(broker, "p")
        for number in range(10):
            await publisher.publish("t/x", b"%d" % number, qos=1 + number % 2, retain=number == 9)
        await arrived(subscriber, 10)
        first.extend(subscriber.messages)

    async def after() -> None:
        back = await kept(broker, "s")
        assert present(back)
        await arrived(back, 10)
        assert [(m.payload, m.packet_id, m.qos) for m in back.messages] == [
            (m.payload, m.packet_id, m.qos) for m in first
        ]
        assert all(message.dup for message in back.messages)
        publisher = await client(broker, "p")
        await publisher.publish("u", b"shared", qos=1)
        await arrived(back, 11)
        late = await client(broker, "late")
        await late.subscribe(Subscription("t/+", 0))
        assert await arrived(late, 1) == [b"9"]
        assert late.messages[0].retain

    talk(before)
    broker.restart()
    talk(after)
    assert broker.stop() == 0


# Retained messages and wills


@pytest.mark.promise("repositories-5a")
def test_the_newest_retained_message_is_there_after_a_kill(broker: BrokerProcess) -> None:
    topics, rounds = 50, 4
    broker.start()

    async def before() -> None:
        publisher = await client(broker, "p", keeps=False)
        await flood(publisher, lambda number: f"r/{number % topics}", range(topics * rounds), retain=True)
        publisher.on_packet = lambda packet: None
        for number in range(0, topics, 10):
            await publisher.publish(f"r/{number}", b"", qos=1, retain=True)

    async def after() -> None:
        reader = await client(broker, "r")
        await reader.subscribe(Subscription("r/#", 1))
        wanted = {
            f"r/{number}": b"%d" % (number + topics * (rounds - 1)) for number in range(topics) if number % 10
        }
        await arrived(reader, len(wanted))
        await reader.ping()
        assert {message.topic: message.payload for message in reader.messages} == wanted
        assert len(reader.messages) == len(wanted)

    talk_until_killed(broker, before)
    talk(after)


@pytest.mark.promise("repositories-6")
def test_wills_after_a_kill(broker: BrokerProcess) -> None:
    """Of who was there at the kill, and of who had gone without a word and whose delay was not over; not of who had
    said DISCONNECT, nor of who had come back within the delay."""
    broker.start()
    delay = Properties(will_delay_interval=2)

    async def before() -> None:
        watcher = await kept(broker, "w")
        await watcher.subscribe(Subscription("will/#", 1))
        for client_id in ("there", "cut", "orderly", "returned"):
            will = Will(
                f"will/{client_id}", client_id.encode(), 1, False, None if client_id == "there" else delay
            )
            found = await kept(broker, client_id, will=will)
            if client_id == "orderly":
                found.close()
                await found.ended
            elif client_id != "there":
                await gone(found)
            if client_id == "returned":
                await stored(await kept(broker, client_id))
        await stored(watcher)

    async def after() -> None:
        watcher = await kept(broker, "w")
        assert sorted(await arrived(watcher, 2)) == [b"cut", b"there"]
        await passed(2.2)  # a will that should not be there would wait for its delay
        await watcher.ping()
        assert len(watcher.messages) == 2

    talk_until_killed(broker, before)
    talk(after)


# Ends and owners of sessions


@pytest.mark.promise("repositories-7")
@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_clean_start_takes_all_of_the_session_also_after_a_kill(
    broker: BrokerProcess, version: ProtocolVersion
) -> None:
    broker.start()

    async def before() -> None:
        subscriber = await kept(broker, "s", version=version, acknowledges=False)
        await subscriber.subscribe(Subscription("t", 2))
        publisher = await client(broker, "p")
        for number in range(10):
            await publisher.publish("t", b"%d" % number, qos=1 + number % 2)
        await arrived(subscriber, 10)
        await gone(subscriber)
        await publisher.publish("t", b"stored", qos=1)
        new = await client(broker, "s", version=version, clean_start=True, expiry_s=DAY_S)
        assert not present(new)
        await new.ping()
        assert new.messages == []
        await gone(new)

    async def after() -> None:
        publisher = await client(broker, "p")
        await publisher.publish("t", b"later", qos=1)
        found = await kept(broker, "s", version=version)
        assert present(found) is (version is V5)  # in 3.x the clean session ended with its connection
        await found.ping()
        assert found.messages == []

    talk_until_killed(broker, before)
    talk(after)


@pytest.mark.promise("repositories-7")
def test_a_session_ends_in_time_also_when_the_broker_is_down_then(broker: BrokerProcess) -> None:
    broker.start()

    async def before() -> None:
        for client_id, expiry_s in (("short", 1), ("long", DAY_S), ("never", 4_294_967_295)):
            found = await client(broker, client_id, clean_start=False, expiry_s=expiry_s)
            await found.subscribe(Subscription("t", 1))
            await gone(found)
        publisher = await client(broker, "p")
        await publisher.publish("t", b"x", qos=1)

    async def after() -> None:
        for client_id in ("long", "never"):
            found = await kept(broker, client_id)
            assert present(found)
            assert await arrived(found, 1) == [b"x"]
        await back_with_nothing(broker, "short")

    talk(before)
    broker.kill()
    talk(lambda: passed(1.2))
    broker.start()
    talk(after)


@pytest.mark.promise("repositories-8")
def test_what_the_old_connection_acknowledged_counts_and_nothing_that_it_says_later(
    broker: BrokerProcess,
) -> None:
    count = 20
    broker.start()

    async def before() -> None:
        old = await kept(broker, "s", acknowledges=False)
        await old.subscribe(Subscription("t", 1))
        publisher = await client(broker, "p")
        for number in range(count):
            await publisher.publish("t", b"%d" % number, qos=1)
        await arrived(old, count)
        # What is acknowledged before it was ever written may come again after a kill [device-11].
        await wait_for(lambda: metric(broker, "messages_stored") == count)
        for message in old.messages[: count // 2]:
            old.send(Puback(message.packet_id))
        await stored(old)
        new = await kept(broker, "s", acknowledges=False)
        for message in old.messages:
            old.send(Puback(message.packet_id))
        await asyncio.wait_for(old.ended, 30)
        assert old.disconnect_received is not None
        assert old.disconnect_received.reason_code == 0x8E
        assert [int(payload) for payload in await arrived(new, count // 2)] == list(range(count // 2, count))
        await stored(new)

    async def after() -> None:
        back = await kept(broker, "s")
        assert [int(payload) for payload in await arrived(back, count // 2)] == list(range(count // 2, count))

    talk_until_killed(broker, before)
    talk(after)
