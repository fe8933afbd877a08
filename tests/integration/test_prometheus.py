"""The board for Grafana and the alerts for Prometheus, with a real Prometheus that reads a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.prometheus_server import PrometheusServer
from tests.support.waiting import wait_until

from embermq.mqtt.wire.packets import Subscription

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "embermq-rules.yml"
BOARD = DEPLOY / "grafana" / "embermq.json"
SEEN_S = 120.0
OF_GRAFANA = {"$__rate_interval": "1m", "$__range": "1h", "$instance": ".*"}
EMPTY_HERE = ("embermq_pipeline_", "embermq_session_store_", "mqtt_queue_dlq_")
"""The broker of this test has no pipeline, no Redis and no dead letter."""


def expressions() -> Iterator[tuple[str, str]]:
    """Of each panel of the board: its title, and what it asks, as Grafana sends it."""
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for variable, value in OF_GRAFANA.items():
                expression = expression.replace(variable, value)
            assert "$" not in expression
            yield panel["title"], expression


@pytest.fixture
def watched(own_broker: BrokerProcess, tmp_path: Path) -> Iterator[PrometheusServer]:
    own_broker.start()
    target = f"127.0.0.1:{own_broker.http_port}"
    with PrometheusServer(tmp_path / "prometheus", target=target, rules=RULES) as prometheus:
        yield prometheus


async def traffic(port: int) -> None:
    """Something of what a board shows: an acknowledged message, a delivery, a queue with a consumer."""
    one = MqttClient("one")
    await one.connect(port)
    await one.subscribe(Subscription("t", 1), Subscription("$queue/tasks", 1))
    await one.publish("t", b"hello", qos=1)
    await one.publish("$queue/tasks", b"work", qos=1)
    one.close()


def test_each_panel_shows_something_and_no_alert_fires(
    watched: PrometheusServer, own_broker: BrokerProcess
) -> None:
    asked = list(expressions())
    assert len(asked) > 40

    def empty() -> list[str]:
        run(traffic(own_broker.port))
        return [
            f"{title}: {expression}"
            for title, expression in asked
            if not watched.query(expression) and not re.search("|".join(EMPTY_HERE), expression)
        ]

    wait_until(lambda: not empty(), SEEN_S, "every panel shows something")
    rules = watched.rules()
    wait_until(
        lambda: all(rule["health"] == "ok" for rule in watched.rules()), SEEN_S, "each rule was evaluated"
    )
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_the_alert_of_a_broker_that_is_away_fires(own_broker: BrokerProcess, tmp_path: Path) -> None:
    """With its wait of a minute taken out, the rule itself is seen to fire."""
    own_broker.start()
    rules = tmp_path / "rules.yml"
    rules.write_text(re.sub(r"^ +for: .*\n", "", RULES.read_text(), flags=re.MULTILINE))
    target = f"127.0.0.1:{own_broker.http_port}"
    with PrometheusServer(tmp_path / "prometheus", target=target, rules=rules) as prometheus:
        wait_until(lambda: prometheus.query("up == 1"), SEEN_S, "the broker was read")
        assert own_broker.stop() == 0
        wait_until(
            lambda: (
                [rule["name"] for rule in prometheus.rules() if rule["state"] == "firing"] == ["EmberMQAway"]
            ),
            SEEN_S,
            "the alert, and no other one",
        )
