"""The promises of docs/guarantees/device.md over sockets."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest
from tests.hostile.bystanders import Bystanders
from tests.stores.conftest import talk_until_killed
from tests.stores.session_stores import SessionStore
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import DAY_S, arrived, client, flood, gone, kept, make, passed, present, talk
from tests.support.measuring import is_judged, judge
from tests.support.metrics import metric
from tests.support.mqtt_client import MqttClient
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import (
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscription,
)
from embermq.mqtt.wire.properties import Properties

UNSIGNED_32_MAX = 4_294_967_295
PACKET_IDS = 65_535
INFLIGHT_MAX = 1_024
"""In Redis these count within `device.queue_limit` where that is as many as there are packet ids."""
BLOCKED_MS = 50.0
TRIES = 3


async def away(broker: BrokerProcess, client_id: str, topic_filter: str, qos: int = 1) -> None:
    """A session that has subscribed and gone."""
    found = await kept(broker, client_id)
    await found.subscribe(Subscription(topic_filter, qos))
    found.close()
    await found.ended


def numbers(payloads: list[bytes]) -> list[int]:
    return [int(payload) for payload in payloads]


def only_on(name: str) -> pytest.MarkDecorator:
    """What goes on for long runs on this store, and on the others in `make faults`."""
    others = (
        pytest.param(one, marks=pytest.mark.in_faults)
        for one in ("redis", "redis_cluster", "sqlite")
        if one != name
    )
    return pytest.mark.parametrize("session_store", [name, *others], indirect=True)


on_sqlite, on_redis = only_on("sqlite"), only_on("redis")


# Packet ids


@pytest.mark.promise("device-4")
@on_sqlite
def test_ids_wrap_around_one_that_stays_in_flight_live_and_stored(broker: BrokerProcess) -> None:
    live, stored = 66_000, 2_000
    broker.start()
    stuck: list[int] = []
    seen: list[int] = []

    def watched() -> tuple[MqttClient, list[int]]:
        """Acknowledges everything but the first message of all."""
        found = make("s", acknowledges=False, keeps=False)
        payloads: list[int] = []

        def take(packet: Packet) -> None:
            if not isinstance(packet, Publish):
                return
            payloads.append(int(packet.payload))
            if not stuck:
                stuck.append(packet.packet_id)
            elif packet.packet_id != stuck[0] or int(packet.payload):
                seen.append(packet.packet_id)
                found.send(Puback(packet.packet_id))

        found.on_packet = take
        return found, payloads

    async def all_live() -> None:
        subscriber, payloads = watched()
        await subscriber.connect(broker.port, clean_start=False, expiry_s=DAY_S)
        await subscriber.subscribe(Subscription("t", 1))
        publisher = await client(broker, "p", keeps=False)
        await flood(publisher, "t", range(live))
        await wait_for(lambda: len(payloads) == live, 60, "all live messages")
        assert payloads == list(range(live))
        assert max(seen) == 65_535
        assert stuck[0] not in seen
        await subscriber.ping()
        await gone(subscriber)
        await flood(publisher, "t", range(live, live + stored))

    async def all_stored() -> None:
        subscriber, payloads = watched()
        await subscriber.connect(broker.port, clean_start=False, expiry_s=DAY_S)
        # What was acknowledged a moment before its client went may come again; what was not comes first.
        await wait_for(lambda: payloads[-1:] == [live + stored - 1], 60, "all stored messages")
        assert payloads[0] == 0
        assert payloads[-stored:] == list(range(live, live + stored))
        assert stuck[0] not in seen
        subscriber.close()

    talk_until_killed(broker, all_live)
    talk(all_stored)


@pytest.mark.promise("device-4")
def test_retained_stored_and_live_messages_share_one_row_of_ids(broker: BrokerProcess) -> None:
    each = 150
    broker.start()

    async def dialogue() -> None:
        await away(broker, "s", "t")
        publisher = await client(broker, "p", keeps=False)
        await flood(publisher, lambda number: f"r/{number}", range(each), retain=True)
        await flood(publisher, "t", range(each))
        back = make("s", acknowledges=False)
        await back.connect(broker.port, clean_start=False, expiry_s=DAY_S)
        assert await back.subscribe(Subscription("r/#", 2)) == (2,)
        await flood(publisher, "t", range(each, 2 * each))
        await arrived(back, 3 * each)
        found = back.messages
        assert len({message.packet_id for message in found}) == 3 * each
        assert sum(message.retain for message in found) == each
        assert numbers([m.payload for m in found if m.topic == "t"]) == list(range(2 * each))
        sent.extend((message.packet_id, message.topic, message.payload) for message in found)
        await wait_for(lambda: metric(broker, "messages_stored") == 3 * each, 30, "the end of the linger")
        await back.subscribe(Subscription("other", 1))  # answered when what came before is stored

    async def again() -> None:
        back = await kept(broker, "s", acknowledges=False)
        await arrived(back, 3 * each)
        assert [(message.packet_id, message.topic, message.payload) for message in back.messages] == sent
        assert all(message.dup for message in back.messages)

    sent: list[tuple[int, str, bytes]] = []
    talk_until_killed(broker, dialogue)
    talk(again)


# What is stored, and for how long


@pytest.mark.promise("device-5")
@pytest.mark.parametrize("qos", [1, 2])
@on_redis
def test_a_record_that_is_read_again_is_stored_once(broker: BrokerProcess, qos: int) -> None:
    """One client leaves its first message unacknowledged, within a long linger: so the log is read from there again,
    and with it all that was stored, or stored and acknowledged, for the others."""
    count, half = 400, 200
    broker.settings["device.linger_ms"] = 10_000
    broker.start()

    async def before() -> None:
        await away(broker, "absent", "t", qos)
        await away(broker, "half", "t", qos)
        holder = await kept(broker, "holder", acknowledges=False)
        await holder.subscribe(Subscription("t", 1))
        publisher = await client(broker, "p")
        # All at once: one after the other takes longer than the linger on a busy machine.
        codes = await asyncio.gather(*(publisher.publish("t", b"%d" % n, qos=qos) for n in range(count)))
        assert max(codes) < 0x80
        back = make("half", acknowledges=False)

        def take(packet: Packet) -> None:
            if isinstance(packet, Pubrel):
                back.send(Pubcomp(packet.packet_id))
            elif isinstance(packet, Publish) and int(packet.payload) < half:
                back.send(Puback(packet.packet_id) if qos == 1 else Pubrec(packet.packet_id))

        back.on_packet = take
        await back.connect(
            broker.port, clean_start=False, properties=Properties(session_expiry_interval=DAY_S)
        )
        await arrived(back, count)
        await back.ping()
        await back.subscribe(Subscription("other", 1))  # answered when what came before is stored
        await gone(back)

    async def after() -> None:
        absent = await kept(broker, "absent")
        back = await kept(broker, "half")
        assert numbers(await arrived(absent, count)) == list(range(count))
        assert numbers(await arrived(back, count - half)) == list(range(half, count))
        publisher = await client(broker, "p")
        await publisher.publish("t", b"%d" % count, qos=qos)
        assert numbers(await arrived(absent, count + 1))[count:] == [count]
        assert numbers(await arrived(back, count - half + 1))[count - half :] == [count]

    talk_until_killed(broker, before)
    assert metric(broker, "redelivered_after_start") == count, "what the holder had not acknowledged"
    talk(after)


@pytest.mark.promise("device-6")
def test_over_the_limit_the_oldest_go_and_none_that_is_in_flight(broker: BrokerProcess) -> None:
    limit, window, count = 50, 20, 200
    broker.settings["device.queue_limit"] = limit
    broker.start()
    narrow = Properties(session_expiry_interval=DAY_S, receive_maximum=window)

    async def dialogue() -> None:
        subscriber = await client(broker, "s", clean_start=False, properties=narrow, acknowledges=False)
        await subscriber.subscribe(Subscription("t", 1))
        publisher = await client(broker, "p", keeps=False)
        await flood(publisher, "t", range(window))
        await arrived(subscriber, window)
        await gone(subscriber)
        await flood(publisher, "t", range(window, count))
        await wait_for(lambda: metric(broker, "dropped_offline_limit") == count - limit, 30, "the drops")

    async def after() -> None:
        back = await client(broker, "s", clean_start=False, properties=narrow)
        found = numbers(await arrived(back, limit))
        assert found == [*range(window), *range(count - limit + window, count)]
        assert [message.dup for message in back.messages] == [True] * window + [False] * (limit - window)
        await back.ping()
        assert len(back.messages) == limit

    talk_until_killed(broker, dialogue)
    talk(after)


@pytest.mark.promise("device-7")
@pytest.mark.parametrize("killed", [False, True])
def test_expiry_0_1_and_the_largest(broker: BrokerProcess, killed: bool) -> None:
    broker.start()

    async def before() -> None:
        await away(broker, "s", "t")
        live = await kept(broker, "live")
        await live.subscribe(Subscription("t", 1))
        publisher = await client(broker, "p")
        for interval_s in (0, 1, UNSIGNED_32_MAX):
            expiry = Properties(message_expiry_interval=interval_s)
            assert await publisher.publish("t", b"%d" % interval_s, qos=1, properties=expiry) == 0
        assert numbers(await arrived(live, 2)) == [1, UNSIGNED_32_MAX]
        await live.ping()
        assert len(live.messages) == 2
        live.close()
        await passed(1.2)

    async def after() -> None:
        back = await kept(broker, "s")
        assert numbers(await arrived(back, 1)) == [UNSIGNED_32_MAX]
        await back.ping()
        (message,) = back.messages
        assert message.properties is not None
        left_s = message.properties.message_expiry_interval
        assert left_s is not None
        assert UNSIGNED_32_MAX - 30 <= left_s <= UNSIGNED_32_MAX - 1

    if killed:
        talk_until_killed(broker, before)
    else:
        talk(before)
    talk(after)


@pytest.mark.promise("device-7")
def test_what_sets_no_expiry_is_kept_for_the_time_to_live(broker: BrokerProcess) -> None:
    broker.settings["device.ttl_s"] = 2
    broker.start()

    async def dialogue() -> None:
        await away(broker, "s", "t")
        publisher = await client(broker, "p")
        await publisher.publish("t", b"1", qos=1)
        long = Properties(message_expiry_interval=1_000)
        await publisher.publish("t", b"2", qos=1, properties=long)
        await passed(2.2)
        await publisher.publish("t", b"3", qos=1)
        back = await kept(broker, "s")
        assert numbers(await arrived(back, 1)) == [3]

    talk(dialogue)


@pytest.mark.promise("device-7", "device-9")
def test_what_is_in_flight_is_not_removed_at_its_deadline(
    broker: BrokerProcess, session_store: SessionStore
) -> None:
    broker.start()

    async def dialogue() -> None:
        await away(broker, "s", "t", 2)
        publisher = await client(broker, "p")
        began_ms = time.time_ns() // 1_000_000
        await publisher.publish("t", b"x", qos=2, properties=Properties(message_expiry_interval=3_000))
        published_ms = time.time_ns() // 1_000_000
        back = await kept(broker, "s", acknowledges=False)
        await arrived(back, 1)
        packet_id = back.messages[0].packet_id
        sent_ms = session_store.deadline_ms(broker.data_dir, "s", packet_id)
        if session_store.removes_by_itself:
            assert sent_ms == -1
        else:
            assert began_ms + 3_000_000 - 1 <= sent_ms <= published_ms + 3_000_000 + 1
        await passed(0.1)
        released = back.expect(Pubrel, packet_id)
        back.send(Pubrec(packet_id))
        await released
        assert session_store.deadline_ms(broker.data_dir, "s", packet_id) == sent_ms

    talk(dialogue)


# Back again


async def taken_back(broker: BrokerProcess, client_id: str, count: int) -> None:
    """A session resumes, and gets so many messages in order."""
    back = make(client_id, keeps=False)
    taken = 0

    def take(packet: Packet) -> None:
        nonlocal taken
        if isinstance(packet, Publish):
            assert int(packet.payload) == taken
            taken += 1

    back.on_packet = take
    await back.connect(
        broker.port,
        clean_start=False,
        properties=Properties(session_expiry_interval=DAY_S, receive_maximum=65_535),
    )
    await wait_for(lambda: taken == count, 60, f"{count} messages")
    await back.ping()
    assert taken == count
    back.close()
    await back.ended


@pytest.mark.perf
@pytest.mark.promise("device-6", "device-8")
@on_sqlite
def test_as_many_as_can_be_stored_come_back_in_pages_and_hold_nobody_up(broker: BrokerProcess) -> None:
    """A pause of the machine is not the broker's, and so it would have to come at each of several returns."""
    count = PACKET_IDS - INFLIGHT_MAX * ("stores.session" in broker.settings)
    broker.settings["mqtt.inflight_max"] = INFLIGHT_MAX
    broker.settings["device.queue_limit"] = PACKET_IDS
    broker.start()
    longest: list[float] = []

    async def stored() -> None:
        for number in range(TRIES):
            await away(broker, f"s{number}", "t")
        publisher = await client(broker, "p", keeps=False)
        await flood(publisher, "t", range(count))

    async def back(number: int) -> None:
        await taken_back(broker, f"s{number}", count)

    talk(stored)
    for number in range(TRIES if is_judged() else 1):
        with Bystanders(broker.port, qos=0) as bystanders:
            talk(lambda: back(number))  # noqa: B023 - runs at once
        waits = bystanders.waits()
        sys.stdout.write(f"{count:,} stored messages: {waits}\n")
        longest.append(waits.longest)
        if waits.longest < BLOCKED_MS:
            break
    judge(min(longest), BLOCKED_MS, "ms that others waited at the most")
    assert metric(broker, "dropped_offline_limit") == 0


@pytest.mark.promise("device-8")
@pytest.mark.parametrize("receive_maximum", [1, 20])
@on_redis
def test_ten_thousand_arrive_through_a_small_window(broker: BrokerProcess, receive_maximum: int) -> None:
    """One at a time each waits for its commit, so there are fewer then."""
    count = 10_000 if receive_maximum > 1 else 2_000
    broker.start()

    async def dialogue() -> None:
        await away(broker, "s", "t", 2)
        publisher = await client(broker, "p", keeps=False)
        await flood(publisher, "t", range(count))
        back = make("s", acknowledges=False)
        open_ids: list[int] = []
        most = looks = 0

        def take(packet: object) -> None:
            """A full window is acknowledged; every hundredth time after what else has been sent has arrived."""
            nonlocal most, looks
            if isinstance(packet, Publish):
                open_ids.append(packet.packet_id)
                most = max(most, len(open_ids))
                if len(open_ids) < receive_maximum and len(back.messages) < count - receive_maximum:
                    return
                if len(open_ids) > receive_maximum:
                    return  # a look is on its way
                looks += 1
                if looks % 100:
                    acknowledge()
                else:
                    back.send(Pingreq())
            elif isinstance(packet, Pingresp):
                acknowledge()

        def acknowledge() -> None:
            for packet_id in open_ids:
                back.send(Puback(packet_id))
            open_ids.clear()

        back.on_packet = take
        properties = Properties(session_expiry_interval=DAY_S, receive_maximum=receive_maximum)
        await back.connect(broker.port, clean_start=False, properties=properties)
        assert numbers(await arrived(back, count, 80)) == list(range(count))
        assert most <= receive_maximum
        back.close()

    talk(dialogue)


@pytest.mark.promise("device-8", "device-1")
def test_live_messages_come_behind_the_backlog(broker: BrokerProcess) -> None:
    count, live = 9_900, 100
    broker.start()

    async def dialogue() -> None:
        await away(broker, "s", "t")
        publisher = await client(broker, "p", keeps=False)
        await flood(publisher, "t", range(count))
        back = await kept(broker, "s")
        await flood(publisher, "t", range(count, count + live))
        assert numbers(await arrived(back, count + live, 60)) == list(range(count + live))
        assert not any(message.dup for message in back.messages)
        back.close()

    talk(dialogue)


# QoS 2, and what is not written


@pytest.mark.promise("device-9")
def test_qos_2_is_exactly_once_over_cuts_and_kills(broker: BrokerProcess) -> None:
    broker.start()
    packet_ids: list[int] = []

    async def published() -> None:
        subscriber = await kept(broker, "s", acknowledges=False)
        await subscriber.subscribe(Subscription("t", 2))
        publisher = await client(broker, "p")
        await publisher.publish("t", b"x", qos=2)
        await arrived(subscriber, 1)
        packet_ids.append(subscriber.messages[0].packet_id)

    async def received() -> None:
        back = await kept(broker, "s", acknowledges=False)
        assert await arrived(back, 1) == [b"x"]
        assert back.messages[0].dup
        assert back.messages[0].packet_id == packet_ids[0]
        released = back.expect(Pubrel, packet_ids[0])
        back.send(Pubrec(packet_ids[0]))
        await released

    async def completed() -> None:
        back = make("s")
        released = back.expect(Pubrel, packet_ids[0])
        await back.connect(broker.port, clean_start=False, expiry_s=DAY_S)
        await released
        await back.ping()
        await back.subscribe(Subscription("other", 1))  # answered when what came before is stored
        assert back.messages == []

    async def ended() -> None:
        last = await kept(broker, "s")
        assert present(last)
        await last.ping()
        assert last.messages == []
        assert not any(isinstance(packet, Pubrel) for packet in last.received)

    for step in (published, received, completed):
        talk_until_killed(broker, step)
    talk(ended)


@pytest.mark.promise("device-11")
def test_what_is_acknowledged_at_once_is_not_written_and_what_is_not_comes_again(
    broker: BrokerProcess,
) -> None:
    count = 500
    broker.settings["device.linger_ms"] = 10_000
    broker.start()

    async def before() -> None:
        quick = await kept(broker, "quick")
        await quick.subscribe(Subscription("t", 1))
        publisher = await client(broker, "p", keeps=False)
        await flood(publisher, "t", range(count))
        await arrived(quick, count)
        await quick.ping()
        assert metric(broker, "messages_stored") == 0
        late = await kept(broker, "late", acknowledges=False)
        await late.subscribe(Subscription("u", 2))
        await flood(publisher, "u", range(count))
        await arrived(late, count)
        assert metric(broker, "messages_stored") == 0

    async def after() -> None:
        late = await kept(broker, "late")
        assert numbers(await arrived(late, count)) == list(range(count))

    talk_until_killed(broker, before)
    talk(after)


@pytest.mark.promise("device-11", "device-9")
def test_a_qos_2_message_is_written_before_it_is_sent(broker: BrokerProcess) -> None:
    """Killed right after each PUBLISH, the broker still knows its packet id."""
    broker.settings["device.linger_ms"] = 10_000
    broker.start()
    sent: list[tuple[int, bytes]] = []

    async def before() -> None:
        subscriber = await kept(broker, "s", acknowledges=False)
        await subscriber.subscribe(Subscription("t", 2))
        publisher = await client(broker, "p")
        subscriber.on_packet = killing
        publisher.send(Publish("t", b"x", 2, 1))
        await wait_for(lambda: sent, 30, "the message")

    def killing(packet: Packet) -> None:
        if isinstance(packet, Publish):
            broker.kill()
            sent.append((packet.packet_id, packet.payload))

    async def after() -> None:
        back = await kept(broker, "s")
        await arrived(back, 1)
        assert [(message.packet_id, message.payload) for message in back.messages] == sent
        assert back.messages[0].dup

    talk(before)
    broker.start()
    talk(after)
