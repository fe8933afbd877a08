"""What the pipeline has to do with whether the broker is ready."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from embermq.app.clock_file import ClockFile
from embermq.app.config import Settings
from embermq.app.opened import OpenedBroker
from embermq.app.service import BrokerService
from embermq.edge.mqtt_server import MqttServer
from embermq.edge.settings import Address
from embermq.edge.tick_loop import TickLoop
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.supervisor import PipelineSupervisor, SupervisorStatistics

STANDS_STILL = "dispatch has got nothing done"


@pytest.mark.promise("pipeline-14")
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize(
    ("found", "shown", "is_out"),
    [
        (SupervisorStatistics("starting", 1, 0, ""), "starting", False),
        (SupervisorStatistics("running", 1, 0, ""), "running", False),
        (SupervisorStatistics("backoff", 0, 1, "code 1"), "backoff", False),
        (SupervisorStatistics("failed", 0, 6, "code 1"), "failed", True),
        (SupervisorStatistics("running", 1, 0, "", STANDS_STILL), "down", True),
    ],
)
def test_ready_shows_the_pipeline_and_counts_it_where_that_is_wanted(
    found: SupervisorStatistics, shown: str, is_out: bool, counts: bool, tmp_path: Path
) -> None:
    embedded = SimpleNamespace(
        log_side=SimpleNamespace(failing=""), session_store=None, peers=None, clock=ClockFile(tmp_path)
    )
    broker = BrokerService(
        Settings(pipeline=PipelineSettings(counts_for_ready=counts)),
        tmp_path,
        embedded=cast(OpenedBroker, embedded),
        ticks=cast(TickLoop, SimpleNamespace(statistics=lambda: SimpleNamespace(failing=""))),
        server=cast(MqttServer, None),
        supervisor=cast(PipelineSupervisor, SimpleNamespace(statistics=lambda: found)),
    )
    broker.bound = {"mqtt": [Address("127.0.0.1", 1883)]}
    ready = broker.ready()
    assert ready.parts["pipeline"] == shown
    assert ready.ready == (not (counts and is_out))
