"""What each release has stored is opened by this one, and what was stored before the first release is refused."""

from __future__ import annotations

import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.played_pipeline import PlayedPipeline
from tests.support.sql_server import SqlServer
from tests.support.stored_data import check, fill, storing_broker
from tests.support.stored_servers import check_servers, taken_up

STORED = Path(__file__).parents[1] / "stored"
OF_SERVERS = "-servers"


def releases(kind: str = "") -> list[str]:
    """Those whose data, or whose servers, are kept here."""
    names = sorted(path.name.removesuffix(".tar.xz") for path in STORED.glob("*.tar.xz"))
    return [name for name in names if name.endswith(OF_SERVERS) == bool(kind)]


def unpacked(name: str, folder: Path) -> Path:
    """One of them, in a folder."""
    with tarfile.open(STORED / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def store(data_dir: Path, folder: Path) -> None:
    """One of each thing, in a directory that no broker has any more."""
    with storing_broker(data_dir, folder) as broker, PlayedPipeline(data_dir):
        fill(broker)
        broker.stop()


@pytest.mark.parametrize("release", releases())
def test_a_data_directory_of_each_release_is_opened(release: str, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    restored = run_program("restore", unpacked(release, tmp_path / "stored"), "--data-dir", data_dir)
    assert restored.returncode == 0, restored.stderr
    with storing_broker(data_dir, tmp_path) as broker, PlayedPipeline(data_dir):
        check(broker)


@pytest.mark.parametrize("release", releases(OF_SERVERS))
def test_the_servers_of_each_release_are_opened(release: str, postgres: SqlServer, tmp_path: Path) -> None:
    """Kafka, Redis and PostgreSQL have what this release stored, down to the files."""
    with taken_up(unpacked(release, tmp_path / "stored"), tmp_path, postgres) as settings:
        check_servers(tmp_path, settings)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("stored") / "data"
    store(data_dir, data_dir.parent)
    return data_dir


@pytest.mark.parametrize(
    ("name", "statement", "told"),
    [
        ("broker.db", "UPDATE meta SET value = 9 WHERE name = 'schema_version'", "before EmberMQ 0.1.0"),
        ("broker.db", "UPDATE meta SET value = 99 WHERE name = 'schema_version'", "start it with the newer"),
        ("users.db", "PRAGMA user_version = 1", "before EmberMQ 0.1.0"),
        ("users.db", "PRAGMA user_version = 99", "start it with the newer"),
    ],
)
def test_other_versions_are_refused_by_name_with_the_way_out(
    stored: Path, name: str, statement: str, told: str, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(stored, data_dir)
    with closing(sqlite3.connect(data_dir / name, isolation_level=None)) as connection:
        connection.execute(statement)
    broker = BrokerProcess(data_dir)
    try:
        broker.launch()
        assert broker.wait() == 1
        said = broker.output()
    finally:
        broker.close()
    assert name in said and told in said
    assert len(said.splitlines()) == 1, said
    saved = run_program("backup", tmp_path / "saved", "--data-dir", data_dir)
    if name == "broker.db":
        assert saved.returncode == 1 and told in saved.stderr
