"""What no member of a shared subscription can take belongs to the group, over sockets."""

from __future__ import annotations

import pytest
from tests.stores.conftest import talk_until_killed
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import arrived, client, gone, kept, passed, talk
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Subscription

FILTER = "$share/g/t/#"
TEN = [b"%d" % number for number in range(10)]


@pytest.mark.promise("device-14")
def test_ten_that_waited_over_a_kill_go_to_the_one_who_comes(broker: BrokerProcess) -> None:
    broker.start()

    async def nobody_there() -> None:
        for name in ("a", "b"):
            member = await kept(broker, name)
            await member.subscribe(Subscription(FILTER, 2))
            await gone(member)
        publisher = await client(broker, "p")
        for number, payload in enumerate(TEN):
            await publisher.publish("t/x", payload, qos=1 + number % 2)

    async def one_comes() -> None:
        there = await kept(broker, "b")
        assert await arrived(there, len(TEN)) == TEN
        assert not any(message.dup for message in there.messages)
        publisher = await client(broker, "p")
        await publisher.publish("t/x", b"live", qos=1)
        assert await arrived(there, len(TEN) + 1) == [*TEN, b"live"]
        late = await kept(broker, "a")
        await passed(0.2)
        assert late.messages == []

    talk_until_killed(broker, nobody_there)
    talk(one_comes)


@pytest.mark.promise("device-14")
def test_what_waits_ends_with_the_last_member(broker: BrokerProcess) -> None:
    broker.start()

    async def dialogue() -> None:
        member = await kept(broker, "a")
        await member.subscribe(Subscription(FILTER, 1))
        await gone(member)
        publisher = await client(broker, "p")
        for payload in TEN:
            await publisher.publish("t/x", payload, qos=1)
        back = await client(broker, "a", clean_start=True)
        await back.subscribe(Subscription(FILTER, 1))
        await publisher.publish("t/x", b"new", qos=1)
        await wait_for(lambda: bool(back.messages), 30, "a message")
        assert [message.payload for message in back.messages] == [b"new"]

    talk(dialogue)
