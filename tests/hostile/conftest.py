"""A broker of its own for each test that misbehaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile.watching import Watch
from tests.support.broker_process import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Not started; afterwards it has to be alive, silent and able to stop in order."""
    found = BrokerProcess(tmp_path / "data", settings={"logging.level": "debug"})
    try:
        yield found
        Watch(found).check()
        assert found.stop() == 0, found.output()
    finally:
        found.close()
