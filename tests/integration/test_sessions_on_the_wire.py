"""Sessions, wills, windows and expiry against the real server, packet by packet."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.integration.conftest import quiet
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import arrived, client, flood, kept, make, present, talk
from tests.support.measuring import is_judged, judge
from tests.support.mqtt_client import ConnectionEnded
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import (
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    Subscription,
    Will,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

V31, V311, V5 = ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5


@pytest.mark.promise("repositories-8")
@pytest.mark.parametrize("version", [V31, V311, V5])
def test_takeover(broker: BrokerProcess, name: str, version: ProtocolVersion) -> None:
    async def dialogue() -> None:
        old = await kept(broker, name, version=version)
        await old.subscribe(Subscription(f"{name}/t", 1))
        new = await kept(broker, name, version=version)
        await asyncio.wait_for(old.ended, 30)
        if version is V5:
            assert old.disconnect_received is not None and old.disconnect_received.reason_code == 0x8E
        assert present(new) is (version is not V31)
        await new.publish(f"{name}/t", b"x", qos=1)
        assert await arrived(new, 1) == [b"x"]
        new.close()

    talk(dialogue)


@pytest.mark.promise("repositories-8")
def test_a_storm_of_takeovers_leaves_one(broker: BrokerProcess, name: str) -> None:
    async def dialogue() -> None:
        found = [make(name) for _ in range(50)]
        await asyncio.gather(
            *(one.connect(broker.port, clean_start=False, expiry_s=60) for one in found),
            return_exceptions=True,
        )
        await wait_for(lambda: sum(one.is_open for one in found) == 1, 30, "one connection is left")
        (last,) = [one for one in found if one.is_open]
        await last.ping()
        last.close()

    talk(dialogue)


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_keep_alive_timeout(broker: BrokerProcess, name: str, version: ProtocolVersion) -> None:
    async def dialogue() -> None:
        watcher = await client(broker, f"w{name}")
        await watcher.subscribe(Subscription(f"{name}/will", 1))
        began = time.monotonic()
        will = Will(f"{name}/will", b"gone", 1, False, None)
        silent = await client(broker, name, version=version, keep_alive_s=1, will=will)
        await asyncio.wait_for(silent.ended, 20)
        assert time.monotonic() - began >= 1.4
        if version is V5:
            assert silent.disconnect_received is not None and silent.disconnect_received.reason_code == 0x8D
        assert await arrived(watcher, 1) == [b"gone"]
        watcher.close()

    talk(dialogue)


@pytest.mark.promise("repositories-6")
@pytest.mark.parametrize("version", [V31, V311, V5])
def test_wills(broker: BrokerProcess, name: str, version: ProtocolVersion) -> None:
    async def dialogue() -> None:
        watcher = await client(broker, f"w{name}")
        await watcher.subscribe(Subscription(f"{name}/#", 2))
        for ending in ("abort", "close", "mistake"):
            will = Will(f"{name}/will", ending.encode(), 2, ending == "abort", None)
            leaving = await client(broker, f"{ending}{name}", version=version, will=will)
            if ending == "mistake":
                leaving.send_bytes(b"\x00\x00")
                await asyncio.wait_for(leaving.ended, 30)
            else:
                getattr(leaving, ending)()
            await watcher.ping()
        assert sorted(await arrived(watcher, 2)) == [b"abort", b"mistake"]
        late = await client(broker, f"l{name}")
        await late.subscribe(Subscription(f"{name}/will", 1))
        assert await arrived(late, 1) == [b"abort"]
        await late.publish(f"{name}/will", b"", qos=1, retain=True)

    talk(dialogue)


@pytest.mark.promise("repositories-6")
def test_a_delayed_will_waits_and_is_cancelled_by_a_return(broker: BrokerProcess, name: str) -> None:
    async def dialogue() -> None:
        watcher = await client(broker, f"w{name}")
        await watcher.subscribe(Subscription(f"{name}/#", 1))
        for client_id, returns in ((f"stays{name}", False), (f"back{name}", True)):
            delay = Properties(will_delay_interval=3 if returns else 1)
            will = Will(f"{name}/will", client_id.encode(), 1, False, delay)
            leaving = await kept(broker, client_id, will=will)
            leaving.abort()
            await leaving.ended
            if returns:
                await kept(broker, client_id)
        began = time.monotonic()
        assert await arrived(watcher, 1) == [f"stays{name}".encode()]
        assert time.monotonic() - began > 0.5
        await wait_for(lambda: time.monotonic() - began > 3.5)
        await watcher.ping()
        assert len(watcher.messages) == 1

    talk(dialogue)


@pytest.mark.promise("repositories-7")
def test_a_session_expires(broker: BrokerProcess, name: str) -> None:
    async def dialogue() -> None:
        leaving = await client(broker, name, clean_start=False, expiry_s=60)
        await leaving.subscribe(Subscription(f"{name}/t", 1))
        leaving.close()
        await leaving.ended
        back = await client(broker, name, clean_start=False, expiry_s=1)
        assert present(back)
        back.close()
        await back.ended
        gone_s = time.monotonic()
        await wait_for(lambda: time.monotonic() - gone_s > 1.3)
        again = await client(broker, name, clean_start=False, expiry_s=1)
        assert not present(again)
        again.close()

    talk(dialogue)


@pytest.mark.promise("repositories-7")
@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_clean_start_clears(broker: BrokerProcess, name: str, version: ProtocolVersion) -> None:
    async def dialogue() -> None:
        first = await kept(broker, name, version=version)
        await first.subscribe(Subscription(f"{name}/t", 1))
        first.close()
        publisher = await client(broker, f"p{name}")
        for number in range(20):
            await publisher.publish(f"{name}/t", b"%d" % number, qos=1)
        clean = await client(broker, name, version=version)
        assert not present(clean)
        await clean.ping()
        assert clean.messages == []
        clean.close()
        await clean.ended
        again = await kept(broker, name, version=version)
        assert not present(again)
        await publisher.publish(f"{name}/t", b"after", qos=1)
        await again.ping()
        assert again.messages == []

    talk(dialogue)


def test_packets_behind_connect_in_one_piece(broker: BrokerProcess, name: str) -> None:
    async def dialogue() -> None:
        found = make(name)
        await found.open(broker.port)
        properties = Properties(session_expiry_interval=60)
        found.send(Connect(name, V5, True, 0, None, None, None, properties))
        found.send(Subscribe(1, (Subscription(f"{name}/t", 1),)))
        found.send(Publish(f"{name}/t", b"early", 1, 2))
        assert await arrived(found, 1) == [b"early"]
        await found.ping()
        found.send(Disconnect())
        await asyncio.wait_for(found.ended, 30)

    talk(dialogue)


@pytest.mark.promise("device-8")
def test_a_slow_reader_loses_nothing_and_slows_nobody(broker: BrokerProcess, name: str) -> None:
    count, payload = 600, b"x" * 20_000

    async def dialogue() -> None:
        slow, quick = await kept(broker, f"slow{name}"), await kept(broker, f"quick{name}")
        for subscriber in (slow, quick):
            await subscriber.subscribe(Subscription(f"{name}/t", 1))
        slow.pause_reading()
        publisher = await client(broker, f"p{name}", keeps=False)
        for number in range(count):
            assert await publisher.publish(f"{name}/t", b"%04d" % number + payload, qos=1) < 0x80
        wanted = [b"%04d" % number for number in range(count)]
        assert [found[:4] for found in await arrived(quick, count)] == wanted
        slow.resume_reading()
        assert [found[:4] for found in await arrived(slow, count)] == wanted
        slow.close()
        quick.close()

    talk(dialogue)


def test_large_payloads_up_to_the_limit(own_broker: BrokerProcess) -> None:
    own_broker.settings["mqtt.packet_bytes_max"] = 40_000_000
    own_broker.start()

    async def dialogue() -> None:
        subscriber = await kept(own_broker, "s")
        await subscriber.subscribe(Subscription("t", 2))
        publisher = await client(own_broker, "p")
        for qos, size in ((0, 5_000_000), (1, 20_000_000), (2, 39_999_900)):
            assert await publisher.publish("t", b"\xab" * size, qos=qos) < 0x80
        payloads = await arrived(subscriber, 3)
        assert [len(payload) for payload in payloads] == [5_000_000, 20_000_000, 39_999_900]
        assert set(payloads[2]) == {0xAB}
        with pytest.raises((ConnectionEnded, TimeoutError, ConnectionResetError)) as ended:
            await publisher.publish("t", b"x" * 40_000_000, qos=1)
        said = getattr(ended.value, "disconnect", None)
        assert said is None or said.reason_code == 0x95
        await subscriber.ping()

    talk(dialogue)
    own_broker.stop()
    quiet(own_broker)


@pytest.mark.perf
def test_retained_messages_in_bulk_do_not_stop_the_loop(own_broker: BrokerProcess) -> None:
    count = 20_000 if is_judged() else 5_000
    own_broker.start()

    async def dialogue() -> None:
        publisher = await client(own_broker, "p", keeps=False)
        await flood(publisher, lambda number: f"r/{number % 100}/{number}", range(count), retain=True)
        pinging = await client(own_broker, "ping")
        subscriber = await client(own_broker, "s")
        await subscriber.subscribe(Subscription("r/#", 1))
        slowest_s = 0.0
        while len(subscriber.messages) < count:
            began = time.monotonic()
            await pinging.ping()
            slowest_s = max(slowest_s, time.monotonic() - began)
        assert len({message.topic for message in subscriber.messages}) == count
        judge(slowest_s, 0.5, "retained messages in bulk, s of the longest ping of another")

    talk(dialogue)
    assert own_broker.stop() == 0
