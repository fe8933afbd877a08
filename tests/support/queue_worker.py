"""A client that works with durable queues as any MQTT client may: it subscribes, it publishes to control topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import ANSWER_S, MqttClient

from embermq.mqtt.wire.packets import Packet, Puback, Publish, Suback, Subscribe, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion


class Taken:
    """A message that a consumer was sent."""

    def __init__(self, packet: Publish) -> None:
        self.packet = packet
        self.payload = packet.payload
        said = packet.properties.user_properties if packet.properties is not None else ()
        self.properties = dict(said)

    @property
    def id(self) -> str:
        return self.properties["message-id"]

    @property
    def count(self) -> int:
        """Which delivery it is, 1 for the first."""
        return int(self.properties["delivery-count"])

    @property
    def partition(self) -> int:
        return int(self.properties["partition"])


class Worker(MqttClient):
    """Messages wait in `inbox` in their order."""

    def __init__(
        self, client_id: str, *, version: ProtocolVersion = ProtocolVersion.V5, acknowledges: bool = True
    ) -> None:
        super().__init__(client_id, version=version, acknowledges=acknowledges)
        self.inbox: asyncio.Queue[Taken] = asyncio.Queue()
        self.on_packet = self._note

    def _note(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self.inbox.put_nowait(Taken(packet))

    async def consumes(self, topic_filter: str, qos: int = 1, /, **wishes: str) -> Suback:
        """SUBSCRIBE with user properties: `consumer_group="g"` is `consumer-group: g`; what is "" is left out."""
        packet_id = self.next_id()
        answer = self.expect(Suback, packet_id)
        properties = None
        if self.version is ProtocolVersion.V5:
            properties = Properties(
                user_properties=named({name: value for name, value in wishes.items() if value})
            )
        self.send(Subscribe(packet_id, (Subscription(topic_filter, qos),), properties))
        return await answer

    async def enqueues(self, topic: str, *payloads: bytes, qos: int = 1, **properties: str) -> None:
        """Publish one after the other; each has to be taken."""
        for payload in payloads:
            given = Properties(user_properties=named(properties)) if properties else None
            assert await self.publish(topic, payload, qos=qos, properties=given) == 0

    async def next(self) -> Taken:
        """The next message, within the deadline."""
        return await asyncio.wait_for(self.inbox.get(), ANSWER_S)

    async def take(self, count: int) -> list[Taken]:
        return [await self.next() for _ in range(count)]

    async def take_and_ack(self, count: int) -> list[Taken]:
        """One after the other, as suspects come."""
        taken: list[Taken] = []
        for _ in range(count):
            taken.append(await self.next())
            await self.acks(taken[-1])
        return taken

    async def gets_nothing(self, *others: Worker) -> None:
        """Nothing is on its way, neither to this one nor to the others: what the broker has decided to send is before
        the answers to two pings."""
        for worker in (self, *others):
            for _ in range(2):
                await worker.ping()
        assert [taken.payload for worker in (self, *others) for taken in _all(worker.inbox)] == []

    async def says(self, verb: str, *messages: Taken, queue: str = "", **more: str) -> tuple[int, str]:
        """Settle: the reason code of the answer, and its reason string."""
        topic = queue or messages[0].packet.topic
        ids = tuple(("message-id", taken.id) for taken in messages)
        packet_id = self.next_id()
        answer = self.expect(Puback, packet_id)
        properties = Properties(user_properties=ids + named(more))
        self.send(Publish(f"{topic}/${verb}", b"", 1, packet_id, False, False, properties))
        told = await answer
        text = told.properties.reason_string if told.properties is not None else None
        return told.reason_code, text or ""

    async def acks(self, *messages: Taken) -> None:
        assert await self.says("ack", *messages) == (0, "") or len(messages) > 1


def _all(inbox: asyncio.Queue[Taken]) -> Iterable[Taken]:
    while not inbox.empty():
        yield inbox.get_nowait()


def named(wishes: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name.replace("_", "-"), value) for name, value in wishes.items())


async def worker(
    broker: BrokerProcess,
    client_id: str,
    *,
    version: ProtocolVersion = ProtocolVersion.V5,
    acknowledges: bool = True,
    clean_start: bool = True,
    expiry_s: int = 0,
    receive_maximum: int | None = None,
    packet_bytes_max: int | None = None,
) -> Worker:
    """One that is connected."""
    found = Worker(client_id, version=version, acknowledges=acknowledges)
    given = None
    if version is ProtocolVersion.V5:
        given = Properties(
            session_expiry_interval=expiry_s or None,
            receive_maximum=receive_maximum,
            maximum_packet_size=packet_bytes_max,
        )
    connack = await found.connect(broker.port, clean_start=clean_start, properties=given)
    assert connack.reason_code == 0
    return found


def queue_broker(folder: Path, queues: str, **settings: object) -> BrokerProcess:
    """A broker whose `queues.file` says `queues`, in TOML."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "queues.toml"
    file.write_text(queues)
    given = {"queues.join_debounce_ms": 0, "queues.disconnect_grace_ms": 500} | {
        name.replace("__", "."): value for name, value in settings.items()
    }
    return BrokerProcess(folder / "data", settings={"queues.file": file, **given})
