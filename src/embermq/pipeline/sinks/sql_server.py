"""One connection to the message store on a server: PostgreSQL, or MySQL and MariaDB.

The tables are made by the broker (adapters/sql); here they are only filled. A connection that has failed is given up,
the next use opens another one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

from embermq.database.database_url import DatabaseUrl, Kind, SqlSettings, parse_url
from embermq.database.drivers import connector
from embermq.formats.message_table import COLUMNS, SERVER_MESSAGES
from embermq.pipeline.errors import MessageServerError

Row = Sequence[Any]

COLUMNS_THERE = (*COLUMNS, "log_id", "topic_hash")
_NAMES = ", ".join(f'"{name}"' for name in COLUMNS_THERE)


class SqlServer(ABC):
    """Statements in one transaction. Names are quoted as the standard has it, in both kinds.

    It is pickled on its way to a task of Spark, without its connection.
    """

    def __init__(self, url: DatabaseUrl, settings: SqlSettings, timeout_s: float) -> None:
        self.place = url.shown
        self._made_of = (url, settings, timeout_s)
        self._password = url.password
        self._connect = connector(url, settings, timeout_s)
        self._connection: Any = None

    def __reduce__(self) -> tuple[type["SqlServer"], tuple[DatabaseUrl, SqlSettings, float]]:
        return type(self), self._made_of

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A cursor whose statements take effect all or none, durable when it returns.

        Raises MessageServerError, without the password, for what the server does not do.
        """
        try:
            if self._connection is None:
                self._connection = self._open()
            with self._connection.cursor() as cursor:
                yield cursor
            self._connection.commit()
        except BaseException as error:
            self.close()
            if isinstance(error, (*self.errors(), OSError)):
                raise MessageServerError(f"{self.place}: {self._told(error)}") from error
            raise

    @staticmethod
    @abstractmethod
    def errors() -> tuple[type[Exception], ...]:
        """The exceptions that the driver raises."""

    @abstractmethod
    def put(self, cursor: Any, rows: Iterable[Row]) -> None:
        """Add messages, in the order of COLUMNS_THERE; those whose position is there already stay as they are."""

    def close(self) -> None:
        """Let go of the connection; what was not committed is undone."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*self.errors(), OSError):
                connection.close()

    def _open(self) -> Any:
        connection: Any = self._connect()
        try:
            with connection.cursor() as cursor:
                self._prepare(cursor)
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    @abstractmethod
    def _prepare(self, cursor: Any) -> None:
        """What a new connection is told."""

    def _told(self, error: BaseException) -> str:
        """The driver's own words on one line."""
        text = " ".join(str(error).split())
        return text.replace(self._password, "***") if self._password else text


_POSTGRES_TYPES = {
    "partition": "int4",
    "offset": "int8",
    "topic": "text",
    "accepted_ms": "int8",
    "qos": "int2",
    "retain": "int2",
    "publisher": "text",
    "version": "int2",
    "expires_ms": "int8",
    "properties": "text",
    "payload": "bytea",
    "log_id": "int8",
    "topic_hash": "int8",
}


class PostgresServer(SqlServer):
    """Rows go into a temporary table by COPY, and from there into the store in one statement."""

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        import psycopg

        return (psycopg.Error,)

    def put(self, cursor: Any, rows: Iterable[Row]) -> None:
        cursor.execute(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS arrived (LIKE {SERVER_MESSAGES}) ON COMMIT DELETE ROWS"
        )
        with cursor.copy(f"COPY arrived ({_NAMES}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types([_POSTGRES_TYPES[name] for name in COLUMNS_THERE])
            for row in rows:
                copy.write_row(row)
        cursor.execute(
            f"INSERT INTO {SERVER_MESSAGES} ({_NAMES}) SELECT {_NAMES} FROM arrived ON CONFLICT DO NOTHING"
        )

    def _prepare(self, cursor: Any) -> None:
        # A position is told to the broker, which then lets go of the log: the commit has to be on the disk by then.
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false)"
            " WHERE current_setting('synchronous_commit') = 'off'"
        )


class MysqlServer(SqlServer):
    """Rows go into the store by statements of many rows."""

    _INSERT = (
        f"INSERT INTO {SERVER_MESSAGES} ({_NAMES}) VALUES ({', '.join('%s' for _ in COLUMNS_THERE)})"
        f' ON DUPLICATE KEY UPDATE "offset" = {SERVER_MESSAGES}."offset"'
    )
    _PAYLOAD = COLUMNS_THERE.index("payload")
    _PROPERTIES = COLUMNS_THERE.index("properties")
    _OFFSET = COLUMNS_THERE.index("offset")
    _ROOM_BYTES = 512 * 1024
    """For what is neither payload nor properties in a statement of one row: topic, client id, names, numbers."""

    _HEAD_BYTES = 64
    """What the protocol puts in front of a statement, and more."""
    _packet_bytes_max = 0

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        import pymysql

        return (pymysql.MySQLError,)

    def put(self, cursor: Any, rows: Iterable[Row]) -> None:
        cursor.max_stmt_length = min(cursor.max_stmt_length, self._packet_bytes_max // 2)
        fitting = self._fitting(cursor, rows)
        first = next(fitting, None)
        if first is not None:  # the driver takes no empty batch
            cursor.executemany(self._INSERT, chain((first,), fitting))

    def _fitting(self, cursor: Any, rows: Iterable[Row]) -> Iterator[Row]:
        """The server closes the connection, and says little, when a statement is larger than its limit."""
        for row in rows:
            # Each byte may have to be escaped, a character has up to four bytes.
            needed = 2 * len(row[self._PAYLOAD]) + 4 * len(row[self._PROPERTIES] or "") + self._ROOM_BYTES
            if needed > self._packet_bytes_max:
                needed = (
                    len(cursor.mogrify(self._INSERT, row).encode(errors="surrogateescape")) + self._HEAD_BYTES
                )
            if needed > self._packet_bytes_max:
                raise MessageServerError(
                    f"{self.place}: the message at offset {row[self._OFFSET]} has {len(row[self._PAYLOAD])} bytes;"
                    f" max_allowed_packet of the server is {self._packet_bytes_max}, it has to be at least {needed}"
                )
            yield row

    def _prepare(self, cursor: Any) -> None:
        # Strict: a text that does not fit is an error, not a shorter text.
        cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ANSI_QUOTES'")
        cursor.execute("SELECT @@max_allowed_packet")
        (self._packet_bytes_max,) = cursor.fetchone()


_KINDS: dict[Kind, type[SqlServer]] = {"postgresql": PostgresServer, "mysql": MysqlServer}


def sql_server(url: str, settings: SqlSettings, timeout_s: float) -> SqlServer:
    """The server of a URL, as `stores.static` names it; not connected yet. A statement may take `timeout_s`: batches
    are large, and nobody waits for them."""
    parsed = parse_url(url)
    return _KINDS[parsed.kind](parsed, settings, timeout_s)
