"""The stores that each contract suite runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.stores import KINDS, Stores


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """Every adapter, at every level of durability."""
    opened = Stores(request.param, tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=["fsync", "os", "memory"])
def sqlite_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """The SQLite adapters alone, for what only a disk can do."""
    opened = Stores(request.param, tmp_path)
    yield opened
    opened.close()
