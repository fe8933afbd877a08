"""The SQL servers that other tests stand on: they keep what was committed, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.mariadb import MariadbServer
from tests.support.postgres import PostgresServer
from tests.support.sql_server import SqlServer


def test_what_was_committed_outlives_a_kill(sql_server: SqlServer) -> None:
    database = sql_server.database().rpartition("/")[2]
    sql_server.execute("CREATE TABLE t (a int)", database=database)
    sql_server.execute("INSERT INTO t VALUES (1)", database=database)
    sql_server.kill()
    assert not sql_server.is_running
    assert not sql_server.answers()
    sql_server.start()
    assert list(sql_server.execute("SELECT a FROM t", database=database)) == [(1,)]
    sql_server.drop(f"/{database}")


@pytest.mark.parametrize("kind", [PostgresServer, MariadbServer])
def test_nothing_is_left_behind(kind: type[SqlServer]) -> None:
    with kind() as server:
        pid, folder = server.pid, server.folder
        assert server.answers()
    assert not Path(f"/proc/{pid}").exists()
    assert not folder.exists()
