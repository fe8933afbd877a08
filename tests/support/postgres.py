"""PostgreSQL from Debian's package, as a process of the test's own."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import psycopg
from tests.support.sql_server import SqlServer, program

PROGRAMS = "usr/lib/postgresql/*/bin/"
QUICK = {
    # A killed process loses nothing by this, only a machine that goes down does.
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_wal_size": "64MB",
    "autovacuum": "off",
}


class PostgresServer(SqlServer):
    """See the base. `settings` are those of postgresql.conf; a database is empty and in UTF-8."""

    scheme = "postgresql"
    account = "postgres"
    stop_signal = signal.SIGINT  # does not wait for clients to leave
    drop_option = "WITH (FORCE)"

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.settings = QUICK | settings

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def create(self) -> None:
        """See the base."""
        password = self.folder / "password"
        password.write_text(self.password + "\n")
        self.own(password)
        words = ["--no-sync", "--encoding=UTF8", "--locale=C.UTF-8", "--auth=scram-sha-256"]
        words += [f"--username={self.user}", f"--pwfile={password}", f"--pgdata={self.data}"]
        self.run([program("initdb", PROGRAMS + "initdb"), *words])

    def command(self) -> Sequence[str]:
        """See the base."""
        words = ["-D", str(self.data), "-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.folder)]
        for name, value in self.settings.items():
            words += ["-c", f"{name}={value}"]
        return [program("postgres", PROGRAMS + "postgres"), *words]

    def execute(self, statement: str, *, database: str | None = None) -> list[tuple[object, ...]]:
        """See the base."""
        with self._connection(database or "postgres") as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def answers(self) -> bool:
        """See the base."""
        try:
            self._connection("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def _connection(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=self.user,
            password=self.password,
            dbname=database,
            autocommit=True,
            connect_timeout=30,
        )
