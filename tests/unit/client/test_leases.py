"""Leases that the client library extends while a message is worked on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.client.test_connections import Connection, Server, run

from embermq.mqtt.wire.packets import Packet, Puback, Publish, Subscribe
from embermq.mqtt.wire.properties import Properties
from embermq_client import Client, SettleRefused

SHORT_S = 0.03
TOPIC = "$queue/a"


def delivery(number: int) -> Publish:
    stamps = (
        ("message-id", f"1-{number}"),
        ("group-id", "g"),
        ("delivery-count", "1"),
        ("partition", "0"),
        ("sequence", str(number)),
        ("first-delivered-at", "1700000000000"),
    )
    return Publish(TOPIC, b"x", 1, number, properties=Properties(user_properties=stamps))


def ids_of(packet: Publish) -> list[str]:
    given: Any = packet.properties
    return [value for name, value in given.user_properties if name == "message-id"]


def extended(connection: Connection) -> list[list[str]]:
    return [ids_of(packet) for packet in connection.of(Publish) if packet.topic == f"{TOPIC}/$extend"]


class Forgetful(Server):
    """Has given some messages to somebody else."""

    gone: frozenset[str] = frozenset()

    def answers(self, packet: Packet) -> list[Packet]:
        if isinstance(packet, Publish) and self.gone & set(ids_of(packet)):
            return [Puback(packet.packet_id, 0x83)]
        return super().answers(packet)


def test_those_that_are_worked_on_are_extended_until_they_are_settled() -> None:
    async def scenario(server: Server, client: Client) -> None:
        async with client, client.queue("a").consume(concurrency=2, lease_s=SHORT_S) as messages:
            connection = server.connections[0]
            (asked,) = connection.of(Subscribe)
            assert ("concurrency", "2") in asked.properties.user_properties
            for number in (1, 2, 3):
                connection.send(delivery(number))
            first = await anext(messages)
            await server.until(lambda: ["1-1", "1-2"] in extended(connection))
            assert not any("1-3" in ids for ids in extended(connection)), "its lease does not run"
            await first.ack()
            known = len(extended(connection))
            await server.until(lambda: len(extended(connection)) > known + 1)
            assert extended(connection)[-1] == ["1-2", "1-3"]

    run(scenario)


def test_what_was_given_to_somebody_else_is_not_extended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.client.test_connections.Server", Forgetful)

    async def scenario(server: Server, client: Client) -> None:
        assert isinstance(server, Forgetful)
        server.gone = frozenset({"1-1"})
        async with client, client.queue("a").consume(concurrency=5, lease_s=SHORT_S) as messages:
            connection = server.connections[0]
            connection.send(delivery(1))
            connection.send(delivery(2))
            for _ in range(2):
                await anext(messages)
            await server.until(
                lambda: extended(connection)[-1:] == [["1-2"]] and ["1-1"] in extended(connection)
            )
            known = len(extended(connection))
            await server.until(lambda: len(extended(connection)) > known + 2)
            assert extended(connection)[known + 1 :] == [["1-2"]] * (len(extended(connection)) - known - 1)

    run(scenario)


def test_a_late_nack_does_not_end_the_lease_of_what_has_come_again() -> None:
    async def scenario(server: Server, client: Client) -> None:
        async with client, client.queue("a").consume(concurrency=1, lease_s=SHORT_S) as messages:
            server.connections[0].send(delivery(1))
            before = await anext(messages)
            server.connections[0].transport.close()
            await server.until(
                lambda: len(server.connections) > 1 and bool(server.connections[1].of(Subscribe))
            )
            connection = server.connections[1]
            connection.send(delivery(1))
            again = await anext(messages)
            with pytest.raises(SettleRefused):
                await before.nack()
            known = len(extended(connection))
            await server.until(lambda: len(extended(connection)) > known + 1)
            await again.ack()

    run(scenario)


def test_without_concurrency_nothing_is_said_nor_extended() -> None:
    async def scenario(server: Server, client: Client) -> None:
        async with client, client.queue("a").consume(lease_s=SHORT_S) as messages:
            connection = server.connections[0]
            assert connection.of(Subscribe)[0].properties in (None, Properties())
            connection.send(delivery(1))
            message = await anext(messages)
            async with client.queue("b").consume(concurrency=1, lease_s=SHORT_S):
                await client.publish("t", b"")
            await message.ack()
            assert not extended(connection)

    run(scenario)


@pytest.mark.parametrize(
    ("asked", "told"), [({"concurrency": 0}, "1 to 65535"), ({"lease_s": 0}, "more than 0")]
)
def test_what_cannot_be_is_refused(asked: dict[str, Any], told: str) -> None:
    async def scenario(server: Server, client: Client) -> None:
        async with client:
            with pytest.raises(ValueError, match=told):
                async with client.queue("a").consume(**asked):
                    raise AssertionError("nobody let it in")

    run(scenario)
