"""Files that cannot be used are let go of."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embermq.pipeline.sinks.sink_file import SinkFile
from embermq_migrate.migration_file import MigrationFile

OPENINGS: list[Callable[[Path], object]] = [
    lambda path: SinkFile(path, "reader"),
    MigrationFile,
]


@pytest.mark.parametrize("opens", OPENINGS, ids=["sink", "migration"])
def test_a_damaged_file_does_not_stay_open(
    opens: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "damaged.db"
    path.write_bytes(b"no database" * 1_000)
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connects(*given: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*given, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connects)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        opens(path)
    (connection,) = opened
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        connection.execute("SELECT 1")
