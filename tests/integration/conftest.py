"""One broker for the tests that share it; each test uses topics and client ids of its own."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.foreign_clients import ROOT, OpenBroker

TROUBLE = re.compile(r"Traceback|exception|never retrieved|Unhandled", re.IGNORECASE)


def quiet(broker: BrokerProcess) -> None:
    """Raise AssertionError when the broker has printed anything that looks like an unhandled error."""
    assert not TROUBLE.search(broker.output()), broker.output()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("shared")) as broker:
        yield broker


@pytest.fixture
def broker(shared_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """The shared broker, which must be silent and alive after each test."""
    yield shared_broker
    assert shared_broker.is_running
    quiet(shared_broker)


@pytest.fixture(scope="session")
def open_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBroker]:
    """A broker with all its doors open, for the clients of other languages, which have to be there."""
    built = subprocess.run([ROOT / "scripts" / "foreign-clients", "--check"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    broker = OpenBroker(tmp_path_factory.mktemp("open"))
    with broker:
        yield broker
        quiet(broker)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of the test's own, not started: set it up first."""
    broker = BrokerProcess(tmp_path / "data")
    try:
        yield broker
        quiet(broker)
    finally:
        broker.close()


@pytest.fixture
def name() -> str:
    """Unlike any other test's: for topics and client ids. 3.1 allows 23 characters in an id."""
    return uuid4().hex[:12]
