"""The lake over kill -9 of its driver, of Java and of the broker at any moment."""

from __future__ import annotations

import os
import random
import signal
import time

import msgspec
import pytest
from tests.pipeline.driver_process import START_S, DriverProcess, position
from tests.pipeline.lake import rows_in
from tests.pipeline.log_writer import LogWriter, record
from tests.pipeline.test_processes import GONE_S, jvm_in
from tests.support.waiting import wait_until

from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings

KILLS = 4
RECORDS = 1_500
"""In each life."""
LIFE_S = 6.0
"""A life ends at a random moment of this, counted from its first commit."""
SETTINGS = DriverSettings(queries=("lake",), bulk_trigger_ms=0, max_records_per_batch=50, backoff_first_ms=10)


@pytest.mark.in_faults
@pytest.mark.long_rounds
@pytest.mark.timeout(1200)
@pytest.mark.promise("pipeline-2", "pipeline-10")
def test_each_position_is_there_once_whoever_is_killed(
    log: LogWriter,
    places: Places,
    drivers: list[DriverProcess],
    seed: int,
) -> None:
    chance = random.Random(seed)
    for _ in range(KILLS):
        now_ms = time.time_ns() // 1_000_000
        for start in range(log.end, log.end + RECORDS, 50):
            log.append(
                [record(f"r{i % 3}/x", b"%d" % i, accepted_ms=now_ms) for i in range(start, start + 50)]
            )
        settings = msgspec.structs.replace(SETTINGS, max_records_per_batch=chance.choice([30, 50, 170]))
        before = position(places, "lake")
        driver = DriverProcess(places, settings)
        drivers.append(driver)
        driver.wait_for_position("lake", before + 1)
        end_s = time.monotonic() + chance.uniform(0.0, LIFE_S)
        wait_until(lambda: time.monotonic() >= end_s, LIFE_S, "a random moment", poll_s=0.01)  # noqa: B023
        kill(driver, chance.choice(["driver", "java", "broker"]))
        wait_until(driver.is_gone, GONE_S, "all that it started is gone", poll_s=0.05)
        found = rows_in(places, "partition", "offset")
        assert len(set(found)) == len(found), "each once"
        if chance.random() < 0.3:
            places.lake_ledger.unlink()
    # In few commits: each costs a busy machine seconds.
    last = DriverProcess(places, msgspec.structs.replace(SETTINGS, max_records_per_batch=2_000))
    drivers.append(last)
    last.wait_for_position("lake", log.end)
    found = rows_in(places, "offset", "payload")
    assert sorted(found) == [(offset, b"%d" % offset) for offset in range(log.end)]


def kill(driver: DriverProcess, who: str) -> None:
    """A broker that is gone closes the driver's standard input."""
    if who == "broker":
        assert driver.process.stdin is not None
        driver.process.stdin.close()
        driver.process.wait(START_S)
        return
    os.kill(driver.process.pid if who == "driver" else jvm_in(driver.process.pid), signal.SIGKILL)
