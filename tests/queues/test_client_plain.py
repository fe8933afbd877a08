"""The client library beside queues, and without asyncio, against a real broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.queue_worker import queue_broker
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_for

from embermq_client import (
    Client,
    PublishRefused,
    ReplyImpossible,
    SyncClient,
    SyncMessage,
    TopicMessage,
    TopicSubscription,
)

pytestmark = pytest.mark.promise("queues-37")
LEASE_S = 2.0
QUEUES = f"""
[[queues]]
name = "plain/short"
partitions = 1
performance.delivery_timeout = "{LEASE_S:g}s"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with queue_broker(tmp_path_factory.mktemp("client-plain"), QUEUES) as running:
        yield running


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await scenario()

    asyncio.run(bounded())


async def following(subscription: TopicSubscription) -> TopicMessage:
    async with asyncio.timeout(30):
        return await anext(subscription)


def test_what_is_published_comes_to_each_subscription_once(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with (
            Client("127.0.0.1", broker.port) as client,
            client.subscribe("plain/+/t", qos=2) as some,
            client.subscribe("plain/#", qos=0) as every,
            client.subscribe("$share/g/plain/1/#") as shared,
        ):
            await client.publish("plain/1/t", "grüße", (("a", "1"), ("a", "2")), ContentType="text/plain")
            await client.publish("plain/2/t", b"unconfirmed", qos=0)
            await client.publish("plain/1/t", b"last")
            found = [await following(some) for _ in range(3)]
            assert [(each.payload, each.qos, each.retain) for each in found] == [
                ("grüße".encode(), 1, False),
                (b"unconfirmed", 0, False),
                (b"last", 1, False),
            ]
            assert (found[0].topic, found[0].properties) == ("plain/1/t", (("a", "1"), ("a", "2")))
            assert (found[0].content_type, found[0].is_text, found[0].expiry_s) == ("text/plain", False, None)
            assert [(await following(every)).payload for _ in range(3)] == [each.payload for each in found]
            assert [(await following(shared)).payload for _ in range(2)] == ["grüße".encode(), b"last"]
            await client.publish("$queue/plain/marker", b"")
            assert not some._waiting and not every._waiting and not shared._waiting

    run(scenario)


def test_a_retained_message_and_a_subscription_over_another_connection(broker: BrokerProcess) -> None:
    async def scenario(proxy: TcpProxy) -> None:
        async with Client("127.0.0.1", proxy.port) as client:
            await client.publish("kept/t", b"was there", retain=True)
            async with client.subscribe("kept/#") as found:
                message = await following(found)
                assert (message.payload, message.retain) == (b"was there", True)
                proxy.cut()
                await wait_for(lambda: client.reconnects == 1, 30, "it is there again")
                assert (await following(found)).retain
                await client.publish("kept/other", b"new")
                assert (await following(found)).payload == b"new"

    with TcpProxy(broker.port) as proxy:
        run(lambda: scenario(proxy))


def test_what_waits_has_an_end_and_queues_are_consumed(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with Client("127.0.0.1", broker.port) as client:
            async with client.subscribe("full/#", waiting_max=2) as found:
                for number in range(5):
                    await client.publish("full/t", b"%d" % number)
                await wait_for(lambda: found.dropped == 3, 30, "the newest were dropped")
                assert [(await following(found)).payload for _ in range(2)] == [b"0", b"1"]
            for wrong in ("$queue/a", "$share/g/$queue/a"):
                with pytest.raises(ValueError, match="is a queue"):
                    async with client.subscribe(wrong):
                        raise AssertionError("nobody let it in")
            with pytest.raises(ValueError, match="qos is 2"):
                await client.publish("t", b"", qos=2)
            with pytest.raises(PublishRefused):
                await client.publish("$queue/dlq/nobody", b"")

    run(scenario)


def test_a_message_that_is_worked_on_outlasts_its_lease(broker: BrokerProcess) -> None:
    def lease_until(message_id: str) -> str:
        url = f"http://127.0.0.1:{broker.http_port}/api/v1/queues/plain$short/messages/{message_id}"
        (state,) = httpx.get(url, timeout=30).json()["states"]
        assert (state["state"], state["deliveries"]) == ("DELIVERED", 1), state
        return str(state["lease_until"])

    async def scenario() -> None:
        async with (
            Client("127.0.0.1", broker.port, client_id="outlast-1") as client,
            client.queue("$queue/plain/short").consume(concurrency=1, lease_s=LEASE_S) as messages,
        ):
            await client.queue("plain/short").publish(b"long work")
            message = await anext(messages)
            assert message.topic == "$queue/plain/short"
            seen = {await asyncio.to_thread(lease_until, message.id)}
            while len(seen) < 5:  # a third of a lease each, so it is longer than one
                seen.add(await asyncio.to_thread(lease_until, message.id))
                await asyncio.sleep(LEASE_S / 10)
            await message.ack()

    run(scenario)


def test_a_program_without_asyncio(broker: BrokerProcess) -> None:
    with SyncClient("127.0.0.1", broker.port, client_id="sync-1") as client:
        assert client.client_id == "sync-1"
        queue = client.queue("plain/sync")
        with queue.consume(prefetch=8) as messages:
            assert messages.next(timeout_s=0) is None
            for number in range(4):
                queue.publish(f"task {number}", key="k", properties=(("a", "1"),))
            first = messages.next(30)
            assert first is not None
            assert (first.payload, first.key, first.queue, first.delivery_count) == (
                b"task 0",
                "k",
                "plain/sync",
                1,
            )
            first.nack("busy", delay_s=0.01)
            again = messages.next(30)
            assert again is not None and (again.id, again.delivery_count) == (first.id, 2)
            again.extend()
            again.reject("never")
            with pytest.raises(ReplyImpossible):
                again.reply("nobody asked")
            for number, message in enumerate(messages, 1):
                assert message.payload == f"task {number}".encode()
                message.ack()
                if number == 3:
                    break
        with client.queue("dlq/plain/sync").consume() as letters:
            letter = letters.next(30)
            assert letter is not None and letter.dead_letter is not None
            assert (letter.dead_letter.queue, letter.dead_letter.last_error) == ("plain/sync", "never")
            letter.ack()
        with client.subscribe("sync/#") as found:
            client.publish("sync/t", "plain", qos=0)
            message_of_topic = found.next(30)
            assert message_of_topic is not None and message_of_topic.payload == b"plain"
            assert found.next(timeout_s=0) is None
    with pytest.raises(RuntimeError, match="not connected"):
        client.publish("t", b"")


def test_many_threads_share_a_consumer_and_ask_one_another(broker: BrokerProcess) -> None:
    count, done = 40, list[bytes]()
    with (
        SyncClient("127.0.0.1", broker.port, client_id="threads-1") as client,
        client.queue("plain/threads").consume(concurrency=4) as messages,
    ):

        def work() -> None:
            while (message := messages.next(30)) is not None and message.payload:
                done.append(message.payload)
                message.reply(message.payload[::-1]) if message.response_topic else None
                message.ack()
            if isinstance(message, SyncMessage):
                message.ack()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        queue = client.queue("plain/threads")
        for number in range(count):
            queue.publish(b"%d" % number)
        assert client.request("plain/threads", b"abc", timeout_s=30).payload == b"cba"
        for _ in threads:
            queue.publish(b"")
        for thread in threads:
            thread.join(60)
        assert sorted(done) == sorted([*(b"%d" % number for number in range(count)), b"abc"])
