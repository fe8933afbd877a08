"""The start of a broker that keeps very many sessions."""

from __future__ import annotations

import sys
import time

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.dialogue import arrived, client, kept, present, talk
from tests.support.many_sessions import client_id, filters, write_sessions
from tests.support.metrics import metric, resident_mib

pytestmark = pytest.mark.in_perf

SESSIONS = 100_000
START_S = 20.0


@pytest.mark.promise("repositories-1")
def test_100000_sessions_with_5_subscriptions_each_are_there_in_20_s(own_broker: BrokerProcess) -> None:
    write_sessions(own_broker.data_dir, SESSIONS)
    began_s = time.monotonic()
    own_broker.start(deadline_s=120)
    took_s = time.monotonic() - began_s
    resident = resident_mib(own_broker)
    sys.stdout.write(f"{SESSIONS:,} sessions: ready after {took_s:.1f} s, {resident:.0f} MiB resident\n")
    assert took_s < START_S
    assert metric(own_broker, "sessions") == SESSIONS
    assert metric(own_broker, "subscriptions") == 5 * SESSIONS

    async def dialogue() -> None:
        publisher = await client(own_broker, "publisher")
        for number in (0, 77_777, SESSIONS - 1):
            wanted = [client_id(number).encode()]
            for topic_filter in filters(number)[:4]:
                topic = topic_filter.replace("+", "a").replace("#", "b/c")
                assert await publisher.publish(topic, topic.encode(), qos=1) == 0
                wanted.append(topic.encode())
            back = await kept(own_broker, client_id(number))
            assert present(back)
            assert await arrived(back, 5) == wanted
            await back.ping()
            assert len(back.messages) == 5
            back.close()

    talk(dialogue)
    assert own_broker.stop() == 0
