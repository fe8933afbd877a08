"""kill -9 of the broker while messages are parked and redriven: none is lost, none of QoS 2 is taken twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run
from tests.support.played_pipeline import PlayedPipeline
from tests.support.waiting import wait_for

from embermq.admin.operations import LIST_PARKED, REDRIVE_PARKED
from embermq.app.control import ControlClient
from embermq.app.errors import UserError
from embermq.mqtt.wire.encoder import puback, pubcomp, pubrec
from embermq.mqtt.wire.packets import Packet, Publish, Pubrel, Subscription
from embermq.mqtt.wire.version import ProtocolVersion

MESSAGES = 40
KILLS = 2
SETTINGS = {
    "clients.application_ids": "app",
    "application.pack_timeout_s": 0.1,
    "application.retries": 1,
}


class Application:
    """A client that keeps its state over connections, as [MQTT-4.1.0-1] asks for.

    Until `is_well` it leaves some PUBLISHes alone, as if it had died over them, and of others it takes the message and
    does not answer. `taken` counts what it has handed on.
    """

    def __init__(self, port: int, random: Random) -> None:
        self.taken: Counter[bytes] = Counter()
        self.is_well = False
        self._port = port
        self._random = random
        self._held: set[int] = set()
        self._stopped = False
        self.is_subscribed = False

    async def stay(self) -> None:
        """Connect again whenever the connection ends."""
        while not self._stopped:
            client = MqttClient("app", version=ProtocolVersion.V311, acknowledges=False)
            client.on_packet = lambda packet, client=client: self._take(client, packet)  # type: ignore[misc]
            with suppress(OSError, TimeoutError, ConnectionEnded):
                answer = await client.connect(self._port, clean_start=False)
                if not answer.session_present:
                    await client.subscribe(Subscription("t", 2))
                self.is_subscribed = True
                while client.is_open and not self._stopped:
                    await asyncio.wait([client.ended], timeout=0.05)
            client.abort()

    def stop(self) -> None:
        self._stopped = True

    def numbers(self) -> set[bytes]:
        """Of all messages that it has taken."""
        return {payload.partition(b";")[2] for payload in self.taken}

    def _take(self, client: MqttClient, packet: Packet) -> None:
        if isinstance(packet, Publish) and (self.is_well or self._random.random() < 0.7):
            if packet.qos == 1 or packet.packet_id not in self._held:
                self.taken[packet.payload] += 1
            if packet.qos == 2:
                self._held.add(packet.packet_id)
            if self.is_well or self._random.random() < 0.6:
                client.send_bytes((puback if packet.qos == 1 else pubrec)(packet.packet_id))
        elif isinstance(packet, Pubrel):
            self._held.discard(packet.packet_id)
            if self.is_well or self._random.random() < 0.7:
                client.send_bytes(pubcomp(packet.packet_id))


def redrive(broker: BrokerProcess) -> int:
    """All of them, if the broker is there; how many are left before."""
    with suppress(UserError), ControlClient(broker.data_dir) as control:
        left = len(control.ask(LIST_PARKED, client_id="app"))
        control.ask(REDRIVE_PARKED, client_id="app")
        return left
    return -1


@pytest.mark.promise("application-6", "application-8")
def test_parked_messages_survive_kills(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker, PlayedPipeline(tmp_path):

        async def scenario() -> None:
            application = Application(broker.port, random)
            staying = asyncio.create_task(application.stay())
            await wait_for(lambda: application.is_subscribed)
            published = 0
            for number in range(KILLS + 1):
                publisher = MqttClient(f"p{number}")
                await publisher.connect(broker.port)
                for _ in range(MESSAGES // (KILLS + 1)):
                    qos = random.choice([1, 2])
                    await publisher.publish("t", b"%d;%d" % (qos, published), qos=qos)
                    published += 1
                if number == KILLS:
                    break
                await wait_for(lambda: redrive(broker) > 0, 30, "something is parked")
                for _ in range(random.randrange(3)):
                    await asyncio.sleep(random.uniform(0, 0.3))
                    await asyncio.to_thread(redrive, broker)
                broker.kill()
                await asyncio.to_thread(broker.start)
            application.is_well = True
            everything = {b"%d" % number for number in range(published)}
            await wait_for(
                lambda: redrive(broker) == 0 and everything == application.numbers(),
                30,
                "everything has come, and nothing is parked",
            )
            application.stop()
            await staying
            doubled = {
                payload: count
                for payload, count in application.taken.items()
                if count > 1 and payload.startswith(b"2")
            }
            assert not doubled

        run(scenario())
