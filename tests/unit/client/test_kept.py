"""A kept session over connections that end in the middle of an exchange, beside a server that a test leads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_client import ClientError, ConnectFailed, PublishRefused, SubscribeRefused, Unconfirmed
from embermq_client.commands.kept import KeptSession
from embermq_client.link import Options

CUT = Disconnect(0x8B)
Answer = Callable[[Packet], Sequence[Packet]]


class Server:
    """`answers` has a function for each connection in turn; what it answers `CUT` to ends the connection."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.got: list[Packet] = []
        self.news = asyncio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.news.clear()
            await self.news.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder, answer = Decoder(Role.SERVER), self.answers.pop(0)
        try:
            while data := await reader.read(4_096):
                for packet in decoder.feed(data):
                    self.got.append(packet)
                    self.news.set()
                    for said in answer(packet):
                        if said is CUT:
                            return
                        writer.write(encode(said, ProtocolVersion.V5))
        finally:
            writer.close()

    def of(self, kind: type[Packet]) -> list[Packet]:
        return [packet for packet in self.got if isinstance(packet, kind)]


def says(
    on: type[Packet] | None = None,
    *answers: Packet,
    is_there: bool = False,
    beside: Sequence[Packet] = (),
    limits: Properties | None = None,
) -> Answer:
    """What a broker says that answers `on` with these, and CONNECT with `beside` behind CONNACK."""

    def answer(packet: Packet) -> Sequence[Packet]:
        if isinstance(packet, Connect):
            return [Connack(is_there, 0, limits), *beside]
        if on is not None and isinstance(packet, on):
            return answers
        if isinstance(packet, Subscribe):
            return [Suback(packet.packet_id, (2,) * len(packet.subscriptions))]
        if isinstance(packet, Publish):
            return [Pubrec(packet.packet_id)]
        return [Pubcomp(packet.packet_id)] if isinstance(packet, Pubrel) else []

    return answer


def run(
    server: Server,
    scenario: Callable[[KeptSession], Awaitable[None]],
    *,
    take: Callable[[Publish], bool] = lambda _: False,
    is_new: bool = True,
) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
            options = Options(
                host="127.0.0.1",
                port=listening.sockets[0].getsockname()[1],
                client_id="c",
                username=None,
                password=None,
                tls=None,
                keepalive_s=600,
                connect_timeout_s=30,
            )
            async with listening, KeptSession(options, expiry_s=60, is_new=is_new, take=take) as session:
                await scenario(session)

    asyncio.run(bounded())


async def one(session: KeptSession) -> None:
    await session.publish("t", b"x", None, retain=False)


def test_a_publish_without_an_answer_is_sent_again_with_the_same_packet_id() -> None:
    server = Server(says(Publish, CUT), says(is_there=True))
    run(server, one)
    first, second = server.of(Publish)
    assert isinstance(first, Publish) and isinstance(second, Publish)
    assert (first.packet_id, first.dup, second.dup) == (second.packet_id, False, True)
    starts = [packet.clean_start for packet in server.got if isinstance(packet, Connect)]
    assert starts == [True, False]


def test_one_that_the_broker_has_is_not_sent_again() -> None:
    server = Server(says(Pubrel, CUT), says(is_there=True))
    run(server, one)
    assert len(server.of(Publish)) == 1
    assert len(server.of(Pubrel)) == 2


def test_a_lost_session_leaves_it_open_or_known() -> None:
    with pytest.raises(Unconfirmed, match="has lost the session"):
        run(Server(says(Publish, CUT), says()), one)
    run(Server(says(Pubrel, CUT), says()), one)


def test_what_was_taken_is_not_taken_again_and_what_was_not_is_not_answered() -> None:
    printed: list[bytes] = []

    def take(packet: Publish) -> bool:
        printed.append(packet.payload)
        return packet.payload != b"not taken"

    sent: list[Packet] = [
        Publish("t", b"a", 2, 7),
        Publish("t", b"not taken", 2, 8),
        Publish("t", b"b", 1, 9),
    ]
    again: list[Packet] = [Publish("t", b"a", 2, 7, dup=True), Pubrel(7)]
    server = Server(
        says(Pubrec, CUT, beside=sent), says(Pubcomp, CUT, is_there=True, beside=again), says(is_there=True)
    )

    async def until_the_third(session: KeptSession) -> None:
        await server.until(lambda: len(server.of(Connect)) == 3)

    run(server, until_the_third, take=take, is_new=False)
    assert printed == [b"a", b"not taken", b"b"]
    assert {packet.packet_id for packet in server.got if isinstance(packet, Pubrec)} == {7}
    assert all(packet.packet_id == 9 for packet in server.got if isinstance(packet, Puback))
    assert not [packet for packet in server.of(Connect) if isinstance(packet, Connect) and packet.clean_start]


def test_subscriptions_are_made_again_when_the_session_is_gone() -> None:
    server = Server(says(Publish, CUT), says(), says())

    async def scenario(session: KeptSession) -> None:
        await session.subscribe(["a", "b"], qos=2, retain_handling=1)
        with pytest.raises(Unconfirmed):
            await one(session)
        await server.until(lambda: len(server.of(Subscribe)) == 3)

    run(server, scenario, is_new=False)
    again = server.of(Subscribe)[-1]
    assert isinstance(again, Subscribe)
    assert [each.topic_filter for each in again.subscriptions] == ["a", "b"]


def test_a_subscription_that_is_refused_in_a_new_session_ends_it() -> None:
    async def scenario(session: KeptSession) -> None:
        await session.subscribe(["a", "b"], qos=2, retain_handling=1)
        with pytest.raises(Unconfirmed):
            await one(session)
        await session.failed()

    def refuses_the_second(packet: Packet) -> Sequence[Packet]:
        if isinstance(packet, Subscribe):
            return [Suback(packet.packet_id, (2, 0x87))]
        return says()(packet)

    with pytest.raises(SubscribeRefused, match="b: refused with 0x87"):
        run(Server(says(Publish, CUT), refuses_the_second), scenario, is_new=False)


def test_what_the_broker_does_not_do_is_refused_before_it_is_sent() -> None:
    at_most_1 = Server(says(limits=Properties(maximum_qos=1)))
    with pytest.raises(PublishRefused, match="QoS 1 at most"):
        run(at_most_1, one)
    assert not at_most_1.of(Publish)

    async def retains(session: KeptSession) -> None:
        await session.publish("t", b"x", None, retain=True)

    with pytest.raises(PublishRefused, match="retains nothing"):
        run(Server(says(limits=Properties(retain_available=False))), retains)


def test_what_has_led_to_the_end_is_not_said_again() -> None:
    server = Server(says(Publish, Disconnect(0x90)))
    with pytest.raises(ConnectFailed, match=r"ended the connection: Topic name invalid \(0x90\)"):
        run(server, one)
    assert len(server.of(Publish)) == 1


def test_the_broker_says_how_often_it_is_to_hear_something() -> None:
    server = Server(says(limits=Properties(server_keep_alive=1)))

    async def until_two(session: KeptSession) -> None:
        await server.until(lambda: len(server.of(Pingreq)) == 2)

    run(server, until_two)


def test_nothing_is_taken_while_the_session_is_left() -> None:
    """Of a flow without end there would always be one more to wait for."""
    taken: list[int] = []
    first = Publish("t", b"a", 2, 1)

    def take(packet: Publish) -> bool:
        taken.append(packet.packet_id)
        return True

    def answer(packet: Packet) -> Sequence[Packet]:
        if isinstance(packet, Connect):
            return [Connack(False, 0), first]
        if isinstance(packet, Disconnect):
            return [CUT]
        # The end of the first comes behind the second, which comes when the session is being left.
        return [Publish("t", b"b", 2, 2), Pubrel(1)] if isinstance(packet, Pubrec) else []

    server = Server(answer)

    async def leaves(session: KeptSession) -> None:
        while not taken:  # noqa: ASYNC110 - it is on the way
            await asyncio.sleep(0)

    run(server, leaves, take=take, is_new=False)
    assert taken == [1]
    assert [packet.packet_id for packet in server.of(Pubcomp) if isinstance(packet, Pubcomp)] == [1]


def test_who_takes_the_client_id_or_cannot_print_ends_it() -> None:
    taken_over = Disconnect(0x8E)

    async def hears(session: KeptSession) -> None:
        await session.failed()

    with pytest.raises(ConnectFailed, match="another client has entered as 'c'"):
        run(Server(says(beside=[taken_over])), hears)

    def gone(_: Publish) -> bool:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(Server(says(beside=[Publish("t", b"x")])), hears, take=gone)


def test_a_server_that_says_anything_else_is_told() -> None:
    with pytest.raises(ClientError, match="ended before CONNACK"):
        run(Server(lambda _: [CUT]), one)
