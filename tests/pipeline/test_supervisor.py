"""The broker's side of the pipeline with a driver that a test plays: what it does is said here, not by Spark."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pipeline.log_writer import LogWriter, record
from tests.support.waiting import wait_for

from embermq.pipeline.errors import PipelineSettingsError
from embermq.pipeline.places import Places
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.application_logs import ApplicationLogSink
from embermq.pipeline.status import NO_APPLICATION, read_status
from embermq.pipeline.supervisor import FAILED_PAUSES, PipelineSupervisor, pause_ms

SOON_S = 60
PLAYED = """#!/bin/sh
[ -e '{ill}' ] && exit 1
IFS= read -r settings
printf '%s' "$settings" > '{given}'
printf '%s' "$EMBER_COMPILED" > '{hot}'
while [ -e "$0" ] && sleep 0.1
do
    printf '{{"pid": %d, "state": "running", "started_ms": 1, "updated_ms": %s,
        "queries": [{{"name": "dispatch", "state": "running"}}]}}' $$ $(date +%s%3N) > '{status}.new'
    mv '{status}.new' '{status}'
done
"""


class PlayedDriver:
    """Says that it runs and does nothing; or ends at once, while it is ill."""

    def __init__(self, places: Places, folder: Path) -> None:
        self.ill = folder / "ill"
        self.hot = folder / "hot"
        self.settings = folder / "settings"
        self.program = folder / "driver"
        self.program.write_text(
            PLAYED.format(ill=self.ill, hot=self.hot, given=self.settings, status=places.status)
        )
        self.program.chmod(0o755)


@pytest.fixture
def played(places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedDriver]:
    driver = PlayedDriver(places, tmp_path)
    monkeypatch.setattr(sys, "executable", str(driver.program))
    yield driver
    driver.program.unlink()  # also one that a failing test has left running ends


@pytest.mark.promise("pipeline-14")
def test_a_driver_that_fails_again_and_again_is_tried_for_ever(places: Places, played: PlayedDriver) -> None:
    played.ill.touch()

    async def scenario() -> None:
        settings = DriverSettings(restarts_max=2, backoff_first_ms=1, backoff_max_ms=1)
        supervisor = PipelineSupervisor(settings, places.data_dir)
        await supervisor.start()
        await wait_for(lambda: supervisor.statistics().state == "failed", SOON_S, "too many restarts")
        assert supervisor.statistics().restarts >= 2 and supervisor.statistics().is_out
        assert "code 1" in supervisor.statistics().last_error
        tried = supervisor.statistics().restarts
        await wait_for(lambda: supervisor.statistics().restarts > tried + 2, SOON_S, "it is tried again")
        assert supervisor.statistics().state == "failed" == read_status(places.data_dir).state
        played.ill.unlink()
        await wait_for(lambda: supervisor.statistics().state == "running", SOON_S, "it runs")
        assert read_status(places.data_dir).state == "running" and not supervisor.statistics().is_out
        await supervisor.stop()

    asyncio.run(scenario())


def test_another_driver_gets_other_rules_and_that_is_no_failure(places: Places, played: PlayedDriver) -> None:
    rule = RuleSettings(sql="SELECT topic, payload FROM messages")

    async def scenario() -> None:
        supervisor = PipelineSupervisor(DriverSettings(queries=("dispatch",)), places.data_dir)
        await supervisor.start(is_wanted=False)
        with pytest.raises(PipelineSettingsError, match="the name of a rule"):
            supervisor.check_rules({"No": rule})
        supervisor.check_rules({"hot": rule})
        for name in ("hot", "cold"):
            before = supervisor.statistics().pid
            supervisor.renew_rules({name: rule})
            await wait_for(
                lambda before=before: (
                    supervisor.statistics().pid not in (0, before)  # type: ignore[misc]
                    and supervisor.statistics().state == "running"
                ),
                SOON_S,
                "another one runs",
            )
            assert f'"rules":{{"{name}":' in played.settings.read_text()
        assert supervisor.statistics().restarts == 0 and not supervisor.statistics().last_error
        await supervisor.stop()

    asyncio.run(scenario())


def test_a_driver_runs_the_source_whatever_the_broker_runs(
    places: Places, played: PlayedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EMBER_COMPILED", raising=False)

    async def scenario() -> None:
        supervisor = PipelineSupervisor(DriverSettings(), places.data_dir)
        await supervisor.start()
        await wait_for(lambda: supervisor.statistics().state == "running", SOON_S, "it runs")
        await supervisor.stop()

    asyncio.run(scenario())
    assert played.hot.read_text() == "0"


@pytest.mark.promise("pipeline-13")
def test_no_driver_is_started_before_something_is_to_be_done(
    log: LogWriter, places: Places, played: PlayedDriver
) -> None:
    log.append([record()] * 5)

    async def scenario() -> None:
        supervisor = PipelineSupervisor(DriverSettings(queries=("dispatch",)), places.data_dir)
        await supervisor.start(is_wanted=False)
        for _ in range(3):
            found = read_status(places.data_dir)
            supervisor.note(found, is_wanted=False)
            await asyncio.sleep(0)
            assert (found.state, found.waits_for, found.waiting) == ("waiting", NO_APPLICATION, 0)
            assert (supervisor.statistics().state, supervisor.statistics().pid) == ("waiting", 0)
            assert not supervisor.statistics().is_out
        supervisor.note(read_status(places.data_dir), is_wanted=True)
        await wait_for(lambda: supervisor.statistics().state == "running", SOON_S, "it runs")
        assert read_status(places.data_dir).state == "running"
        supervisor.note(read_status(places.data_dir), is_wanted=False)
        assert supervisor.statistics().state == "running"
        await supervisor.stop()

    asyncio.run(scenario())


@pytest.mark.promise("pipeline-14")
def test_pauses_grow_to_a_longest_one_and_further_once_it_has_failed() -> None:
    settings = DriverSettings(backoff_first_ms=500, backoff_max_ms=30_000)
    usual = [pause_ms(settings, failures, has_failed=False) for failures in range(1, 9)]
    assert usual == [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
    failed = [pause_ms(settings, failures, has_failed=True) for failures in (6, 7, 8, 11, 12, 1_000)]
    assert failed == [16_000, 32_000, 64_000, 512_000, 30_000 * FAILED_PAUSES, 30_000 * FAILED_PAUSES]


@pytest.mark.promise("pipeline-14")
def test_a_driver_that_gets_nothing_done_counts_as_down_and_is_begun_anew(
    log: LogWriter, places: Places, played: PlayedDriver
) -> None:
    log.append([record()] * 5)
    sink = ApplicationLogSink(places.applications)
    sink.file.begin_at(0)

    async def scenario() -> None:
        settings = DriverSettings(
            queries=("dispatch",), progress_timeout_s=1, realtime_batch_s=5, backoff_first_ms=1
        )
        supervisor = PipelineSupervisor(settings, places.data_dir)

        def looked(state: str) -> bool:
            supervisor.note(read_status(places.data_dir))
            return read_status(places.data_dir).state == state

        await supervisor.start()
        await wait_for(lambda: looked("running"), SOON_S, "its process says so")
        first = supervisor.statistics().pid
        await wait_for(lambda: looked("down"), SOON_S, "nothing was done")
        assert "although 5 records wait" in supervisor.statistics().stalled
        assert supervisor.statistics().stalled in read_status(places.data_dir).warnings
        assert supervisor.statistics().is_out
        await wait_for(lambda: supervisor.statistics().pid not in (0, first), SOON_S, "another driver")
        assert supervisor.statistics().last_error.startswith("dispatch has got nothing done")
        assert looked("down"), "another driver that has done nothing is no better"
        with sink.file.transaction():
            sink.file.move_to(5)
        await wait_for(lambda: looked("running"), SOON_S, "everything is done")
        assert not supervisor.statistics().is_out
        await supervisor.stop()

    asyncio.run(scenario())
