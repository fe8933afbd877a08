"""The clients: vehicles (DEVICE), the control room that commands them, the office (APPLICATION) that hears them all.

All are aiomqtt clients. Vehicles and the office ask for a session that outlives the connection with
`clean_session=False`; each keeps its one `Client` object, which is used again for every connection.
"""

import asyncio
import json
from contextlib import suppress
from random import Random

import aiomqtt
from aiomqtt import Message, MqttError

from ledger import Ledger

ANSWER_S = 60.0
"""How long an acknowledgement may take; the machine is busy while Spark starts."""
ONLINE_S = (5.0, 15.0)
TUNNEL_S = (2.0, 6.0)


class Client(aiomqtt.Client):
    """One that ends when it is cancelled. aiomqtt waits with `asyncio.wait_for`, which forgets a cancellation in Python
    3.11 when the answer comes at the same moment; it is taken up after the answer.
    """

    async def subscribe(self, topic_filter: str, qos: int) -> None:  # type: ignore[override]
        await super().subscribe(topic_filter, qos=qos)
        _end_if_cancelled()

    async def publish(self, topic: str, payload: str, qos: int) -> None:  # type: ignore[override]
        await super().publish(topic, payload, qos=qos)
        _end_if_cancelled()


def _end_if_cancelled() -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Vehicle:
    """Reports its position, obeys commands, and drives through tunnels, where it has no network."""

    def __init__(self, name: str, port: int, telemetry: Ledger, commands: Ledger) -> None:
        self.name = name
        self.is_online = False
        self.tunnels = 0
        self._client = Client("127.0.0.1", port, identifier=name, clean_session=False, timeout=ANSWER_S)
        self._telemetry = telemetry
        self._commands = commands
        self._random = Random(name)

    async def drive(self, interval_s: float, parked: asyncio.Event, home: asyncio.Event) -> None:
        """Until parked: online for a while, in a tunnel for a while. Then stay online until sent home."""
        while True:
            async with self._client:
                await self._client.subscribe(f"fleet/{self.name}/command", qos=2)
                self.is_online = True
                listening = asyncio.create_task(self._obey())
                await self._report(interval_s, self._random.uniform(*ONLINE_S), parked)
                if parked.is_set():
                    await home.wait()
                self.is_online = False
            await listening
            if home.is_set():
                return
            self.tunnels += 1
            await _sleep_unless(parked, self._random.uniform(*TUNNEL_S))

    async def _report(self, interval_s: float, online_s: float, parked: asyncio.Event) -> None:
        end = asyncio.get_running_loop().time() + online_s
        while not parked.is_set() and asyncio.get_running_loop().time() < end:
            sequence = self._telemetry.send(self.name)
            report = {"sequence": sequence, "speed_kmh": self._random.randint(0, 120)}
            await self._client.publish(f"fleet/{self.name}/telemetry", json.dumps(report), qos=2)
            self._telemetry.acknowledge(self.name, sequence)
            await _sleep_unless(parked, interval_s * self._random.uniform(0.5, 1.5))

    async def _obey(self) -> None:
        with suppress(MqttError):  # the connection has ended; what is not read yet is read in the next one
            async for message in self._client.messages:
                self._commands.deliver(self.name, _sequence_of(message))


class ControlRoom:
    """Sends commands to single vehicles, whether they are online or not. QoS 2: a door is opened once."""

    def __init__(self, port: int, vehicles: list[Vehicle], commands: Ledger) -> None:
        self.sent_to_offline = 0
        self._client = Client("127.0.0.1", port, identifier="control-room", timeout=ANSWER_S)
        self._vehicles = vehicles
        self._commands = commands
        self._random = Random("control-room")

    async def command(self, per_s: float, parked: asyncio.Event) -> None:
        """Until parked: one command after the other."""
        async with self._client:
            while not parked.is_set():
                vehicle = self._random.choice(self._vehicles)
                self.sent_to_offline += not vehicle.is_online
                sequence = self._commands.send(vehicle.name)
                order = {"sequence": sequence, "order": "unlock"}
                await self._client.publish(f"fleet/{vehicle.name}/command", json.dumps(order), qos=2)
                self._commands.acknowledge(vehicle.name, sequence)
                await _sleep_unless(parked, 1 / per_s)


class Office:
    """The back office: hears every vehicle, leaves at night, misses nothing.

    Its client id matches the broker's rule for APPLICATION clients, so its messages come by way of Spark.
    """

    def __init__(self, client_id: str, port: int, telemetry: Ledger) -> None:
        self.heard = asyncio.Event()
        self.is_there = False
        self._client = Client("127.0.0.1", port, identifier=client_id, clean_session=False, timeout=ANSWER_S)
        self._telemetry = telemetry

    async def work(self, until: asyncio.Event) -> None:
        """Connect, hear, and leave when told to."""
        async with self._client:
            # With QoS 1 a report may come twice: what the client reads while its DISCONNECT waits to be sent, it
            # hands on, and closes the connection before it can acknowledge it.
            await self._client.subscribe("fleet/+/telemetry", qos=2)
            self.is_there = True
            listening = asyncio.create_task(self._hear())
            await until.wait()
            self.is_there = False
        await listening

    async def _hear(self) -> None:
        with suppress(MqttError):
            async for message in self._client.messages:
                self._telemetry.deliver(message.topic.value.split("/")[1], _sequence_of(message))
                self.heard.set()


def _sequence_of(message: Message) -> int:
    assert isinstance(message.payload, bytes)
    return int(json.loads(message.payload)["sequence"])


async def _sleep_unless(event: asyncio.Event, seconds: float) -> None:
    """Sleep, but not past the event."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
