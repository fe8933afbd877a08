"""What a snapshot of a data directory says of the moment at which it was taken."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.pipeline.log_writer import LogWriter, record

from embermq.adapters.sqlite.connection import SCHEMA, apply_broker_schema, open_writer
from embermq.adapters.sqlite.snapshot import Snapshot, _first_file
from embermq.formats.segments import FOLDER, segment_name
from embermq.ports.errors import StoreError

LOG_START = 20
LOG_END = 45


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A log that begins at 20, and a query that has read up to 30."""
    broker = open_writer(tmp_path / "broker.db", synchronous="OFF")
    apply_broker_schema(broker)
    broker.close()
    log = LogWriter(tmp_path)
    for records in (20, 20, 5):
        log.append([record()] * records)
    log.trim_below(LOG_START)
    log.close()
    read_up_to(tmp_path, 30)
    return tmp_path


def read_up_to(data_dir: Path, offset: int) -> None:
    connection = sqlite3.connect(data_dir / "messages.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS progress (reader PRIMARY KEY, next_offset, updated_ms)")
    connection.execute("INSERT OR REPLACE INTO progress VALUES ('archive', ?, 0)", (offset,))
    connection.commit()
    connection.close()


def park_up_to(data_dir: Path, offset: int) -> None:
    connection = sqlite3.connect(data_dir / "parked.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS parked_log (generation PRIMARY KEY, next_offset, body_bytes)"
    )
    connection.execute("INSERT OR REPLACE INTO parked_log VALUES (7, ?, 1)", (offset,))
    connection.commit()
    connection.close()


def test_the_bounds_of_the_log_are_those_of_its_files(data_dir: Path) -> None:
    with Snapshot(data_dir) as snapshot:
        assert (snapshot.log_start, snapshot.log_end) == (LOG_START, LOG_END)
        assert snapshot.position("messages.db") == 30
        assert snapshot.is_whole()


def test_a_log_that_is_empty_begins_where_it_ends(tmp_path: Path) -> None:
    broker = open_writer(tmp_path / "broker.db", synchronous="OFF")
    apply_broker_schema(broker)
    broker.execute("INSERT OR REPLACE INTO meta VALUES ('log_end', 99)")
    broker.close()
    with Snapshot(tmp_path) as snapshot:
        assert (snapshot.log_start, snapshot.log_end) == (99, 99)


def test_a_query_that_read_on_before_the_log_was_trimmed_makes_it_not_whole(data_dir: Path) -> None:
    read_up_to(data_dir, 10)
    with Snapshot(data_dir) as snapshot:
        read_up_to(data_dir, 30)  # as when it had been there just before the log let go of 10 to 19
        assert not snapshot.is_whole()


def test_a_query_that_has_long_been_behind_is_no_reason_to_wait(data_dir: Path) -> None:
    read_up_to(data_dir, 10)
    with Snapshot(data_dir) as snapshot:
        read_up_to(data_dir, 11)
        assert snapshot.is_whole()


def test_a_log_that_was_trimmed_since_broker_db_was_held_makes_it_not_whole(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What queues need of the files that went is copied, but not in broker.db as it is held."""
    read_up_to(data_dir, 40)
    hold = Snapshot._hold

    def hold_and_trim(self: Snapshot, name: str) -> None:
        hold(self, name)
        if name == "broker.db":
            (data_dir / FOLDER / segment_name(first)).unlink()

    first = _first_file(data_dir / FOLDER)
    with monkeypatch.context() as trimming:
        trimming.setattr(Snapshot, "_hold", hold_and_trim)
        with Snapshot(data_dir) as snapshot:
            assert not snapshot.is_whole()
    with Snapshot(data_dir) as snapshot:
        assert snapshot.is_whole()


@pytest.mark.parametrize("parked_before", [0, 15])
def test_bodies_that_were_parked_just_then_make_it_not_whole(data_dir: Path, parked_before: int) -> None:
    if parked_before:
        park_up_to(data_dir, parked_before)
    with Snapshot(data_dir) as snapshot:
        park_up_to(data_dir, 25)
        assert not snapshot.is_whole()


def test_a_copy_is_the_moment_of_the_snapshot(data_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    sizes: list[int] = []
    with Snapshot(data_dir) as snapshot:
        read_up_to(data_dir, 40)
        size = snapshot.bytes_of("messages.db")
        snapshot.copy("messages.db", target, sizes.append)
    copy = sqlite3.connect(target)
    assert copy.execute("SELECT next_offset FROM progress").fetchone() == (30,)
    copy.close()
    assert sum(sizes) == size == target.stat().st_size


def test_a_file_of_a_newer_version_is_refused(data_dir: Path) -> None:
    broker = open_writer(data_dir / "broker.db", synchronous="OFF")
    broker.execute("UPDATE meta SET value = ? WHERE name = 'schema_version'", (SCHEMA + 1,))
    broker.close()
    with pytest.raises(StoreError, match=f"schema version {SCHEMA + 1}"):
        Snapshot(data_dir)


def test_what_is_no_database_is_named(data_dir: Path) -> None:
    (data_dir / "traffic.db").write_bytes(b"not a database, but long enough to be read as one" * 10)
    with pytest.raises(StoreError, match=r"traffic\.db"):
        Snapshot(data_dir)
