"""The client library against a real broker: each of its words, connections that are lost, requests and answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.queue_worker import queue_broker
from tests.support.tcp_proxy import TcpProxy

from embermq_client import (
    Client,
    ClientError,
    ConnectFailed,
    ConnectRefused,
    Consumer,
    Message,
    PublishRefused,
    ReplyImpossible,
    RequestTimeout,
    SettleRefused,
    SubscribeRefused,
    Unconfirmed,
)

pytestmark = pytest.mark.promise("queues-37")
NEXT_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    short = '[[queues]]\nname = "short"\npartitions = 1\nperformance.delivery_timeout = "2s"\n'
    with queue_broker(tmp_path_factory.mktemp("client"), short) as running:
        yield running


def entered(broker: BrokerProcess, client_id: str | None = None, **more: Any) -> Client:
    return Client("127.0.0.1", broker.port, client_id=client_id, **more)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


async def following(consumer: Consumer) -> Message:
    async with asyncio.timeout(NEXT_S):
        return await anext(consumer)


async def nothing_from(consumer: Consumer, client: Client) -> None:
    """What the broker has decided to send is here before it answers for another queue."""
    await client.queue("client/marker").publish(b"")
    pending = asyncio.ensure_future(anext(consumer))
    await asyncio.sleep(0)
    assert not pending.done()
    pending.cancel()


@asynccontextmanager
async def consumed(broker: BrokerProcess, name: str, **asked: Any) -> AsyncIterator[tuple[Client, Consumer]]:
    async with entered(broker, "mail-1") as client, client.queue(name).consume(**asked) as messages:
        yield client, messages


def test_what_is_published_comes_as_it_was_and_with_what_the_broker_knows(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with consumed(broker, "client/values") as (client, messages):
            queue = client.queue("client/values")
            before = datetime.now(UTC) - timedelta(seconds=1)
            await queue.publish(
                "grüße", key="user-7", content_type="text/plain", properties=(("a", "1"), ("a", "2"))
            )
            message = await following(messages)
            assert (message.queue, message.payload.decode(), message.key) == (
                "client/values",
                "grüße",
                "user-7",
            )
            assert (message.group, message.delivery_count, message.content_type) == ("mail", 1, "text/plain")
            assert message.properties == (("a", "1"), ("a", "2"), ("partition-key", "user-7"))
            assert before < message.first_delivered_at < datetime.now(UTC) + timedelta(seconds=1)
            assert 0 <= message.partition < 10 and message.id and message.dead_letter is None
            await message.ack()
            await message.ack()  # twice is no error
            await nothing_from(messages, client)

    run(scenario)


def test_nack_gives_it_again_and_reject_makes_it_a_dead_letter(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with consumed(broker, "client/fails") as (client, messages):
            await client.queue("client/fails").publish(b"task")
            first = await following(messages)
            await first.nack("busy", delay_s=0.05)
            second = await following(messages)
            assert (second.id, second.delivery_count) == (first.id, 2)
            await second.reject("no use")
            async with client.queue("dlq/client/fails").consume() as letters:
                message = await following(letters)
                letter = message.dead_letter
                assert letter is not None and message.payload == b"task"
                assert (letter.queue, letter.group, letter.reason) == ("client/fails", "mail", "rejected")
                assert (letter.attempts, letter.last_error, letter.message_id) == (2, "no use", first.id)
                await message.ack()

    run(scenario)


def test_a_lease_that_is_extended_does_not_end(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with consumed(broker, "short") as (client, messages):
            await client.queue("short").publish(b"long work")
            message = await following(messages)
            again = asyncio.ensure_future(anext(messages))
            for _ in range(16):  # 4 s, twice the lease
                await asyncio.wait((again,), timeout=0.25)
                assert not again.done()
                await message.extend()
            await message.ack()
            again.cancel()

    run(scenario)


def test_many_are_settled_at_once(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with consumed(broker, "client/many", prefetch=300) as (client, messages):
            queue = client.queue("client/many")
            await asyncio.gather(*(queue.publish(b"%d" % number) for number in range(200)))
            taken = [await following(messages) for _ in range(200)]
            assert len({message.payload for message in taken}) == 200
            await queue.extend(*taken[:2])
            await queue.nack(*taken[:2], delay_s=0.01)
            again = [await following(messages) for _ in range(2)]
            assert {message.id for message in again} == {message.id for message in taken[:2]}
            await queue.reject(again[0])
            await queue.ack(again[1], *taken[2:])
        async with consumed(broker, "client/many") as (client, messages):
            await nothing_from(messages, client)

    run(scenario)


def test_messages_that_wait_expire_or_are_known(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with consumed(broker, "client/asked") as (client, messages):
            queue = client.queue("client/asked")
            began = datetime.now(UTC)
            await queue.publish(b"later", delay_s=0.3)
            await queue.publish(b"at", deliver_at=began + timedelta(seconds=0.4))
            await queue.publish(b"once", dedup_id="d-1")
            await queue.publish(b"once", dedup_id="d-1")
            await queue.publish(b"brief", expiry_s=60)
            arrived = {}
            for _ in range(4):
                message = await following(messages)
                arrived[message.payload] = message.first_delivered_at
                await message.ack()
            assert arrived.keys() == {b"once", b"brief", b"later", b"at"}
            assert arrived[b"later"] >= began + timedelta(seconds=0.29)
            assert arrived[b"at"] >= began + timedelta(seconds=0.39)
            await nothing_from(messages, client)

    run(scenario)


def test_groups_prefetch_and_start(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        name = "client/groups"
        async with entered(broker, "a-1") as first, entered(broker, "a-2") as second:
            queue = first.queue(name)
            async with queue.consume(group="x", prefetch=1) as few:
                await queue.publish(b"old")
                async with second.queue(name).consume(group="y", start="latest") as late:
                    await queue.publish(b"new")
                    assert (await following(late)).payload == b"new"
                only = await following(few)
                assert only.payload == b"old"
                await nothing_from(few, first)
                await only.ack()
                assert (await following(few)).payload == b"new"

    run(scenario)


def test_leaving_gives_back_what_is_not_settled(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        name = "client/leaves"
        async with entered(broker, "b-1") as first, entered(broker, "b-2") as second:
            async with first.queue(name).consume(prefetch=5) as leaving:
                await first.queue(name).publish(b"m")
                held = await following(leaving)
            async with second.queue(name).consume() as staying:
                again = await following(staying)
                assert again.id == held.id
                with pytest.raises(SettleRefused) as refused:
                    await held.nack()
                assert refused.value.code >= 0x80
                await again.ack()

    run(scenario)


def test_refusals_are_told_by_code_and_reason(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with entered(broker, "c-1") as client:
            with pytest.raises(PublishRefused) as published:
                await client.queue("client/levels//empty").publish(b"")
            assert published.value.code == 0x90 and "empty level" in published.value.reason
            with pytest.raises(SubscribeRefused) as subscribed:
                async with client.queue("client/+").consume():
                    pass
            assert subscribed.value.code == 0x8F
            async with client.queue("client/once").consume():
                with pytest.raises(ClientError, match=r"consumes .* already"):
                    async with client.queue("client/once").consume():
                        pass

    run(scenario)


def test_requests_find_their_answers(broker: BrokerProcess) -> None:
    async def serve(consumer: Consumer) -> None:
        async for message in consumer:
            given = dict(message.properties)
            assert message.response_topic == given["response-topic"]
            assert message.correlation == given["correlation-id"].encode()
            await message.reply(message.payload[::-1], properties=(("served", "yes"),))
            await message.ack()

    async def scenario() -> None:
        async with consumed(broker, "client/asks") as (_, consumer), entered(broker, "asker-1") as client:
            serving = asyncio.ensure_future(serve(consumer))
            queue = client.queue("client/asks")
            payloads = [b"%03d" % number for number in range(20)]
            answers = await asyncio.gather(*(queue.request(each, timeout_s=20) for each in payloads))
            assert [answer.payload for answer in answers] == [each[::-1] for each in payloads]
            assert ("served", "yes") in answers[0].properties
            assert (await client.request("client/asks", "ab", timeout_s=20)).payload == b"ba"
            assert client.responses.late == 0
            serving.cancel()

    run(scenario)


def test_a_request_that_nobody_answers_ends_and_a_late_answer_is_dropped(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with consumed(broker, "client/slow") as (_, consumer), entered(broker, "asker-2") as client:
            with pytest.raises(RequestTimeout, match=r"no answer in 1\.5 s") as late:
                await client.queue("client/slow").request(b"?", timeout_s=1.5)
            assert isinstance(late.value, TimeoutError)
            message = await following(consumer)
            await message.reply(b"late")
            await message.ack()
            asked = asyncio.ensure_future(client.queue("client/slow").request(b"again", timeout_s=20))
            second = await following(consumer)
            await second.reply(b"in time")
            assert (await asked).payload == b"in time"

    run(scenario)


def test_replies_go_to_queues_of_responses_alone(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with consumed(broker, "client/replies") as (client, consumer):
            await client.queue("client/replies").publish(b"asks for nothing")
            with pytest.raises(ReplyImpossible, match="asks for no reply"):
                await (await following(consumer)).reply(b"")
            for topic in ("alarms/all", "$queue/other", "$queue/responses"):
                await client.publish("$queue/client/replies", b"", ResponseTopic=topic)
                with pytest.raises(ReplyImpossible, match="not below"):
                    await (await following(consumer)).reply(b"")

    run(scenario)


def test_a_lost_connection_is_made_anew_and_consumers_go_on(broker: BrokerProcess) -> None:
    async def scenario(proxy: TcpProxy) -> None:
        name = "client/again"
        async with (
            Client("127.0.0.1", proxy.port, client_id="d-1") as client,
            client.queue(name).consume(prefetch=1) as messages,
        ):
            queue = client.queue(name)
            await queue.publish(b"held")
            held = await following(messages)
            proxy.cut()
            await queue.publish(b"after")  # waits for the next connection
            again = await following(messages)
            assert (again.id, again.payload) == (held.id, b"held") and again.delivery_count == 2
            await again.ack()
            assert (await following(messages)).payload == b"after"
            assert client.reconnects == 1

    with TcpProxy(broker.port) as proxy:
        run(lambda: scenario(proxy))


def test_what_waited_to_be_taken_is_forgotten_with_its_connection(broker: BrokerProcess) -> None:
    async def scenario(proxy: TcpProxy) -> None:
        name = "client/forgets"
        async with (
            Client("127.0.0.1", proxy.port, client_id="e-1") as client,
            client.queue(name).consume() as messages,
            entered(broker, "e-2") as other,
        ):
            queue = client.queue(name)
            for number in range(3):
                await queue.publish(b"%d" % number)
            await client.queue("client/marker").publish(b"")
            proxy.cut(refuse=True)
            async with other.queue(name).consume() as rescue:
                for _ in range(3):  # one after the other: their consumer was lost
                    await (await following(rescue)).ack()
            proxy.allow()
            await queue.publish(b"fresh")
            assert (await following(messages)).payload == b"fresh"

    with TcpProxy(broker.port) as proxy:
        run(lambda: scenario(proxy))


def test_a_request_survives_a_lost_connection(broker: BrokerProcess) -> None:
    async def scenario(proxy: TcpProxy) -> None:
        async with (
            consumed(broker, "client/bridge") as (_, consumer),
            Client("127.0.0.1", proxy.port, client_id="f-1") as client,
        ):
            first = asyncio.ensure_future(client.request("client/bridge", b"1", timeout_s=30))
            await (await following(consumer)).reply(b"one")
            assert (await first).payload == b"one"
            proxy.cut()
            second = asyncio.ensure_future(client.request("client/bridge", b"2", timeout_s=30))
            await (await following(consumer)).reply(b"two")
            assert (await second).payload == b"two"

    with TcpProxy(broker.port) as proxy:
        run(lambda: scenario(proxy))


def test_a_broker_that_is_killed_loses_nothing_and_is_found_again(tmp_path: Path) -> None:
    """What is published with a `dedup_id` is enqueued once, whether its confirmation was lost or not."""
    count = 60

    async def scenario(broker: BrokerProcess) -> None:
        async with (
            entered(broker, "i-1", reconnect_s_max=0.2) as client,
            entered(broker, "j-1", reconnect_s_max=0.2) as other,
            other.queue("client/killed").consume(prefetch=10) as messages,
        ):
            queue = client.queue("client/killed")
            sending = [
                asyncio.ensure_future(queue.publish(b"%d" % number, dedup_id=f"{number}"))
                for number in range(count // 2)
            ]
            first = await following(messages)
            broker.kill()
            sending += [
                asyncio.ensure_future(queue.publish(b"%d" % number, dedup_id=f"{number}"))
                for number in range(count // 2, count)
            ]
            await asyncio.to_thread(broker.start)
            await asyncio.gather(*sending)
            seen: dict[str, bytes] = {first.id: first.payload}
            while len(seen) < count or first.id not in settled:
                message = await following(messages)
                assert seen.setdefault(message.id, message.payload) == message.payload
                await message.ack()
                settled.add(message.id)
            assert sorted(seen.values()) == sorted(b"%d" % number for number in range(count))
            assert client.reconnects >= 1 and other.reconnects >= 1

    settled: set[str] = set()
    with BrokerProcess(tmp_path / "data") as broker:
        run(lambda: scenario(broker))


def test_without_a_broker_what_waits_ends_in_time(broker: BrokerProcess) -> None:
    async def scenario(proxy: TcpProxy) -> None:
        async with Client("127.0.0.1", proxy.port, confirm_timeout_s=0.3) as client:
            proxy.cut(refuse=True)
            with pytest.raises(Unconfirmed, match=r"in 0\.3 s"):
                await client.queue("client/none").publish(b"")

    with TcpProxy(broker.port) as proxy:
        run(lambda: scenario(proxy))


def test_a_client_whose_place_is_taken_ends_and_says_so(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with entered(broker, "g-1") as first, first.queue("client/place").consume() as messages:
            waiting = asyncio.ensure_future(anext(messages))
            async with entered(broker, "g-1"):
                with pytest.raises(ConnectFailed, match="another client has entered as 'g-1'"):
                    await waiting
                with pytest.raises(ConnectFailed):
                    await first.queue("client/place").publish(b"")
                assert first.reconnects == 0

    run(scenario)


def test_the_first_connection_has_to_succeed(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            with pytest.raises(ConnectFailed, match=r"no answer in 0\.2 s"):
                await Client("127.0.0.1", silent.getsockname()[1], connect_timeout_s=0.2).__aenter__()
            port = silent.getsockname()[1]
        with pytest.raises(ConnectFailed, match="refused"):
            await Client("127.0.0.1", port).__aenter__()

        def refuse() -> None:
            with unwilling, unwilling.accept()[0] as connection:
                connection.recv(1_000)
                connection.sendall(b"\x20\x03\x00\x87\x00")

        unwilling = socket.create_server(("127.0.0.1", 0))
        refusing = asyncio.ensure_future(asyncio.to_thread(refuse))
        with pytest.raises(ConnectFailed, match=r"CONNECT was refused: Not authorized \(0x87\)"):
            await Client("127.0.0.1", unwilling.getsockname()[1]).__aenter__()
        await refusing

    run(scenario)


def test_a_client_whose_password_is_changed_ends_and_says_so(broker: BrokerProcess) -> None:
    def users(verb: str, password: str) -> None:
        done = run_program("users", verb, "ann", "--data-dir", broker.data_dir, stdin=f"{password}\n")
        assert done.returncode == 0, done.stderr

    async def scenario() -> None:
        await asyncio.to_thread(users, "add", "old secret")
        client = entered(broker, "ann-1", username="ann", password="old secret")
        async with client, client.queue("client/ann").consume() as messages:
            await client.queue("client/ann").publish(b"m")
            assert (await following(messages)).payload == b"m"
            await asyncio.to_thread(users, "password", "new secret")
            with pytest.raises(ConnectRefused) as told:
                await following(messages)
            assert told.value.code == 0x86 and "secret" not in str(told.value)

    run(scenario)


def test_closing_ends_whoever_waits(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with entered(broker, "h-1") as client:
            async with client.queue("client/closing").consume() as messages:
                waiting = asyncio.ensure_future(anext(messages))
                await asyncio.sleep(0)
                await client.__aexit__(None, None, None)
                with pytest.raises(ClientError, match="was closed"):
                    await waiting
            with pytest.raises(ClientError, match="was closed"):
                await client.queue("client/closing").publish(b"")
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in others if not task.done() and "bounded" not in repr(task)]

    run(scenario)
