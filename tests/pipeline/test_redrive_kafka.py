"""`embermq pipeline redrive` against a broker on servers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from tests.pipeline.dead_letters import LEFT_OPEN, START_S, Letter, Redrive, bury, dead, queued
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.queue_worker import queue_broker, worker
from tests.support.waiting import wait_until

QUEUE = "re/kafka"
COUNT = 60
ODD = "cast(get_json_object(payload_json, '$.i') as int) % 2 = 1 and topic = '$queue/re/kafka'"
"""A filter that needs the messages; the first one is no JSON, so null of it."""


async def consume(broker: BrokerProcess, found: list[tuple[str, int, int]]) -> None:
    """All messages: their ids, deliveries and numbers."""
    client = await worker(broker, "rekafka-2")
    await client.consumes(f"$queue/{QUEUE}", prefetch="1000")
    for _ in range(COUNT):
        message = await client.next()
        number = json.loads(message.payload)["i"] if message.payload[:1] == b"{" else 0
        found.append((message.id, message.count, number))
        await client.acks(message)
    await client.gets_nothing()
    client.close()


@pytest.mark.in_faults
@LEFT_OPEN
@pytest.mark.promise("queues-34", "queues-35", "pipeline-1", "pipeline-12")
def test_each_goes_back_once_whoever_is_killed(
    servers: dict[str, object], tmp_path: Path, redrive: Redrive
) -> None:
    with queue_broker(tmp_path, "", **servers) as broker:
        ids = bury(broker, QUEUE, COUNT)
        odd, even = ids[1::2], ids[::2]
        (dry,) = redrive(broker, QUEUE, "--dry-run", "--filter", ODD)
        report = dry["report"]
        assert (report["there"], report["chosen"], report["put_back"]) == (COUNT, len(odd), 0)
        assert [one["message_id"] for one in report["samples"]] == odd[:3]
        assert (dead(broker, QUEUE), queued(broker, QUEUE)) == (ids, [])

        found = killed_meanwhile(broker, redrive, COUNT - 8, "--rate", "10", "--filter", ODD)
        report = found[-1]["report"]
        assert (report["chosen"], report["put_back"] + report["gone"], report["held"]) == (30, 30, 0)
        assert any("it is asked again for 60 s" in line.get("notice", "") for line in found)
        assert (dead(broker, QUEUE), queued(broker, QUEUE)) == (even, odd), "each in one place, in order"

        *_, again = redrive(broker, QUEUE, "--rate", "30", "--filter", ODD)
        assert (again["report"]["there"], again["report"]["chosen"]) == (30, 0), (
            "a repetition changes nothing"
        )
        *_, rest = redrive(broker, QUEUE)
        assert (rest["report"]["put_back"], rest["report"]["gone"]) == (30, 0)
        broker.kill()
        broker.start()
        expected = [(one, 1, number) for number, one in enumerate(ids)]
        consumed: list[tuple[str, int, int]] = []
        run(consume(broker, consumed))
        assert sorted(consumed) == sorted(expected), "all, whole, each once, with no attempts"
        assert not dead(broker, QUEUE)


def killed_meanwhile(broker: BrokerProcess, redrive: Redrive, left: int, *words: str) -> list[Letter]:
    """What the command says, with a kill -9 of the broker when so many dead letters are left."""
    found: list[Letter] = []
    asking = Thread(target=lambda: found.extend(redrive(broker, QUEUE, *words)), daemon=True)
    asking.start()
    wait_until(partial(has_at_most, broker, left), START_S, f"{left} are left")
    broker.kill()
    broker.start()
    some = queued(broker, QUEUE)  # looked at first: the command goes on meanwhile
    assert set(some).isdisjoint(letters := dead(broker, QUEUE)), "none in both"
    assert len(some) > 0 and len(letters) >= COUNT // 2
    asking.join(START_S)
    assert not asking.is_alive()
    return found


def has_at_most(broker: BrokerProcess, left: int) -> bool:
    return len(dead(broker, QUEUE)) <= left
