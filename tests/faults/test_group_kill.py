"""kill -9 of the broker while the members of a shared subscription come and go: nothing that was acknowledged is lost,
and QoS 2 reaches one member once, on both kinds of session store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.faults.fleet import V5, V311, Fleet, some
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.servers import on_servers
from tests.support.waiting import wait_for

KILLS = 3
MESSAGES = 250
"""Of each publisher between two kills."""
FILTER = "$share/g/load/#"


@pytest.fixture(params=["embedded", "redis"])
def places(request: pytest.FixtureRequest) -> Mapping[str, object]:
    if request.param == "embedded":
        return {}
    server = request.getfixturevalue("redis_server")
    return on_servers(request.getfixturevalue("kafka"), server)


@pytest.mark.promise("device-14")
def test_the_group_gets_all_that_was_acknowledged(
    seed: int, places: Mapping[str, object], tmp_path: Path
) -> None:
    random = Random(seed)
    strategy = random.choice(("round-robin", "sticky-by-topic", "least-waiting"))
    settings = {"device.queue_limit": 60_000, "mqtt.shared_strategy": strategy, **places}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:

        async def scenario() -> None:
            fleet = Fleet(broker.port, random, topics=5, window=50)
            for name, version in (("one", V311), ("two", V5), ("three", V5)):
                fleet.subscriber(name, version, restless_s=0.3, topic_filter=FILTER)
            fleet.subscriber(
                "narrow", V5, restless_s=0.5, receive_maximum=5, topic_filter=FILTER
            ).slow_s = 0.05
            await fleet.start_subscribers()
            fleet.start_publishers()
            for _ in range(KILLS):
                fleet.allow(MESSAGES)
                await asyncio.sleep(random.uniform(0.02, 0.6))
                broker.kill()
                await asyncio.to_thread(broker.start)
                fleet.check()
            await wait_for(lambda: not any(each.allowance for each in fleet.publishers), 40, "all is taken")
            await fleet.drain()
            with suppress(AssertionError):  # the judgement says what is missing
                await wait_for(lambda: not missing(fleet), 40)
            await fleet.stop()
            assert fleet.acknowledged() == len(fleet.publishers) * KILLS * MESSAGES
            judge(fleet)

        run(scenario(), 240)


def missing(fleet: Fleet) -> list[tuple[str, int]]:
    """Acknowledged, and nobody has it."""
    seen = {key for subscriber in fleet.subscribers for key in subscriber.seen}
    return sorted(key for publisher in fleet.publishers for key in publisher.acknowledged - seen)


def judge(fleet: Fleet) -> None:
    fleet.check()
    absent = missing(fleet)
    assert not absent, f"{len(absent)} that nobody has: {some(absent)}"
    copies: Counter[tuple[str, int]] = Counter()
    for subscriber in fleet.subscribers:
        copies.update(subscriber.seen)
    for publisher in fleet.publishers:
        if publisher.qos == 2:
            doubled = [key for key in copies if key[0] in publisher.sent and copies[key] > 1]
            assert not doubled, f"{len(doubled)} doubled at QoS 2: {some(doubled)}"
