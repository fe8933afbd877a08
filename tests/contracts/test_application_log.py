"""What every application log promises, the readers' side of the pipeline's files, and the message store."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from tests.contracts.stores import Stores
from tests.support.stand_in_store import StandInApplicationLog

from embermq.adapters.sqlite.log_readers import PIPELINE_FILES, SqliteLogReaders
from embermq.adapters.sqlite.message_store import SqliteMessageStore
from embermq.model.application_positions import ReaderPosition, StoredPositions
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import SessionRow
from embermq.mqtt.wire.properties import Properties
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.log_readers import LogReader

Fill = Callable[[int, dict[int, list[int]]], None]


def position(committed: int) -> ReaderPosition:
    return ReaderPosition("", 0, StoredPositions(committed, committed))


def session(generation: int, client_id: str) -> SessionRow:
    return SessionRow(client_id, generation, 1, ClientType.APPLICATION, "", 5, 60, True, 0, 0)


def pipeline_file(path: Path, *schemas: str) -> sqlite3.Connection:
    """A file as the pipeline makes it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    for schema in (*schemas, "progress.sql"):
        connection.executescript(files("embermq.formats").joinpath(schema).read_text())
    return connection


@pytest.fixture
def fill(stores: Stores) -> Iterator[Fill]:
    """Does the pipeline's part: adds entries and confirms everything below an offset."""
    opened: list[sqlite3.Connection] = []

    def fill_sqlite(complete: int, entries: dict[int, list[int]]) -> None:
        if not opened:
            opened.append(pipeline_file(stores.folder / "applications.db", "applications.sql"))
        (connection,) = opened
        connection.execute("BEGIN")
        for generation, found in entries.items():
            for one in found:
                connection.execute("INSERT INTO application_log VALUES (?, ?, 1, x'')", (generation, one))
        connection.execute("INSERT OR REPLACE INTO progress VALUES ('dispatch', ?, 0)", (complete,))
        connection.execute("COMMIT")

    def fill_stand_in(complete: int, entries: dict[int, list[int]]) -> None:
        assert isinstance(stores.applications, StandInApplicationLog)
        for generation, found in entries.items():
            stores.applications.entries[generation] += found
        stores.applications.complete = complete

    yield fill_stand_in if stores.kind == "stand-in" else fill_sqlite
    for connection in opened:
        connection.close()


@pytest.mark.promise("application-3")
def test_entries_come_in_order_up_to_what_is_complete(stores: Stores, fill: Fill) -> None:
    assert stores.applications.complete_offset() == 0
    assert stores.applications.read(1, 0, 10) == []
    fill(6, {1: [5, 1, 9], 2: [2]})
    assert stores.applications.complete_offset() == 6
    assert stores.applications.read(1, 0, 10) == [1, 5]
    assert stores.applications.read(1, 2, 10) == [5]
    assert stores.applications.read(1, 0, 1) == [1]
    assert stores.applications.read(3, 0, 10) == []
    fill(10, {1: [7]})
    assert stores.applications.read(1, 6, 10) == [7, 9]


@pytest.mark.promise("application-4")
def test_floors_are_what_readers_have_settled(stores: Stores) -> None:
    stores.write(
        sessions=[session(1, "app"), session(2, "other")],
        application_positions={1: position(10), 2: position(3)},
    )
    stores.reopen()
    floors = stores.applications.floors()
    assert sorted((floor.generation, floor.floor_offset) for floor in floors) == [(1, 10), (2, 3)]
    assert sorted(floor.client_id for floor in floors) == ["app", "other"]
    stores.write(application_positions={1: position(99)}, deleted_sessions=[1], ended_applications=[1])
    assert [floor.generation for floor in stores.applications.floors()] == [2]


@pytest.mark.parametrize("stores", ["os"], indirect=True)
def test_a_file_that_is_just_being_made_is_an_empty_log(stores: Stores) -> None:
    connection = sqlite3.connect(stores.folder / "applications.db")
    connection.execute("CREATE TABLE other (x)")
    connection.commit()
    assert stores.applications.complete_offset() == 0
    connection.close()


@pytest.mark.promise("application-14")
@pytest.mark.parametrize("stores", ["fsync"], indirect=True)
def test_a_file_that_was_removed_and_made_anew_is_read(stores: Stores) -> None:
    path = stores.folder / "applications.db"
    for complete in (7, 3):
        connection = pipeline_file(path, "applications.sql")
        connection.execute("INSERT INTO progress VALUES ('dispatch', ?, 0)", (complete,))
        connection.execute("INSERT INTO application_log VALUES (1, 2, 1, x'')")
        assert stores.applications.complete_offset() == complete
        assert stores.applications.read(1, 0, 10) == [2]
        connection.close()
        for name in ("", "-wal", "-shm"):
            path.with_name(path.name + name).unlink(missing_ok=True)
        assert stores.applications.complete_offset() == 0


@pytest.mark.promise("pipeline-5")
@pytest.mark.parametrize("stores", ["fsync"], indirect=True)
def test_what_cannot_be_read_is_told_and_nobody_waits_for_it(stores: Stores) -> None:
    path = stores.folder / "applications.db"
    locker = pipeline_file(path, "applications.sql")
    locker.execute("PRAGMA journal_mode = DELETE")
    locker.execute("BEGIN EXCLUSIVE")
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="locked"):
        stores.applications.complete_offset()
    assert time.monotonic() - began < 30
    locker.execute("COMMIT")
    locker.close()
    assert stores.applications.complete_offset() == 0
    newer = pipeline_file(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    stores.reopen()
    with pytest.raises(StoreUnavailable, match="schema version 99"):
        stores.applications.complete_offset()
    path.unlink()
    path.write_bytes(b"no database" * 1_000)
    with pytest.raises(StoreError, match="file is not a database"):
        stores.applications.complete_offset()
    with pytest.raises(StoreError, match="file is not a database"):
        stores.applications.read(1, 0, 1)
    assert SqliteLogReaders(stores.folder).positions() == []


@pytest.mark.promise("pipeline-5")
def test_log_readers_are_what_the_files_say(tmp_path: Path) -> None:
    readers = SqliteLogReaders(tmp_path)
    assert readers.positions() == []
    sqlite3.connect(tmp_path / PIPELINE_FILES[0]).close()
    assert readers.positions() == []
    for number, name in enumerate(PIPELINE_FILES):
        connection = pipeline_file(tmp_path / name)
        connection.execute("INSERT INTO progress VALUES (?, ?, ?)", (f"reader {number}", 2**40 + number, 7))
        connection.commit()
        connection.close()
    assert readers.positions() == [
        LogReader(f"reader {number}", 2**40 + number, 7) for number in range(len(PIPELINE_FILES))
    ]


@pytest.fixture
def message_store(tmp_path: Path) -> Iterator[SqliteMessageStore]:
    store = SqliteMessageStore(tmp_path / "messages.db")
    yield store
    store.close()


def test_a_message_store_without_its_file_is_empty(message_store: SqliteMessageStore) -> None:
    assert message_store.get("t", 0) is None
    assert message_store.range("t", -1, 10) == []


def test_messages_come_back_with_everything(message_store: SqliteMessageStore, tmp_path: Path) -> None:
    connection = pipeline_file(tmp_path / "messages.db", "messages.sql")
    properties = (
        '{"payload_format_indicator": 1, "content_type": "text", "correlation_data": "AAH/",'
        ' "response_topic": "r", "user_properties": [{"name": "k", "value": "v"}, {"name": "k", "value": ""}]}'
    )
    statement = (
        'INSERT INTO message ("offset", topic, accepted_ms, qos, retain, publisher, version, expires_ms,'
    )
    statement += " properties, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    connection.execute(statement, (5, "t", 1_000, 2, 1, "p", 5, 2_000, properties, b"\x00five"))
    for offset in (9, 7, 8):
        connection.execute(statement, (offset, "t", 0, 1, 0, "p", 4, None, None, b""))
    connection.execute(statement, (6, "other", 0, 1, 0, "p", 4, None, None, b""))
    connection.commit()
    connection.close()
    five = message_store.get("t", 5)
    assert five is not None
    assert five.message == Message(
        "t",
        b"\x00five",
        2,
        True,
        "p",
        5,
        1_000,
        2_000,
        Properties(
            payload_format_indicator=1,
            content_type="text",
            response_topic="r",
            correlation_data=b"\x00\x01\xff",
            user_properties=(("k", "v"), ("k", "")),
        ),
    )
    assert message_store.get("t", 6) is None
    assert [found.offset for found in message_store.range("t", 5, 2)] == [7, 8]
    assert [found.offset for found in message_store.range("t", 8, 9)] == [9]
