"""What a message may do to Java through a rule: the pipeline lives, and the other rules go on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec import Struct
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


class Ruling(Struct, frozen=True):
    """A broker with the rules, and no other query than they need."""

    broker: BrokerProcess
    places: Places

    def state(self, rule: str) -> str:
        found = read_status(self.broker.data_dir).queries
        return next((one.state for one in found if one.name == f"rule:{rule}"), "")

    def is_running(self, rule: str) -> bool:
        return self.state(rule) == "running"

    def has_echoed(self, number: int) -> bool:
        return any(
            message.topic == "echo/s" and message.payload == b"%d" % number
            for _, message in messages_in(self.places)
        )

    def publish(self, *messages: tuple[str, bytes]) -> None:
        run(publish(self.broker.port, *messages), DEADLINE_S)

    def wait_for_echo(self, number: int) -> None:
        wait_until(partial(self.has_echoed, number), DEADLINE_S, f"the echo of {number}")


@pytest.fixture
def ruling(tmp_path: Path) -> Iterator[Ruling]:
    config = tmp_path / "ember.toml"
    config.write_text(RULES)
    settings, words = {"pipeline.queries": "dispatch"}, ["--config", str(config)]
    with BrokerProcess(tmp_path / "data", pipeline=True, settings=settings, arguments=words) as broker:
        found = Ruling(broker, Places(broker.data_dir))
        for rule in ("echo", "overflows", "endless"):
            wait_until(partial(found.is_running, rule), DEADLINE_S, rule)
        yield found


@pytest.mark.in_faults
@pytest.mark.timeout(1_800)
def test_the_pipeline_lives_with_a_stack_that_overflows(ruling: Ruling) -> None:
    pid = read_status(ruling.broker.data_dir).pid
    ruling.publish(("overflow", b"ab" * 100_000), ("s", b"1"))
    wait_until(lambda: bool(set_aside_of(ruling.places.rules, "overflows", 1)), DEADLINE_S, "set aside")
    assert "StackOverflowError" in set_aside_of(ruling.places.rules, "overflows", 1)[0].reason
    ruling.wait_for_echo(1)
    assert read_status(ruling.broker.data_dir).pid == pid, "nothing was restarted"


@pytest.mark.in_faults
@pytest.mark.timeout(1_800)
def test_the_pipeline_lives_with_a_search_that_does_not_end(ruling: Ruling) -> None:
    """A minute and a half until it is given up, and another start of Java: a test by itself, or it would last too long
    for those who run it by hand."""
    data_dir = ruling.broker.data_dir
    ruling.publish(("endless", b"a" * 60 + b"!"), ("s", b"2"))
    ruling.wait_for_echo(2)
    wait_until(lambda: "rule:endless" in paused_queries(data_dir), DEADLINE_S, "paused")
    ruling.publish(("s", b"3"))
    ruling.wait_for_echo(3)  # after another start of Java
    assert ruling.state("endless") == "paused"
    wait_until(partial(ruling.is_running, "echo"), DEADLINE_S, "echo goes on")
    warnings = read_status(data_dir).warnings
    assert any("rule:endless is paused because it takes longer" in one for one in warnings)
