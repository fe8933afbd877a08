"""What the client library does at the seams of connections, beside a server that answers what a test wants it to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_client import (
    Client,
    ClientError,
    ConnectFailed,
    ConnectRefused,
    PublishRefused,
    SettleRefused,
    SubscribeRefused,
)
from embermq_client.link import Link

STAMPS = (
    ("message-id", "1-1"),
    ("group-id", "g"),
    ("delivery-count", "1"),
    ("partition", "0"),
    ("sequence", "1"),
    ("first-delivered-at", "1700000000000"),
)


class Connection(asyncio.Protocol):
    """One that a client has made."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.got: list[Packet] = []
        self.is_over = asyncio.Event()
        self._decoder = Decoder(Role.SERVER)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.append(self)

    def data_received(self, data: bytes) -> None:
        for packet in self._decoder.feed(data):
            self.got.append(packet)
            for answer in self.server.answers(packet):
                self.send(answer)
        assert self._decoder.error is None, self._decoder.error
        self.server.news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over.set()
        self.server.news.set()

    def send(self, packet: Packet) -> None:
        self.transport.write(encode(packet, ProtocolVersion.V5))

    def of(self, kind: type[Packet]) -> list[Any]:
        """What came of this kind."""
        return [packet for packet in self.got if isinstance(packet, kind)]


class Server:
    """Answers as a broker does; `quiet` topics get no SUBACK, `refused` ones 0x87."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.news = asyncio.Event()
        self.connack = Connack(False, 0, Properties())
        self.quiet: set[str] = set()
        self.refused: set[str] = set()
        self.settles = True

    def answers(self, packet: Packet) -> list[Packet]:
        if isinstance(packet, Connect):
            return [self.connack]
        if isinstance(packet, Subscribe):
            topic = packet.subscriptions[0].topic_filter
            code = 0x87 if topic in self.refused else 1
            return [] if topic in self.quiet else [Suback(packet.packet_id, (code,))]
        if isinstance(packet, Unsubscribe):
            return [Unsuback(packet.packet_id, (0,))]
        if isinstance(packet, Publish) and packet.qos and self.settles:
            return [Puback(packet.packet_id)]
        return []

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not is_so():
                self.news.clear()
                await self.news.wait()


def run(scenario: Callable[[Server, Client], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            server = Server()
            listening = await asyncio.get_running_loop().create_server(
                lambda: Connection(server), "127.0.0.1", 0
            )
            port = listening.sockets[0].getsockname()[1]
            await scenario(server, Client("127.0.0.1", port, client_id="c-1", confirm_timeout_s=5))
            listening.close()
            for connection in server.connections:
                await connection.is_over.wait()

    asyncio.run(bounded())


def delivery(topic: str, packet_id: int, payload: bytes = b"x") -> Publish:
    return Publish(topic, payload, 1, packet_id, properties=Properties(user_properties=STAMPS))


def unsubscribed(connection: Connection, topic: str) -> bool:
    return any(topic in packet.topic_filters for packet in connection.of(Unsubscribe))


def test_a_client_that_is_closed_while_it_reconnects_leaves_no_connection() -> None:
    """`run` waits for the end of every connection: a left one would be a consumer that settles nothing."""

    async def scenario(server: Server, client: Client) -> None:
        async with client, client.queue("a").consume():
            server.quiet = {"$queue/a"}
            server.connections[0].transport.abort()
            await server.until(
                lambda: len(server.connections) == 2 and bool(server.connections[1].of(Subscribe))
            )

    run(scenario)


def test_who_leaves_while_the_client_reconnects_is_no_consumer_of_the_next_connection() -> None:
    async def scenario(server: Server, client: Client) -> None:
        async with client, client.queue("b").consume():
            async with client.queue("a").consume():
                server.quiet = {"$queue/a"}
                server.connections[0].transport.abort()
                await server.until(
                    lambda: len(server.connections) == 2 and len(server.connections[1].of(Subscribe)) == 2
                )
            second = server.connections[1]
            asked = second.of(Subscribe)[1]
            assert asked.subscriptions[0].topic_filter == "$queue/a"
            second.send(Suback(asked.packet_id, (1,)))
            await client.queue("other").publish(b"")
            assert unsubscribed(second, "$queue/a") and not unsubscribed(second, "$queue/b")

    run(scenario)


def test_who_gives_up_while_it_subscribes_unsubscribes() -> None:
    async def scenario(server: Server, client: Client) -> None:
        async with client:
            server.quiet = {"$queue/a"}
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), client.queue("a").consume():
                    raise AssertionError("nobody let it in")
            await server.until(lambda: unsubscribed(server.connections[0], "$queue/a"))

    run(scenario)


def test_what_a_connection_brought_that_never_stood_is_forgotten() -> None:
    async def scenario(server: Server, client: Client) -> None:
        async with client, client.queue("a").consume() as messages, client.queue("b").consume():
            server.quiet = {"$queue/a", "$queue/b"}
            server.connections[0].transport.abort()
            await server.until(lambda: len(server.connections) == 2)
            second = server.connections[1]
            await server.until(lambda: bool(second.of(Subscribe)))
            second.send(delivery("$queue/a", 1, b"stale"))
            await server.until(lambda: bool(second.of(Puback)))
            server.quiet.clear()
            second.transport.abort()
            await server.until(lambda: len(server.connections) == 3)
            await client.queue("other").publish(b"")
            server.connections[2].send(delivery("$queue/a", 1, b"fresh"))
            assert (await anext(messages)).payload == b"fresh"

    run(scenario)


@pytest.mark.promise("queues-37")
def test_a_nack_is_not_repeated_over_another_connection() -> None:
    """The end of the first one was a failure already; the message has come again, and would fail once more."""

    async def scenario(server: Server, client: Client) -> None:
        async with client, client.queue("q").consume() as messages:
            first = server.connections[0]
            first.send(delivery("$queue/q", 1))
            held, server.settles = await anext(messages), False
            nacking = asyncio.ensure_future(held.nack("busy"))
            await server.until(lambda: any(packet.topic.endswith("$nack") for packet in first.of(Publish)))
            first.transport.abort()
            await server.until(
                lambda: len(server.connections) == 2 and bool(server.connections[1].of(Subscribe))
            )
            second, server.settles = server.connections[1], True
            second.send(delivery("$queue/q", 1))
            again = await anext(messages)
            with pytest.raises(SettleRefused, match="the connection that it came over is gone") as refused:
                await nacking
            assert refused.value.code == 0x87
            queue = client.queue("q")
            with pytest.raises(SettleRefused, match="nack of 2 messages: refused with 0x87"):
                await queue.nack(held, again)
            (asked,) = second.of(Publish)
            assert [pair for pair in asked.properties.user_properties if pair[0] == "message-id"] == [
                ("message-id", again.id)
            ], "what is at hand is nacked all the same"
            await held.ack()  # the work is done, whichever delivery it was of
            assert [packet.topic for packet in second.of(Publish)] == ["$queue/q/$nack", "$queue/q/$ack"]

    run(scenario)


def test_a_request_after_a_refusal_asks_for_its_queue_again() -> None:
    async def scenario(server: Server, client: Client) -> None:
        async with client:
            first = asyncio.ensure_future(client.request("a", b"", timeout_s=20))
            await server.until(lambda: bool(server.connections[0].of(Publish)))
            topic = server.connections[0].of(Subscribe)[0].subscriptions[0].topic_filter
            server.refused = {topic}
            server.connections[0].transport.abort()
            with pytest.raises(SubscribeRefused):
                await first
            server.refused.clear()
            second = asyncio.ensure_future(client.request("a", b"", timeout_s=20))
            await server.until(lambda: len(server.connections[1].of(Publish)) == 1)
            assert len(server.connections[1].of(Subscribe)) == 2, "the refused one, and another"
            asked = server.connections[1].of(Publish)[0].properties
            answer = Properties(correlation_data=asked.correlation_data)
            server.connections[1].send(Publish(topic, b"yes", 1, 7, properties=answer))
            assert (await second).payload == b"yes"

    run(scenario)


def test_a_message_that_the_broker_would_hang_up_on_is_not_sent() -> None:
    async def scenario(server: Server, client: Client) -> None:
        server.connack = Connack(False, 0, Properties(maximum_packet_size=100))
        async with client:
            queue = client.queue("a")
            overhead = 2 + 2 + len(queue.topic) + 2 + 1
            await queue.publish(b"x" * (100 - overhead))
            with pytest.raises(PublishRefused, match=r"0x95 \(101 bytes, the broker takes 100\)"):
                await queue.publish(b"x" * (101 - overhead))
            with pytest.raises(ValueError, match="U\\+0000"):
                await queue.publish(b"", properties=(("note", "a\0b"),))
            with pytest.raises(ValueError, match="the topic"):
                await client.queue("a\0").publish(b"")
        (connection,) = server.connections
        (published,) = connection.of(Publish)
        assert len(encode(published, ProtocolVersion.V5)) == 100

    run(scenario)


def test_a_reason_may_be_any_text() -> None:
    async def scenario(server: Server, client: Client) -> None:
        async with client, client.queue("a").consume() as messages:
            server.connections[0].send(delivery("$queue/a", 1))
            message = await anext(messages)
            await message.nack("no file a\0\udcff" + "b" * 100_000)
            (said,) = server.connections[0].of(Publish)
            reason = dict(said.properties.user_properties)["reason"]
            assert reason.startswith("no file a\ufffd?bbb") and len(reason) == 256

    run(scenario)


def test_a_publish_that_nobody_waits_for_still_counts_for_the_broker() -> None:
    async def scenario(server: Server, client: Client) -> None:
        server.connack = Connack(False, 0, Properties(receive_maximum=1))
        async with client:
            queue = client.queue("a")
            server.settles = False
            first = asyncio.ensure_future(queue.publish(b"1"))
            await server.until(lambda: len(server.connections[0].of(Publish)) == 1)
            first.cancel()
            second = asyncio.ensure_future(queue.publish(b"2"))
            done, _ = await asyncio.wait({second}, timeout=0.1)
            assert not done
            assert len(server.connections[0].of(Publish)) == 1
            server.settles = True
            server.connections[0].send(Puback(server.connections[0].of(Publish)[0].packet_id))
            await second

    run(scenario)


def test_a_connection_that_ends_before_it_was_seen_to_stand_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONNACK and the end may both come before the thread that connects is heard of."""

    async def scenario(server: Server, client: Client) -> None:
        whole = asyncio.shield

        async def late(connecting: asyncio.Future[Any]) -> None:
            await whole(connecting)
            await server.until(lambda: bool(server.connections and server.connections[0].of(Connect)))
            server.connections[0].transport.close()
            await server.connections[0].is_over.wait()
            await ended.wait()

        ended = asyncio.Event()
        end = Link._end

        def noted(link: Link, error: Exception) -> None:
            end(link, error)
            ended.set()

        monkeypatch.setattr(Link, "_end", noted)
        monkeypatch.setattr("embermq_client.link.asyncio.shield", late)
        with pytest.raises(ConnectFailed, match="as soon as it was made"):
            async with client:
                raise AssertionError("nothing stands")

    run(scenario)


def test_a_fault_while_it_reconnects_ends_the_client_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: Server, client: Client) -> None:
        async with client, client.queue("a").consume() as messages:

            async def broken(link: Link) -> None:
                raise RuntimeError("cannot start a thread")

            monkeypatch.setattr(Link, "open", broken)
            server.connections[0].transport.abort()
            with pytest.raises(ClientError, match="cannot start a thread"):
                await anext(messages)

    run(scenario)


@pytest.mark.parametrize("code", [0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x95, 0x9D])
def test_a_refusal_that_would_come_again_ends_the_client(code: int) -> None:
    async def scenario(server: Server, client: Client) -> None:
        async with client, client.queue("a").consume() as messages:
            server.connack = Connack(False, code, Properties(reason_string="no more"))
            publishing = asyncio.ensure_future(_after_the_loss(server, client))
            with pytest.raises(
                ConnectRefused, match=f"CONNECT was refused: .*0x{code:02x}\\), no more"
            ) as told:
                await anext(messages)
            assert (told.value.code, told.value.reason, told.value.is_lasting) == (code, "no more", True)
            with pytest.raises(ConnectRefused):
                await publishing
            with pytest.raises(ConnectRefused):
                await client.queue("b").publish(b"")
        assert len(server.connections) == 2, "it has asked once"

    run(scenario)


async def _after_the_loss(server: Server, client: Client) -> None:
    """A publish that waits for the next connection."""
    server.settles = False
    server.connections[0].transport.abort()
    await client.queue("a").publish(b"")


@pytest.mark.parametrize("code", [0x80, 0x83, 0x88, 0x89, 0x97, 0x9C, 0x9F])
def test_after_a_refusal_that_passes_it_tries_again(code: int) -> None:
    async def scenario(server: Server, client: Client) -> None:
        async with client, client.queue("a").consume() as messages:
            allowed, server.connack = server.connack, Connack(False, code, Properties())
            server.connections[0].transport.abort()
            await server.until(lambda: len(server.connections) == 3)
            server.connack = allowed
            await client.queue("other").publish(b"")
            server.connections[-1].send(delivery("$queue/a", 1, b"at last"))
            assert (await anext(messages)).payload == b"at last"

    run(scenario)


def test_the_first_refusal_says_whether_another_try_is_of_use() -> None:
    async def scenario(server: Server, client: Client) -> None:
        for code, is_lasting in ((0x86, True), (0x89, False)):
            server.connack = Connack(False, code, Properties())
            with pytest.raises(ConnectRefused) as told:
                await client.__aenter__()
            assert (told.value.code, told.value.is_lasting) == (code, is_lasting)

    run(scenario)
