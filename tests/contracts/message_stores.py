"""Every message store: what the pipeline writes with, and what the broker and people read with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from tests.support.sql_server import SqlServer

from embermq.adapters.sql.database import Database
from embermq.adapters.sql.message_store import SqlMessageStore
from embermq.adapters.sql.tables import make_tables
from embermq.adapters.sqlite.connection import apply_broker_schema, log_identity, open_writer
from embermq.adapters.sqlite.message_store import SqliteMessageStore
from embermq.database.database_url import SqlSettings, parse_url
from embermq.formats.message_table import COLUMNS
from embermq.pipeline.places import Places
from embermq.pipeline.sinks.message_file import MessageFile, MessageStoreSink
from embermq.pipeline.sinks.message_server import MessageServer
from embermq.pipeline.sinks.sql_server import sql_server
from embermq.pipeline.sources.log_file import embedded_log_id
from embermq.ports.message_store import MessageStore

Kind = Literal["sqlite", "postgres", "mariadb"]
KINDS: tuple[Kind, ...] = ("sqlite", "postgres", "mariadb")
SERVERS: tuple[Kind, ...] = ("postgres", "mariadb")
NOON_MS = 1_750_000_000_000
SINK_S = 5.0
"""How long a sink waits for an answer."""
SETTINGS = SqlSettings(timeout_s=5.0)

_TYPES: dict[str, pa.DataType] = {
    "offset": pa.int64(),
    "span": pa.int64(),
    "error": pa.string(),
    "partition": pa.int32(),
    "topic": pa.string(),
    "accepted_ms": pa.int64(),
    "qos": pa.int32(),
    "retain": pa.int32(),
    "publisher": pa.string(),
    "version": pa.int32(),
    "expires_ms": pa.int64(),
    "properties": pa.string(),
    "payload": pa.binary(),
}
SCHEMA = pa.schema(list(_TYPES.items()))
"""What `stored_messages` gives."""


def message(offset: int, **fields: object) -> dict[str, object]:
    """A row with defaults that suit a test."""
    usual: dict[str, object] = {
        "offset": offset,
        "span": 1,
        "error": None,
        "partition": 0,
        "topic": "t",
        "accepted_ms": NOON_MS,
        "qos": 1,
        "retain": 0,
        "publisher": "pump",
        "version": 4,
        "expires_ms": None,
        "properties": None,
        "payload": b"%d" % offset,
    }
    return usual | fields


def poison(offset: int, span: int = 1) -> dict[str, object]:
    """Positions that are no message."""
    return dict.fromkeys(COLUMNS) | {"offset": offset, "span": span, "error": "cannot decode"}


def table(rows: Sequence[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), SCHEMA)


def new_log(folder: Path) -> int:
    """A broker's message log with nothing in it; its identity."""
    with closing(open_writer(folder / "broker.db", synchronous="OFF")) as connection:
        apply_broker_schema(connection)
        return log_identity(connection)


class MessageStores:
    """One store, empty. `sinks` and `readers` may be opened several times, as several processes do."""

    def __init__(self, kind: Kind, folder: Path, server: SqlServer | None, *, url: str = "") -> None:
        """`url`: a database that is there already, and stays."""
        self.kind = kind
        self.places = Places(folder)
        self.server = server
        self.url = url
        self.log_id = new_log(folder)
        self._own = server is not None and not url
        if server is not None and not url:
            self.url = server.database()
            make_tables(parse_url(self.url), SETTINGS)

    def open_sink(self) -> MessageStoreSink:
        """As the archive does, which opens it once more before each start."""
        places = self.places
        if not self.url:
            return MessageFile(places.messages)
        return MessageServer(
            sql_server(self.url, SETTINGS, SINK_S), places.archive, partial(embedded_log_id, places.broker)
        )

    def open_reader(self) -> MessageStore:
        if not self.url:
            return SqliteMessageStore(self.places.messages)
        return SqlMessageStore(Database(parse_url(self.url), SETTINGS), self.log_id)

    @contextmanager
    def sink(self) -> Iterator[MessageStoreSink]:
        with closing(self.open_sink()) as sink:
            sink.open()
            yield sink

    @contextmanager
    def reader(self) -> Iterator[MessageStore]:
        with closing(self.open_reader()) as reader:
            yield reader

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Of a server, whose database stands for `{database}`."""
        assert self.server is not None
        return self.server.execute(statement, database=self.url.rpartition("/")[2])

    def close(self) -> None:
        if self.server is not None and self._own:
            self.server.drop(self.url)
