"""A broker for modules whose tests kill it; the others have one of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.queue_worker import queue_broker


@pytest.fixture(scope="module")
def mortal(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """On one data directory for the module, whose `QUEUES` are its queues."""
    with queue_broker(tmp_path_factory.mktemp("mortal"), request.module.QUEUES) as running:
        yield running


@pytest.fixture
def broker(mortal: BrokerProcess) -> BrokerProcess:
    """Running. A test may kill it and leave it so; each has queues and clients of its own."""
    if not mortal.is_running:
        mortal.start()
    return mortal
