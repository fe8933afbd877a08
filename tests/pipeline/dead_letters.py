"""Dead letters for tests of `embermq pipeline redrive`, and where they and their messages are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.queue_worker import named, worker

from embermq.mqtt.wire.properties import Properties

START_S = 90.0
"""How long Spark may take to start."""

LEFT_OPEN = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
"""The HTTP client leaves a Unix socket that it could not connect to the garbage collector."""

Letter = dict[str, Any]
Redrive = Callable[..., list[Letter]]


def words_for(broker: BrokerProcess, queue: str) -> list[str]:
    """The command without its wishes, with the broker's stores."""
    stores = [
        word
        for key, value in broker.settings.items()
        if key.startswith("stores.")
        for word in ("--set", f"{key}={value}")
    ]
    return ["pipeline", "redrive", "--data-dir", str(broker.data_dir), *stores, "--queue", queue]


def api(broker: BrokerProcess, queue: str, path: str) -> list[Letter]:
    """What the API tells of a queue."""
    address = f"http://127.0.0.1:{broker.http_port}/api/v1/queues/{queue.replace('/', '$')}/{path}"
    found: list[Letter] = httpx.get(address, timeout=30).raise_for_status().json()
    return found


def dead(broker: BrokerProcess, queue: str) -> list[str]:
    """Message ids of the dead letters."""
    return [letter["message_id"] for letter in api(broker, queue, "dlq?limit=1000")]


def queued(broker: BrokerProcess, queue: str) -> list[str]:
    """Ids of the messages in the queue."""
    found: list[str] = []
    after = 0
    while page := api(broker, queue, f"messages?limit=100&after={after}"):
        found += [one["about"]["id"] for one in page]
        after = page[-1]["about"]["sequence"]
    return found


async def _bury(broker: BrokerProcess, queue: str, count: int) -> None:
    """Messages number 0 to `count`, all rejected; odd ones of re/filter fail once and for all."""
    client = await worker(broker, f"{queue.replace('/', '')}-1")
    await client.consumes(f"$queue/{queue}", prefetch="1000")
    for number in range(count):
        payload = json.dumps({"i": number}).encode() if number else b"\xff no JSON"
        said = {"tenant": "ab"[number % 3 == 0], "partition_key": f"k{number % 3}"}
        properties = Properties(user_properties=(*named(said), ("tenant", "last")), content_type="text/x")
        assert await client.publish(f"$queue/{queue}", payload, qos=1, properties=properties) == 0
    for _ in range(count):
        message = await client.next()
        even = message.payload[:1] == b"\xff" or json.loads(message.payload)["i"] % 2 == 0
        verb, why = ("nack", "db away") if queue == "re/filter" and not even else ("reject", "no good")
        assert (await client.says(verb, message, reason=why))[0] == 0
    client.close()


def bury(broker: BrokerProcess, queue: str, count: int) -> list[str]:
    """The message ids."""
    run(_bury(broker, queue, count))
    return dead(broker, queue)
