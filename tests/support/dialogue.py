"""Dialogues of a few clients with a broker, packet by packet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import RUN_S, MqttClient
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Packet, Puback, Publish

DAY_S = 86_400
Talk = Callable[[], Coroutine[None, None, None]]


_made: list[MqttClient] = []


def talk(dialogue: Talk, *, within_s: float = RUN_S) -> None:
    """Run a dialogue; its clients are gone afterwards."""

    async def whole() -> None:
        try:
            await asyncio.wait_for(dialogue(), within_s)
        finally:
            for found in _made:
                found.abort()
            await wait_for(lambda: not any(found.is_open for found in _made))
            _made.clear()

    asyncio.run(whole())


def make(client_id: str, **options: object) -> MqttClient:
    """A client that is not connected."""
    _made.append(MqttClient(client_id, **options))  # type: ignore[arg-type]
    return _made[-1]


async def client(broker: BrokerProcess, client_id: str, **options: object) -> MqttClient:
    """A connected client; `version`, `acknowledges` and `keeps` make it, the rest goes into its CONNECT."""
    made = {key: options.pop(key) for key in ("version", "acknowledges", "keeps") if key in options}
    found = make(client_id, **made)
    connack = await found.connect(broker.port, **options)  # type: ignore[arg-type]
    assert connack.reason_code == 0
    return found


async def gone(found: MqttClient) -> None:
    """Its connection is cut, and the broker has seen it."""
    found.abort()
    await found.ended


async def kept(broker: BrokerProcess, client_id: str, **options: object) -> MqttClient:
    """A connected client whose session stays for a day."""
    return await client(broker, client_id, clean_start=False, expiry_s=DAY_S, **options)


async def passed(duration_s: float) -> None:
    """So much time is over."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await wait_for(lambda: loop.time() - began_s > duration_s, duration_s + 10)


async def arrived(found: MqttClient, count: int, deadline_s: float = 30) -> list[bytes]:
    """The payloads of all messages so far, once there are so many."""
    await wait_for(lambda: len(found.messages) >= count, deadline_s, f"{count} messages")
    return [message.payload for message in found.messages]


def present(found: MqttClient) -> bool:
    """Whether the broker had a session for it."""
    assert found.connack is not None
    return found.connack.session_present


async def flood(
    publisher: MqttClient, topic: str | Callable[[int], str], numbers: range, *, retain: bool = False
) -> None:
    """Publish at QoS 1 and full speed, with a window of 500; returns when everything is acknowledged."""
    window = asyncio.Semaphore(500)

    def take(packet: Packet) -> None:
        if isinstance(packet, Puback):
            assert packet.reason_code < 0x80
            window.release()

    publisher.on_packet = take
    for number in numbers:
        await window.acquire()
        name = topic if isinstance(topic, str) else topic(number)
        publisher.send(Publish(name, b"%d" % number, 1, publisher.next_id(), retain))
    for _ in range(500):
        await asyncio.wait_for(window.acquire(), 30)
