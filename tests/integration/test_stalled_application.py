"""A stalled APPLICATION client beside one that does well: what it costs the other."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.played_pipeline import PlayedPipeline
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Packet, Publish, Subscription
from embermq.mqtt.wire.version import ProtocolVersion

SETTINGS = {"clients.application_ids": "app-*", "application.pack_timeout_s": 0.3, "mqtt.slow_reader_s": 0}
MESSAGES = 120
PACE_S = 0.005
BACKLOG = 1_000
BODY = bytes(16 * 1024)
ROUNDS = 5
FACTOR = 1.5


def p99(latencies: list[float]) -> float:
    return sorted(latencies)[len(latencies) * 99 // 100]


class Watched:
    """The client that does well; it measures."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self._sent: dict[bytes, float] = {}
        self._number = 0

    def seen(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self.latencies.append(time.perf_counter() - self._sent.pop(packet.payload))

    async def round(self, publisher: MqttClient) -> list[float]:
        """Latencies of a paced run; the neighbour is sent as much either way."""
        self.latencies = []
        for _ in range(MESSAGES):
            payload = b"%d" % self._number
            self._number += 1
            self._sent[payload] = time.perf_counter()
            await asyncio.gather(
                publisher.publish("well", payload, qos=1), publisher.publish("stalled", BODY, qos=1)
            )
            await asyncio.sleep(PACE_S)
        await wait_for(lambda: len(self.latencies) == MESSAGES)
        return self.latencies


@pytest.mark.in_perf
@pytest.mark.promise("application-6", "application-7")
def test_a_stalled_client_leaves_anothers_p99_alone(tmp_path: Path) -> None:
    """Rounds with the neighbour stalled and rounds with it away follow one another, so that what else the machine does
    is in both, and the median of each kind decides: what disturbs a round or two does not."""
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker, PlayedPipeline(tmp_path):

        async def stall() -> MqttClient:
            """It takes nothing from its socket and acknowledges nothing; megabytes are on their way to it."""
            client = MqttClient("app-stalled", version=ProtocolVersion.V311, acknowledges=False)
            if not (await client.connect(broker.port, clean_start=False)).session_present:
                await client.subscribe(Subscription("stalled", 1))
            client.pause_reading()
            return client

        async def scenario() -> None:
            watched = Watched()
            client = MqttClient("app-well")
            client.on_packet = watched.seen
            await client.connect(broker.port, expiry_s=3_600)
            await client.subscribe(Subscription("well", 1))
            publisher = MqttClient("publisher")
            await publisher.connect(broker.port)
            (await stall()).abort()
            await asyncio.gather(*(publisher.publish("stalled", BODY, qos=1) for _ in range(BACKLOG)))
            await watched.round(publisher)
            alone: list[float] = []
            beside: list[float] = []
            for _ in range(ROUNDS):
                alone.append(p99(await watched.round(publisher)))
                stalled = await stall()
                beside.append(p99(await watched.round(publisher)))
                stalled.abort()
                await stalled.ended
            told = [[f"{p99_s * 1000:.1f}" for p99_s in found] for found in (alone, beside)]
            assert median(beside) <= FACTOR * median(alone), (
                f"p99 of rounds alone, and beside it, in ms: {told}"
            )

        run(scenario())
