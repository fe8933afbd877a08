"""MariaDB from Debian's package, as a process of the test's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pymysql
from tests.support.sql_server import SqlServer, program

QUICK = {
    # Each commit is with the operating system: a killed process loses nothing, a machine that goes down may.
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "32M",
    "performance-schema": "OFF",
    "max-connections": "200",
}


class MariadbServer(SqlServer):
    """See the base. `settings` are options of mariadbd; a database has the server's own character set and collation
    (not UTF-8, and case counts for nothing), as an operator's may."""

    scheme = "mysql"
    account = "mysql"

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.settings = QUICK | {name.replace("_", "-"): value for name, value in settings.items()}

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def create(self) -> None:
        """See the base."""
        users = self.folder / "users.sql"
        users.write_text(
            f"CREATE USER IF NOT EXISTS '{self.user}'@'127.0.0.1' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO '{self.user}'@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        self.own(users)
        words = [f"--datadir={self.data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        words += ["--innodb-log-file-size=32M", "--skip-name-resolve"]
        install = program("mariadb-install-db", "usr/bin/mariadb-install-db")
        self.run([install, "--no-defaults", *words])

    def command(self) -> Sequence[str]:
        """See the base."""
        words = [
            f"--datadir={self.data}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--init-file={self.folder / 'users.sql'}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--skip-name-resolve",
            *(f"--{name}={value}" for name, value in self.settings.items()),
        ]
        return [program("mariadbd", "usr/sbin/mariadbd"), "--no-defaults", *words]

    def execute(self, statement: str, *, database: str | None = None) -> list[tuple[object, ...]]:
        """See the base."""
        with self._connection(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def answers(self) -> bool:
        """See the base."""
        try:
            self._connection(None).close()
        except pymysql.err.OperationalError:
            return False
        return True

    def _connection(self, database: str | None) -> pymysql.connections.Connection:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=self.user,
            password=self.password,
            database=database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=30,
        )
