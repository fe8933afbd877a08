"""A query of the pipeline that is too far behind, on a running broker."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import metric, metrics
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_until

from embermq.pipeline.places import Places
from embermq.pipeline.status import read_status

PAYLOAD = bytes(64 * 1024)
MIB = len(PAYLOAD) * 16
BUDGET_MIB = 16
SEEN_S = 60.0
NOBODY = 0x10
"""Accepted; there is no subscriber."""


@pytest.fixture
def without_driver(tmp_path: Path) -> Iterator[Path]:
    """A data directory on which no driver can run, so that no query gets anywhere."""
    places = Places(tmp_path / "data")
    places.work.mkdir(parents=True)
    with places.driver_lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield places.data_dir


def publish(broker: BrokerProcess, mib: int) -> set[int]:
    """QoS 1 messages; the reason codes of their acknowledgements."""
    reasons: set[int] = set()

    async def scenario() -> None:
        client = MqttClient("pump")
        await client.connect(broker.port)
        for _ in range(mib * MIB // len(PAYLOAD)):
            reasons.add(await client.publish("t", PAYLOAD, qos=1))
        client.close()

    run(scenario())
    return reasons


@pytest.mark.promise("pipeline-5")
def test_an_archive_that_is_behind_stops_no_publisher(without_driver: Path) -> None:
    settings = {
        "log.disk_budget_bytes": BUDGET_MIB * MIB,
        "log.retention_bytes": BUDGET_MIB * MIB,
        "pipeline.queries": '["archive", "lake"]',
        "pipeline.pin_policies": "lake:pause",
    }
    with BrokerProcess(without_driver, pipeline=True, settings=settings) as broker:
        assert publish(broker, 7) == {NOBODY}
        for query in ("archive", "lake"):
            told = f"{query} holds back more than half of what readers may"
            wait_until(lambda told=told: told in broker.output(), SEEN_S, told)  # type: ignore[misc]
        wait_until(
            lambda: "embermq_log_reader_near_limit" in metrics(broker), SEEN_S, "the metrics say the same"
        )
        assert metric(broker, "log_reader_near_limit") == 2
        assert metric(broker, "log_start_offset") == 0
        assert publish(broker, 8) == {NOBODY}

        def goes_on() -> bool:
            assert publish(broker, 1) == {NOBODY}, "also past the limit"
            return metric(broker, "log_start_offset") > 0

        wait_until(goes_on, SEEN_S, "the log goes on")
        assert "archive is so far behind that the log goes on without it" in broker.output()
        states = {query.name: query.state for query in read_status(without_driver).queries}
        assert (without_driver / "paused" / "lake").exists(), states


@pytest.mark.promise("pipeline-5")
def test_who_wants_a_complete_archive_has_publishers_refused(without_driver: Path) -> None:
    settings = {
        "log.disk_budget_bytes": BUDGET_MIB * MIB,
        "log.retention_bytes": BUDGET_MIB * MIB,
        "pipeline.queries": '["archive"]',
        "pipeline.pin_policies": "archive:refuse",
    }
    with BrokerProcess(without_driver, pipeline=True, settings=settings) as broker:
        assert NOBODY in publish(broker, 5)
        wait_until(lambda: publish(broker, 1) == {0x97}, SEEN_S, "publishes are refused")
        assert metric(broker, "log_start_offset") == 0
