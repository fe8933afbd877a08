"""A table of an operator's, in PostgreSQL, MySQL or MariaDB, to which rows are added that it does not have yet.

Its column `ember_id` is unique, and says which row of which message one is. Rows that are there already are looked for
in the transaction that adds the others: `ON DUPLICATE KEY` would say nothing of other keys that a row breaks.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from typing import Any

from embermq.database.database_url import DatabaseUrl, SqlSettings
from embermq.database.drivers import IDLE_S, connector
from embermq.pipeline.errors import RuleError
from embermq.pipeline.rules.settings import ID_COLUMN

TIMEOUT_S = 30.0
"""Of a statement: the rule waits, and nobody else."""
RENEWED_S = IDLE_S / 2
"""A connection that did nothing for so long is opened anew, before the server has ended it."""
_CHECK_FAILED = ((3819,), (4025,))
"""A row breaks a CHECK, in the numbers of MySQL and MariaDB."""
_FAULTS_OF_DATA = ("22", "23")
"""Classes of SQLSTATE: a value that is none of its type or out of its range, and a constraint."""
_UNIQUE = """
SELECT MAX(used.column_name) FROM information_schema.key_column_usage AS used
JOIN information_schema.table_constraints AS made ON made.table_schema = used.table_schema
    AND made.table_name = used.table_name AND made.constraint_name = used.constraint_name
WHERE made.constraint_type IN ('PRIMARY KEY', 'UNIQUE') AND used.table_name = %s AND used.table_schema = {schema}
GROUP BY used.constraint_name HAVING COUNT(*) = 1
"""
"""Columns that are unique by themselves."""

_COLUMN = """
SELECT data_type, character_maximum_length FROM information_schema.columns
WHERE table_name = %s AND table_schema = {schema} AND column_name = %s
"""
_TEXTS = ("character varying", "text", "varchar", "char")
"""Types of a column that give back the id that was put there: `CHAR` of PostgreSQL, `character`, adds spaces."""
_ROOM_BYTES = 64
"""What the protocol of MySQL puts in front of a statement, and more."""

Given = tuple[str, tuple[str, ...], tuple[object, ...]]
"""A row: id, names of its columns, values."""


class RuleTable:
    """One table over one connection, which is given up after an error and opened by the next use."""

    def __init__(self, url: DatabaseUrl, settings: SqlSettings, table: str) -> None:
        self.place = f"{url.shown}, table {table}"
        self._password = url.password
        self._connect = connector(url, settings, TIMEOUT_S)
        self._is_postgresql = url.kind == "postgresql"
        self._schema, _, self._table = table.rpartition(".")
        quote = '"' if self._is_postgresql else "`"
        self._quoted = f"{quote}{{}}{quote}".format
        self._connection: Any = None
        self._used_s = 0.0
        self._packet_bytes_max = 0
        """Of a statement to MySQL or MariaDB, which end the connection when there is more of it."""

    def check(self, id_characters: int) -> None:
        """Raise RuleError for a table that is not there, where an id may come twice, or where ids of so many characters
        are not kept as they are."""
        current = "current_schema()" if self._is_postgresql else "DATABASE()"
        words = (self._table, self._schema) if self._schema else (self._table,)
        statement = _UNIQUE.format(schema="%s" if self._schema else current)
        with self._transaction() as cursor:
            cursor.execute(statement, words)
            found = [row[0] for row in cursor.fetchall()]
            cursor.execute(_COLUMN.format(schema="%s" if self._schema else current), (*words, ID_COLUMN))
            column = cursor.fetchone()
        if ID_COLUMN not in found or column is None:
            raise RuleError(
                f"{self.place}: is not there, or has no column {ID_COLUMN} that is its primary key or unique"
            )
        kind, characters = column
        if kind not in _TEXTS or (characters is not None and characters < id_characters):
            raise RuleError(
                f"{self.place}: {ID_COLUMN} is {kind} of {characters} characters; it has to be VARCHAR of at least"
                f" {id_characters}, else an id is not kept as it is"
            )

    def add(self, rows: Sequence[Given]) -> dict[str, str]:
        """All rows whose id is not there yet; why the table can never have some of them, by id. Durable when it
        returns. Raises RuleError for what may pass."""
        try:
            self._add(rows)
        except self._errors() as error:
            if len(rows) == 1:
                return {rows[0][0]: self._told(error)}
            return {key: why for row in rows for key, why in self.add([row]).items()}
        return {}

    def close(self) -> None:
        """Let go of the connection; what was not committed is undone."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*self._errors(), OSError):
                connection.close()

    def _add(self, rows: Sequence[Given]) -> None:
        name, table = self._quoted, self._quoted(self._table)
        if self._schema:
            table = f"{name(self._schema)}.{table}"
        asked = ", ".join(["%s"] * len(rows))
        with self._transaction() as cursor:
            cursor.execute(
                f"SELECT {name(ID_COLUMN)} FROM {table} WHERE {name(ID_COLUMN)} IN ({asked})",
                [row[0] for row in rows],
            )
            known = {row[0] for row in cursor.fetchall()}
            new = [(key, *values) for key, _, values in rows if key not in known]
            if new:
                self._refuse_what_is_no_number(new)
                columns = (ID_COLUMN, *rows[0][1])
                names, places = ", ".join(map(name, columns)), ", ".join(["%s"] * len(columns))
                statement = f"INSERT INTO {table} ({names}) VALUES ({places})"
                self._refuse_what_is_too_large(cursor, statement, new)
                cursor.executemany(statement, new)

    def _refuse_what_is_no_number(self, rows: Sequence[tuple[object, ...]]) -> None:
        """The driver for MySQL, which has none of them, counts this as a fault of the program."""
        if self._is_postgresql:
            return
        import pymysql

        for value in (value for row in rows for value in row if isinstance(value, float)):
            if not isfinite(value):
                raise pymysql.err.DataError(f"MySQL and MariaDB have no {value}")

    def _refuse_what_is_too_large(
        self, cursor: Any, statement: str, rows: Sequence[tuple[object, ...]]
    ) -> None:
        """MySQL and MariaDB end the connection over a statement that is larger than they allow, which would look as if
        they were away."""
        if self._is_postgresql:
            return
        import pymysql

        cursor.max_stmt_length = min(cursor.max_stmt_length, self._packet_bytes_max // 2)
        for row in rows:
            said = cursor.mogrify(statement, row).encode(errors="surrogateescape")
            if len(said) + _ROOM_BYTES > self._packet_bytes_max:
                raise pymysql.err.DataError(
                    f"the row takes a statement of {len(said)} bytes,"
                    f" max_allowed_packet of the server is {self._packet_bytes_max}"
                )

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A cursor whose statements take effect all or none. Raises RuleError, or what the driver says where that is
        the fault of a row."""
        if time.monotonic() - self._used_s > RENEWED_S:
            self.close()
        try:
            if self._connection is None:
                self._connection = self._open()
            with self._connection.cursor() as cursor:
                yield cursor
            self._connection.commit()
            self._used_s = time.monotonic()
        except BaseException as error:
            self.close()
            if self._is_of_a_row(error) or not isinstance(error, (*self._errors(), OSError)):
                raise
            raise RuleError(f"{self.place}: {self._told(error)}") from error

    def _open(self) -> Any:
        connection: Any = self._connect()
        try:
            with connection.cursor() as cursor:
                # What a time means is not left to the server's settings.
                cursor.execute("SET TIME ZONE 'UTC'" if self._is_postgresql else "SET time_zone = '+00:00'")
                if not self._is_postgresql:
                    cursor.execute("SELECT @@max_allowed_packet")
                    (self._packet_bytes_max,) = cursor.fetchone()
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def _errors(self) -> tuple[type[Exception], ...]:
        if self._is_postgresql:
            import psycopg

            return (psycopg.Error,)
        import pymysql

        return (pymysql.MySQLError,)

    def _is_of_a_row(self, error: BaseException) -> bool:
        """The driver for MySQL counts some of them as faults of the server: it knows a part of the numbers."""
        if self._is_postgresql:
            import psycopg

            return isinstance(error, psycopg.DataError | psycopg.IntegrityError)
        import pymysql

        if isinstance(error, pymysql.err.DataError | pymysql.err.IntegrityError):
            return True
        state = getattr(error, "sqlstate", None) or ""
        return isinstance(error, pymysql.MySQLError) and (
            state.startswith(_FAULTS_OF_DATA) or error.args[:1] in _CHECK_FAILED
        )

    def _told(self, error: BaseException) -> str:
        """The driver's own words on one line."""
        text = " ".join(str(error).split())
        return text.replace(self._password, "***") if self._password else text
