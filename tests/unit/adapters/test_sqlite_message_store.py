"""The message store in a file that the pipeline is just making."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from embermq.adapters.sqlite.message_store import SqliteMessageStore


@pytest.mark.promise("pipeline-11")
def test_a_file_without_its_table_yet_has_no_messages(tmp_path: Path) -> None:
    path = tmp_path / "messages.db"
    sqlite3.connect(path).execute("PRAGMA user_version = 1").connection.close()
    for is_kafka in (False, True):
        with closing(SqliteMessageStore(path, is_kafka=is_kafka)) as store:
            assert list(store.range("a", -1, 10)) == []
