"""What the broker does once in a while goes on, whatever happens to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from embermq.app import service
from embermq.app.clock_file import ClockFile
from embermq.app.config import Settings
from embermq.app.opened import OpenedBroker
from embermq.app.service import BrokerService
from embermq.durability.retention import RetentionState
from embermq.edge.mqtt_server import MqttServer
from embermq.edge.tick_loop import TickLoop
from embermq.model.counters import Counters
from embermq.ports.errors import StoreUnavailable

TROUBLES = [KeyError("nobody foresaw this"), KeyError("nobody foresaw this"), StoreUnavailable("away")]


class Retention:
    """Breaks down some times, then works."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.troubles = list(TROUBLES)
        self.stop = stop

    def run(self, *_: object) -> RetentionState:
        if self.troubles:
            raise self.troubles.pop(0)
        self.stop.set()
        return cast(
            RetentionState,
            SimpleNamespace(
                over_limit=False, refuse_all=True, refused_generations={7}, near=(), passed=(), to_pause=()
            ),
        )


def test_errors_that_nobody_foresaw_are_told_and_counted_and_the_rounds_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(service, "HOUSEKEEPING_S", 0.0)
    counters = Counters()
    state = SimpleNamespace(
        sessions=SimpleNamespace(loaded=[]), counters=counters, refuse_all=False, refused_generations=set()
    )

    async def rounds() -> None:
        stop = asyncio.Event()
        log_side = SimpleNamespace(dispatcher_floor=0, holding=lambda _: (), failures=0, has_dates=False)
        embedded = SimpleNamespace(
            log_side=log_side,
            broker=SimpleNamespace(state=state),
            retention=Retention(stop),
            clock=ClockFile(tmp_path),
        )
        broker = BrokerService(
            Settings(),
            tmp_path,
            embedded=cast(OpenedBroker, embedded),
            ticks=cast(TickLoop, None),
            server=cast(MqttServer, None),
            supervisor=None,
        )
        await asyncio.wait_for(broker._keep_log(stop), 30)

    asyncio.run(rounds())
    assert (counters.unexpected_errors, state.refuse_all, state.refused_generations) == (2, True, {7})
    told = [record for record in caplog.records if "retention" in record.getMessage()]
    assert [record.levelname for record in told] == ["ERROR"]
    assert told[0].exc_info is not None
