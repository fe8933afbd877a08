"""kill -9 of the broker while the members of a shared subscription come and go: what was acknowledged reaches one of
them, and with QoS 2 one of them once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from tests.faults.fleet import V5, V311, Fleet, some
from tests.faults.test_broker_kill import kill_and_restart
from tests.faults.traffic import Key
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_server import KafkaServer
from tests.support.metrics import metric
from tests.support.mqtt_client import run
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_for, wait_until

KILLS = 3
MESSAGES = 300
"""Of each publisher between two kills."""
SETTINGS: dict[str, object] = {"device.queue_limit": 60_000}


class SharingFleet(Fleet):
    """All subscribers are members of one group."""

    def seen(self) -> Counter[Key]:
        found: Counter[Key] = Counter()
        for subscriber in self.subscribers:
            found.update(subscriber.seen)
        return found

    def acknowledged_keys(self) -> set[Key]:
        return {key for publisher in self.publishers for key in publisher.acknowledged}

    def _all_is_there(self) -> bool:
        self.check()
        return self.acknowledged_keys() <= self.seen().keys()

    def judge(self) -> None:
        self.check()
        seen = self.seen()
        lost = sorted(self.acknowledged_keys() - seen.keys())
        assert not lost, f"{len(lost)} lost: {some(lost)}"
        doubled = [key for key, count in seen.items() if count > 1 and "/q2/" in key[0]]
        assert not doubled, f"{len(doubled)} doubled at QoS 2: {some(doubled)}"


def judge_kills(broker: BrokerProcess, random: Random) -> None:
    async def scenario() -> None:
        fleet = SharingFleet(broker.port, random, topics=5, window=50)
        for number, version in enumerate((V311, V5, V5)):
            member = fleet.subscriber(f"member-{number}", version, topic_filter="$share/g/load/#")
            member.restless_s = 0.3
            member.slow_s = 0.05
            member.receive_maximum = 20 if number == 2 else None
        await fleet.start_subscribers()
        fleet.start_publishers()
        for _ in range(KILLS):
            fleet.allow(MESSAGES)
            await kill_and_restart(broker, random)
            fleet.check()
        await wait_for(lambda: not any(each.allowance for each in fleet.publishers), 60)
        await fleet.drain()
        await fleet.stop()
        assert fleet.acknowledged() == 4 * KILLS * MESSAGES
        fleet.judge()

    run(scenario())
    wait_until(lambda: metric(broker, "shared_messages") == 0, 30, "nothing is left of the group")
    assert "Traceback" not in broker.output()


@pytest.mark.promise("device-1", "device-9")
def test_the_broker_is_killed_while_members_come_and_go(seed: int, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        judge_kills(broker, Random(seed))


@pytest.mark.promise("device-1", "device-9")
def test_the_same_with_sessions_in_redis(
    seed: int, kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path, settings={**SETTINGS, **on_servers(kafka, redis_server)}) as broker:
        judge_kills(broker, Random(seed))
