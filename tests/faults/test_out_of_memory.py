"""No memory is left: the process ends with its own exit code, and what it acknowledged is there at the next start."""

from __future__ import annotations

import re
import resource
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Subscription

EXIT_OUT_OF_MEMORY = 4
FIRST_ERROR = 0x80
ROOM_BYTES = 48 * 1024 * 1024
BODY = b"x" * 900_000


def take_memory(broker: BrokerProcess) -> None:
    """Let the process have little more than it has."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    size = re.search(r"^VmSize:\s+(\d+) kB$", status, re.MULTILINE)
    assert size is not None
    limit = int(size[1]) * 1024 + ROOM_BYTES
    resource.prlimit(broker.pid, resource.RLIMIT_AS, (limit, limit))


@pytest.mark.promise("device-1")
def test_a_broker_without_memory_ends_and_has_lost_nothing(tmp_path: Path) -> None:
    acknowledged: list[str] = []

    async def fill(broker: BrokerProcess) -> None:
        client = MqttClient("p")
        await client.connect(broker.port)
        take_memory(broker)
        with suppress(ConnectionEnded):
            for number in range(1_000):
                topic = f"kept/{number:04d}"
                if await client.publish(topic, BODY, qos=1, retain=True) < FIRST_ERROR:
                    acknowledged.append(topic)
        assert not client.is_open

    async def look(broker: BrokerProcess) -> None:
        client = MqttClient("s")
        await client.connect(broker.port)
        await client.subscribe(Subscription("kept/#", 1))
        await wait_for(lambda: {message.topic for message in client.messages} >= set(acknowledged))

    with BrokerProcess(tmp_path / "data") as broker:
        run(fill(broker))
        assert broker.wait() == EXIT_OUT_OF_MEMORY
        assert "no memory is left" in broker.output()
        assert acknowledged
        broker.start()
        run(look(broker))
