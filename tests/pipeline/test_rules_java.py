"""What a message may do to Java through a rule: the pipeline lives, and the other rules go on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.pipeline.replaying import messages_in
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_until

from embermq.pipeline.paused import paused_queries
from embermq.pipeline.places import Places
from embermq.pipeline.rules.set_aside import set_aside_of
from embermq.pipeline.status import read_status

DEADLINE_S = 600
RULES = r"""
[rules.echo]
sql = "SELECT concat('echo/', topic) AS topic, payload FROM messages WHERE length(payload) < 10"

[rules.overflows]
sql = "SELECT 'found' AS topic, payload FROM messages WHERE topic = 'overflow' AND payload RLIKE '(a|b)*c'"

[rules.endless]
sql = "SELECT 'found' AS topic, payload FROM messages WHERE topic = 'endless' AND payload RLIKE '^(a+)+\\\\1$'"
"""


async def publish(port: int, *messages: tuple[str, bytes]) -> None:
    client = MqttClient("publisher")
    await client.connect(port)
    for topic, payload in messages:
        await client.publish(topic, payload, qos=1)
    client.abort()


@pytest.mark.in_faults
@pytest.mark.timeout(1_800)
def test_the_pipeline_lives_with_a_stack_that_overflows_and_a_search_that_does_not_end(
    tmp_path: Path,
) -> None:
    config = tmp_path / "ember.toml"
    config.write_text(RULES)
    with BrokerProcess(tmp_path / "data", pipeline=True, arguments=["--config", str(config)]) as broker:
        places = Places(broker.data_dir)

        def state(rule: str) -> str:
            found = read_status(broker.data_dir).queries
            return next((one.state for one in found if one.name == f"rule:{rule}"), "")

        def is_running(rule: str) -> bool:
            return state(rule) == "running"

        def echoed(number: int) -> bool:
            return any(
                message.topic == "echo/s" and message.payload == b"%d" % number
                for _, message in messages_in(places)
            )

        for rule in ("echo", "overflows", "endless"):
            wait_until(partial(is_running, rule), DEADLINE_S, rule)
        pid = read_status(broker.data_dir).pid
        run(publish(broker.port, ("overflow", b"ab" * 100_000), ("s", b"1")), DEADLINE_S)
        wait_until(lambda: bool(set_aside_of(places.rules, "overflows", 1)), DEADLINE_S, "set aside")
        assert "StackOverflowError" in set_aside_of(places.rules, "overflows", 1)[0].reason
        wait_until(lambda: echoed(1), DEADLINE_S, "1")
        assert read_status(broker.data_dir).pid == pid, "nothing was restarted"
        run(publish(broker.port, ("endless", b"a" * 60 + b"!"), ("s", b"2")), DEADLINE_S)
        wait_until(lambda: echoed(2), DEADLINE_S, "2")
        wait_until(lambda: "rule:endless" in paused_queries(broker.data_dir), DEADLINE_S, "paused")
        run(publish(broker.port, ("s", b"3")), DEADLINE_S)
        wait_until(lambda: echoed(3), DEADLINE_S, "3 after another start of Java")
        assert state("endless") == "paused" and state("echo") == "running"
        warnings = read_status(broker.data_dir).warnings
        assert any("rule:endless is paused because it takes longer" in one for one in warnings)
