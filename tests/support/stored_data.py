"""One of each thing that a broker stores, put in and looked for again: over upgrades, and over backups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient, run
from tests.support.queue_worker import worker
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Subscription, Will
from embermq.mqtt.wire.properties import Properties

NEVER_S = 0xFFFFFFFF
"""Of a session: it does not expire."""
CLIENTS = ("device", "app")
"""The second one is an application, whose messages come by way of the pipeline."""
PAYLOADS = [b"one", b"two", b"three"]
SETTINGS = {
    "clients.application_ids": "app",
    "device.ttl_s": NEVER_S,
    "log.retention_hours": 87_600,
}
QUEUES = """
[[queues]]
name = "stored"
limits.message_ttl = "87600h"
"""


@contextmanager
def storing_broker(
    data_dir: Path, folder: Path, settings: dict[str, object] | None = None
) -> Iterator[BrokerProcess]:
    """A broker whose data does not age. `folder` has room for a file."""
    queues = folder / "queues.toml"
    queues.write_text(QUEUES)
    given = SETTINGS | {"queues.file": queues} | (settings or {})
    with BrokerProcess(data_dir, settings=given) as broker:
        yield broker


def fill(broker: BrokerProcess, *words: str, clients: Sequence[str] = CLIENTS) -> None:
    """Store one of each, for absent `clients`. `words` are options for commands that need the broker's settings."""
    added = run_program("users", "add", "ann", "--data-dir", broker.data_dir, *words, stdin="secret\n")
    assert added.returncode == 0, added.stderr

    async def scenario() -> None:
        for name in clients:
            client = MqttClient(name)
            will = Will("wills", b"gone", 1, False, Properties(will_delay_interval=NEVER_S))
            await client.connect(broker.port, expiry_s=NEVER_S, will=will)
            await client.subscribe(Subscription("stored/#", 2))
            client.abort()
            await client.ended
        publisher = await worker(broker, "publisher")
        await publisher.publish("kept", b"retained", qos=1, retain=True)
        for qos, payload in enumerate(PAYLOADS, 0):
            assert await publisher.publish("stored/topic", payload, qos=max(1, qos)) == 0
        await publisher.enqueues("$queue/stored", *PAYLOADS)
        publisher.close()

    run(scenario())


def check(broker: BrokerProcess, *words: str, clients: Sequence[str] = CLIENTS) -> None:
    """All that `fill` has stored is there, once and in order. Takes it, as its owners would."""
    listed = run_program("users", "list", "--data-dir", broker.data_dir, *words)
    assert "ann" in listed.stdout, listed.stderr

    async def scenario() -> None:
        for name in clients:
            client = MqttClient(name)
            connack = await client.connect(broker.port, clean_start=False, expiry_s=NEVER_S)
            assert connack.session_present, name
            await wait_for(lambda found=client: len(found.messages) >= len(PAYLOADS), 90, name)  # type: ignore[misc]
            assert [message.payload for message in client.messages] == PAYLOADS, name
            client.close()
        reader = MqttClient("reader")
        await reader.connect(broker.port)
        await reader.subscribe(Subscription("kept", 1))
        await wait_for(lambda: bool(reader.messages), 90, "the retained message")
        assert [(message.payload, message.retain) for message in reader.messages] == [(b"retained", True)]
        reader.close()
        consumer = await worker(broker, "consumer")
        await consumer.consumes("$queue/stored")
        assert [taken.payload for taken in await consumer.take_and_ack(len(PAYLOADS))] == PAYLOADS
        consumer.close()

    run(scenario())
