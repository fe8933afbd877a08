"""A message log has an identity of its own, by which stores on servers know it."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from embermq.adapters.sqlite.connection import apply_broker_schema, log_identity, open_writer
from embermq.pipeline.sources.log_file import BrokerFile

IDENTITIES_BELOW = 2**62


def identity_of(path: Path) -> int:
    with closing(open_writer(path, synchronous="OFF")) as connection:
        apply_broker_schema(connection)
        return log_identity(connection)


def test_a_log_keeps_its_identity_and_no_other_has_it(tmp_path: Path) -> None:
    first, second, copy = tmp_path / "first.db", tmp_path / "second.db", tmp_path / "copy.db"
    given = identity_of(first)
    assert 0 < given <= IDENTITIES_BELOW
    assert identity_of(first) == given
    assert identity_of(second) != given
    shutil.copyfile(first, copy)
    assert identity_of(copy) == given


def test_a_log_from_before_there_were_identities_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    identity_of(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM meta WHERE name = 'log_id'")
        connection.commit()
    before = BrokerFile(path)
    assert before.log_identity() == 0
    before.close()
    given = identity_of(path)
    assert given > 0
    log = BrokerFile(path)
    assert log.log_identity() == given
    log.close()
