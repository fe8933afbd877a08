"""The scenario of tests/clients/README.md with gmqtt. A program of its own, since gmqtt leaves tasks behind."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import gmqtt  # type: ignore[import-untyped]

DEADLINE_S = 20.0
MESSAGES = 200
AWAY = 20
V5 = 5
NEVER = -2
"""Retries after a lost connection: 0 would be one, -1 is without end."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    url: str
    version: int
    name: str
    authority: str | None


@dataclass(frozen=True)
class Message:
    topic: str
    text: str
    qos: int
    properties: dict[str, Any]


def report(step: str, **found: object) -> None:
    sys.stdout.write(json.dumps({"step": step, **found}) + "\n")


class Client:
    """One connection. Made by `open_client`."""

    def __init__(self, client: Any) -> None:
        self.gmqtt = client
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.present = False
        self.goodbye: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._codes: dict[int, asyncio.Future[list[int]]] = {}
        client.set_config({"reconnect_retries": NEVER})
        client.on_connect = self._on_connect
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = client.on_unsubscribe = self._on_acknowledged

    def _on_connect(self, _client: object, flags: int, *_: object) -> None:
        self.present = bool(flags & 1)

    def _on_message(
        self, _client: object, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> Literal[0]:
        self.inbox.put_nowait(Message(topic, payload.decode(), qos, properties))
        return 0

    def _on_disconnect(self, _client: object, packet: bytes, *_: object) -> None:
        if not self.goodbye.done():
            self.goodbye.set_result(packet)

    def _on_acknowledged(self, _client: object, mid: int, codes: tuple[int, ...], *_: object) -> None:
        self._codes[mid].set_result(list(codes))

    async def answered(self, mid: int) -> list[int]:
        """Reason codes of the SUBACK or UNSUBACK."""
        self._codes[mid] = asyncio.get_running_loop().create_future()
        return await asyncio.wait_for(self._codes[mid], DEADLINE_S)

    async def subscribe(self, topic_filter: str, qos: int, **properties: object) -> list[int]:
        return await self.answered(self.gmqtt.subscribe(topic_filter, qos, **properties))

    def publish(self, topic: str, text: str, qos: int, *, retain: bool = False, **properties: object) -> None:
        self.gmqtt.publish(topic, text, qos=qos, retain=retain, **properties)

    async def settle(self) -> None:
        """Wait until all that was published is acknowledged."""
        await asyncio.wait_for(self.gmqtt._persistent_storage.wait_empty(), DEADLINE_S)

    async def take(self, count: int) -> list[Message]:
        async with asyncio.timeout(DEADLINE_S):
            return [await self.inbox.get() for _ in range(count)]

    async def end(self) -> None:
        """DISCONNECT. What the broker still sent meanwhile is an error for asyncio's TLS, but not for anybody else."""
        with suppress(ssl.SSLError):
            await self.gmqtt.disconnect()


Opener = Callable[..., Awaitable[Client]]


async def open_client(
    config: Configuration, suffix: str, *, session: bool = False, will: str | None = None
) -> Client:
    address = urlsplit(config.url)
    options: dict[str, Any] = {}
    if config.version == V5:
        options = {"topic_alias_maximum": 10, "session_expiry_interval": 600 if session else 0}
    if will is not None:
        options["will_message"] = gmqtt.Message(will, "gone", qos=1)
    opened = Client(gmqtt.Client(config.name + suffix, clean_session=not session, **options))
    trust = ssl.create_default_context(cafile=config.authority) if config.authority else False
    connecting = opened.gmqtt.connect(address.hostname, address.port, ssl=trust, version=config.version)
    await asyncio.wait_for(connecting, DEADLINE_S)
    return opened


def numbers(messages: list[Message]) -> list[int]:
    return [int(message.text) for message in messages]


async def every_qos(config: Configuration, opened: Opener) -> None:
    hearing, saying = await opened("a"), await opened("b")
    for qos in (0, 1, 2):
        topic = f"{config.name}/q/{qos}"
        await hearing.subscribe(topic, 2)
        for number in range(MESSAGES):
            saying.publish(topic, str(number), qos)
        await saying.settle()
        heard = await hearing.take(MESSAGES)
        report("qos", qos=qos, numbers=numbers(heard), grades=sorted({message.qos for message in heard}))
    await hearing.end()
    await saying.end()


async def away_and_back(config: Configuration, opened: Opener) -> None:
    topic = f"{config.name}/away"
    before = await opened("s", session=True)
    await before.subscribe(f"{topic}/+", 2)
    await before.end()
    saying = await opened("b")
    for number in range(AWAY):
        qos = 1 + number % 2
        saying.publish(f"{topic}/{qos}", str(number), qos)
    await saying.settle()
    after = await opened("s", session=True)
    heard = await after.take(AWAY)
    once, twice = ([message for message in heard if message.qos == qos] for qos in (1, 2))
    report("away", present=after.present, qos1=numbers(once), qos2=numbers(twice))
    await after.end()
    await saying.end()


async def retained(config: Configuration, opened: Opener) -> None:
    topic = f"{config.name}/retained"
    saying = await opened("b")
    saying.publish(topic, "kept", 1, retain=True)
    await saying.settle()
    first = await opened("a")
    await first.subscribe(topic, 1)
    (kept,) = await first.take(1)
    saying.publish(topic, "", 1, retain=True)
    await saying.settle()
    second = await opened("c")
    await second.subscribe(topic, 1)
    saying.publish(topic, "end", 1)
    (end,) = await second.take(1)
    told = ([message.text, bool(message.properties["retain"])] for message in (kept, end))
    report("retained", before=next(told), after=next(told))
    for client in (first, second, saying):
        await client.end()


async def will(config: Configuration, opened: Opener) -> None:
    topic = f"{config.name}/will"
    hearing = await opened("a")
    await hearing.subscribe(topic, 1)
    first = await opened("w", will=topic)
    second = await opened("w")
    (heard,) = await hearing.take(1)
    packet = await asyncio.wait_for(first.goodbye, DEADLINE_S)
    report("will", payload=heard.text, taken_over=packet[0] if config.version == V5 else None)
    await hearing.end()
    await second.end()


async def properties(config: Configuration, opened: Opener) -> None:
    hearing, saying = await opened("a"), await opened("b")
    await hearing.subscribe(f"{config.name}/+", 1, subscription_identifier=7)
    saying.publish(
        f"{config.name}/p",
        "x",
        1,
        user_property=[("k", "1"), ("k", "2"), ("l", "3")],
        content_type="text/plain",
        response_topic="reply",
        correlation_data=b"\x00\x01\xff",
        message_expiry_interval=60,
        payload_format_id=1,
    )
    found = (await hearing.take(1))[0].properties
    report(
        "properties",
        user=found["user_property"],
        identifiers=found["subscription_identifier"],
        content_type=found["content_type"][0],
        response_topic=found["response_topic"][0],
        correlation=list(found["correlation_data"][0]),
        expiry=found["message_expiry_interval"][0],
        text=found["payload_format_id"][0] == 1,
    )
    await hearing.end()
    await saying.end()


async def alias(config: Configuration, opened: Opener) -> None:
    topic = f"{config.name}/alias"
    hearing, saying = await opened("a"), await opened("b")
    await hearing.subscribe(topic, 1)
    for number, name in enumerate((topic, "", "")):
        saying.publish(name, str(number), 1, topic_alias=1)
    heard = await hearing.take(3)
    report("alias", topics=[message.topic for message in heard], numbers=numbers(heard))
    await hearing.end()
    await saying.end()


async def expiry(config: Configuration, opened: Opener) -> None:
    topic = f"{config.name}/expiry"
    before = await opened("s", session=True)
    await before.subscribe(topic, 1)
    await before.end()
    saying = await opened("b")
    saying.publish(topic, "short", 1, message_expiry_interval=1)
    saying.publish(topic, "lasting", 1)
    await saying.settle()
    await asyncio.sleep(1.5)
    after = await opened("s", session=True)
    report("expiry", payloads=[message.text for message in await after.take(1)])
    await after.end()
    await saying.end()


async def shared(config: Configuration, opened: Opener) -> None:
    saying = await opened("b")
    members = [await opened("m"), await opened("n")]
    for member in members:
        await member.subscribe(f"$share/g/{config.name}/shared", 1)
    for number in range(AWAY):
        saying.publish(f"{config.name}/shared", str(number), 1)
    heard = [await member.take(AWAY // 2) for member in members]
    report("shared", shares=[len(one) for one in heard], numbers=sorted(numbers(heard[0] + heard[1])))
    for client in (*members, saying):
        await client.end()


async def codes(config: Configuration, opened: Opener) -> None:
    """gmqtt does not show the reason code of a PUBACK."""
    client = await opened("a")
    granted = await client.subscribe(f"{config.name}/codes/#", 2)
    none = await client.answered(client.gmqtt.unsubscribe(f"{config.name}/none"))
    report("codes", granted=granted, no_subscription=none[0])
    await client.end()


async def scenario(config: Configuration) -> None:
    def opened(suffix: str, **options: Any) -> Awaitable[Client]:
        return open_client(config, suffix, **options)

    steps = [every_qos, away_and_back, retained, will]
    if config.version == V5:
        steps += [properties, alias, expiry, shared, codes]
    for step in steps:
        await step(config, opened)
    report("end")


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    url, version, name, *authority = sys.argv[1:]
    asyncio.run(
        scenario(
            Configuration(
                url=url, version=int(version), name=name, authority=authority[0] if authority else None
            )
        )
    )
