"""What every parking place for bodies promises."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.stand_in_store import StandInParked

from embermq.adapters.sqlite.parked_messages import FILE_NAME, SqliteParkedBodies
from embermq.ports.errors import StoreError
from embermq.ports.parked_bodies import ParkedBodies, ParkedLog

pytestmark = pytest.mark.promise("pipeline-5")


@pytest.fixture(params=["sqlite", "stand-in"])
def parked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ParkedBodies]:
    if request.param == "stand-in":
        yield StandInParked()
        return
    bodies = SqliteParkedBodies(tmp_path)
    yield bodies
    bodies.close()


def test_what_is_parked_is_there_and_counted_once(parked: ParkedBodies) -> None:
    assert parked.logs() == []
    assert parked.get(1, 5) is None
    parked.put(1, [(5, b"five"), (7, b"seven")], 8)
    parked.put(1, [(7, b"seven"), (9, b"nine")], 10)
    parked.put(2, [(5, b"other")], 6)
    assert parked.get(1, 7) == b"seven"
    assert parked.get(1, 6) is None
    assert sorted(parked.logs(), key=lambda log: log.generation) == [
        ParkedLog(1, 10, 13),
        ParkedLog(2, 6, 5),
    ]


def test_what_is_dropped_is_gone_and_a_log_ends_with_its_last_body(parked: ParkedBodies) -> None:
    parked.put(1, [(5, b"five"), (7, b"seven"), (9, b"nine")], 10)
    assert parked.drop(1, 7) == 1
    assert (parked.get(1, 5), parked.get(1, 7)) == (None, b"seven")
    assert parked.logs() == [ParkedLog(1, 10, 9)]
    assert parked.drop_oldest(1, 1) == 1
    assert parked.logs() == [ParkedLog(1, 10, 4)]
    assert parked.drop(1, 10) == 1
    assert parked.logs() == []


def test_a_full_disk_is_told_and_what_follows_works(tmp_path: Path) -> None:
    parked = SqliteParkedBodies(tmp_path)
    parked.put(1, [(number, b"x" * 3_000) for number in range(20)], 20)
    connection = parked._open()
    assert connection is not None
    connection.execute(
        "CREATE TEMP TRIGGER full BEFORE DELETE ON parked_log BEGIN SELECT RAISE(ROLLBACK, 'full'); END"
    )
    connection.execute(
        "CREATE TEMP TRIGGER deny BEFORE DELETE ON parked_record BEGIN SELECT RAISE(FAIL, 'full'); END"
    )
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot remove parked records"):
            parked.drop(1, 20)
    connection.execute("DROP TRIGGER deny")
    with pytest.raises(StoreError, match="cannot remove parked records"):
        parked.drop(1, 20)
    connection.execute("DROP TRIGGER full")
    assert parked.drop(1, 20) == 20
    parked.close()


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1_000)
    parked = SqliteParkedBodies(tmp_path)
    with pytest.raises(StoreError):
        parked.logs()
    with pytest.raises(StoreError):
        parked.get(1, 1)
    (tmp_path / FILE_NAME).unlink()
    sqlite3.connect(tmp_path / FILE_NAME).close()
    assert parked.logs() == []
    parked.close()
