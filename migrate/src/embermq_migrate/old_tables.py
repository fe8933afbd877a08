"""The tables of TBMQ 1.x in PostgreSQL: what stands in them, and how they are cut into pieces.

`device_publish_msg` has one row a message that a client has not acknowledged, by (client_id, serial_number);
`device_session_ctx` one row a client. Serial numbers grow by one a client from 0 on, packet ids run from 1 to 65534 and
begin again. `time` is when the row was written, Unix milliseconds; `msg_expiry_interval` counts seconds from then on.
`user_properties` is JSON: {"props": [{"k": name, "v": value}, ...]}.

A piece is a range of client ids, in the database's own order, so that each is one walk along the primary key.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from embermq_migrate.errors import MigrationError

if TYPE_CHECKING:
    from psycopg import Connection

MESSAGES = "device_publish_msg"
SESSIONS = "device_session_ctx"
CONNECT_TIMEOUT_S = 10
FETCH_ROWS = 2_000

REQUIRED: dict[str, dict[str, str]] = {
    MESSAGES: {
        "client_id": "text",
        "serial_number": "bigint",
        "topic": "text",
        "time": "bigint",
        "packet_id": "bigint",
        "packet_type": "text",
        "qos": "bigint",
        "payload": "bytea",
    },
    SESSIONS: {"client_id": "text", "last_packet_id": "bigint"},
}
"""Columns that every 1.x has, and what they are read as."""
LATER: dict[str, str] = {
    "user_properties": "text",
    "retain": "boolean",
    "msg_expiry_interval": "bigint",
    "payload_format_indicator": "bigint",
    "content_type": "text",
    "response_topic": "text",
    "correlation_data": "bytea",
}
"""Columns of device_publish_msg that came with later versions: absent ones are read as null."""
_KEY = "client_id, serial_number"


class Piece(Struct, frozen=True):
    """Clients from `first` to `last`, both included. Without a client id: the rows that have none."""

    number: int
    first: str | None
    last: str | None
    clients: int
    messages: int


class OldTables:
    """Reads both tables over one connection, a piece at a time. Raises MigrationError, which never shows a password."""

    def __init__(self, url: str, schema: str = "public") -> None:
        self._schema = schema
        self._connection = connect(url)
        self._absent = self._check_columns()

    @property
    def absent(self) -> tuple[str, ...]:
        """Columns that this 1.x did not have yet."""
        return self._absent

    def close(self) -> None:
        """Leave the database."""
        self._connection.close()

    def cut(self, rows_max: int, clients_max: int) -> Iterator[Piece]:
        """Every client in one piece; a piece has at most that many clients, and one client more than fits its rows."""
        number = clients = messages = 0
        first: str | None = None
        last = ""
        with _told(f"cannot count the rows of {MESSAGES}"):
            for client_id, count in self._stream(self._counted()):
                if clients and (messages + count > rows_max or clients >= clients_max):
                    yield Piece(number, first, last, clients, messages)
                    number, clients, messages, first = number + 1, 0, 0, None
                first = client_id if first is None else first
                last = client_id
                clients += 1
                messages += count
            if clients:
                yield Piece(number, first, last, clients, messages)
                number += 1
            nobody = self._nobody_messages()
        if nobody:
            yield Piece(number, None, None, 0, nobody)

    def sessions(self, piece: Piece) -> dict[str, int | None]:
        """Client id -> last packet id, of a piece's clients that have a row in device_session_ctx."""
        if piece.first is None:
            return {}
        query = (
            f"SELECT client_id::text, last_packet_id::bigint FROM {self._table(SESSIONS)}"
            " WHERE client_id BETWEEN %s AND %s"
        )
        with _told(f"cannot read {SESSIONS}"):
            return dict(self._stream(query, (piece.first, piece.last)))

    def counts(self, piece: Piece) -> dict[str, int]:
        """Client id -> how many messages it has."""
        if piece.first is None:
            return {}
        query = (
            f"SELECT client_id::text, count(*) FROM {self._table(MESSAGES)}"
            " WHERE client_id BETWEEN %s AND %s GROUP BY client_id"
        )
        with _told(f"cannot count the rows of {MESSAGES}"):
            return dict(self._stream(query, (piece.first, piece.last)))

    def messages(self, piece: Piece, payload_bytes_max: int) -> Iterator[tuple[Any, ...]]:
        """Rows of `MESSAGE_COLUMNS`, by client and serial number. Of a payload above the limit only
        the size comes."""
        columns = [f"{name}::{kind}" for name, kind in REQUIRED[MESSAGES].items() if name != "payload"]
        columns.append("CASE WHEN octet_length(payload) <= %s THEN payload::bytea END")
        columns.append("octet_length(payload)::bigint")
        columns += [
            f"NULL::{kind}" if name in self._absent else f"{name}::{kind}" for name, kind in LATER.items()
        ]
        query = f"SELECT {', '.join(columns)} FROM {self._table(MESSAGES)}"
        if piece.first is None:
            query += " WHERE client_id IS NULL OR client_id = ''"
            values: tuple[object, ...] = (payload_bytes_max,)
        else:
            query += f" WHERE client_id BETWEEN %s AND %s ORDER BY {_KEY}"
            values = (payload_bytes_max, piece.first, piece.last)
        with _told(f"cannot read {MESSAGES}"):
            yield from self._stream(query, values)

    def _table(self, name: str) -> str:
        schema = self._schema.replace('"', '""').replace("%", "%%")
        return f'"{schema}".{name}'

    def _counted(self) -> str:
        return (
            "SELECT client_id::text, sum(messages)::bigint FROM ("
            f"SELECT client_id, count(*) AS messages FROM {self._table(MESSAGES)}"
            " WHERE client_id <> '' GROUP BY client_id"
            f" UNION ALL SELECT client_id, 0 FROM {self._table(SESSIONS)} WHERE client_id <> ''"
            ") AS counted GROUP BY client_id ORDER BY client_id"
        )

    def _nobody_messages(self) -> int:
        query = f"SELECT count(*) FROM {self._table(MESSAGES)} WHERE client_id IS NULL OR client_id = ''"
        return int(next(self._stream(query))[0])

    def _check_columns(self) -> tuple[str, ...]:
        query = (
            "SELECT table_name::text, column_name::text FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name IN (%s, %s)"
        )
        found: dict[str, set[str]] = {}
        with _told("cannot look for the 1.x tables"):
            for table, column in self._stream(query, (self._schema, MESSAGES, SESSIONS)):
                found.setdefault(table, set()).add(column)
        for table in REQUIRED:
            if table not in found:
                raise MigrationError(
                    f"the database has no table {table} in the schema {self._schema} that this user may read:"
                    " is it the one of a TBMQ 1.x? From version 2.0 on it has its messages in Redis"
                )
        for table, columns in REQUIRED.items():
            missing = [name for name in columns if name not in found[table]]
            if missing:
                raise MigrationError(
                    f"{table} has no column {', '.join(missing)}: it is not a table of TBMQ 1.x"
                )
        return tuple(name for name in LATER if name not in found[MESSAGES])

    def _stream(self, query: str, values: tuple[object, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows through a cursor of the server, so that neither side holds them all."""
        with self._connection.transaction(), self._connection.cursor("rows", binary=True) as cursor:
            cursor.itersize = FETCH_ROWS
            cursor.execute(query.encode(), values)
            yield from cursor


def connect(url: str) -> "Connection[tuple[Any, ...]]":
    """A read-only connection. Raises MigrationError that names the server, never the password."""
    try:
        import psycopg
    except ImportError as error:
        raise MigrationError(
            "reading PostgreSQL needs embermq[servers]: run `make servers`, or pip install 'embermq[servers]'"
        ) from error
    if _is_unquoted(url):
        raise _not_understood(url)
    try:
        connection = psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            client_encoding="UTF8",
            application_name="embermq pipeline migrate",
        )
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    except psycopg.ProgrammingError:  # its text would repeat parts of the URL
        raise _not_understood(url) from None
    except psycopg.Error as error:
        raise MigrationError(f"cannot reach {shown_url(url)}: {_first_line(error)}") from None
    return connection


def _not_understood(url: str) -> MigrationError:
    return MigrationError(
        f"the address {shown_url(url)} cannot be understood: postgresql://USER:PASSWORD@HOST:PORT/DATABASE,"
        " with %XX for special characters of the password"
    )


def shown_url(url: str) -> str:
    """The URL without user, password and parameters; its beginning alone where those cannot be told from the host."""
    scheme, _, rest = url.partition("://")
    place = "..." if _is_unquoted(url) else rest.partition("?")[0].rpartition("@")[2]
    return f"{scheme}://{place}"


def _is_unquoted(url: str) -> bool:
    """Whether a password has `@`, `/` or `?` as they are: the driver takes a part of it for the host, and says so."""
    rest = url.partition("://")[2]
    before_path = rest.partition("/")[0]
    user, at, _ = before_path.rpartition("@")
    return "@" in user or "?" in user or (not at and "@" in rest.partition("?")[0])


@contextmanager
def _told(doing: str) -> Iterator[None]:
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise MigrationError(f"{doing}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
