"""Opening database files, and what SQLite's errors mean to a port."""

import sqlite3
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from embermq.formats.stored_version import version_refusal
from embermq.ports.errors import StoreError, StoreFull, StoreUnavailable

BUSY_TIMEOUT_MS = 5_000
PAGE_BYTES = 4096
SCHEMA = 16
"""The version of broker.db."""
Now = Callable[[], int]
"""The broker's time in milliseconds, from any thread."""

_FULL = {sqlite3.SQLITE_FULL}
_NO_MEMORY = {sqlite3.SQLITE_IOERR_NOMEM, sqlite3.SQLITE_IOERR_SHMMAP}
_HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_BUSY = {*_HELD, sqlite3.SQLITE_CANTOPEN}
_DAMAGED = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}
_WRITE_FAILED = {
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_FSYNC,
}


def wall_ms() -> int:
    """The time of who has no broker's."""
    return time.time_ns() // 1_000_000


def to_store_error(error: sqlite3.Error, doing: str) -> StoreError:
    """Translate; a failed write counts as *full* because the usual cause is a quota or a full disk. Raises MemoryError
    for what is the lack of it."""
    code = getattr(error, "sqlite_errorcode", 0)
    text = f"{doing}: {error}"
    if code in _NO_MEMORY:
        raise MemoryError(text)
    if code & 0xFF in _FULL or code in _WRITE_FAILED:
        return StoreFull(text)
    if code & 0xFF in _HELD:
        text += (
            f": another program has held the file for {BUSY_TIMEOUT_MS / 1000:g} s, such as a shell of SQLite in a "
            "transaction, or a copy; end that one (fuser names it) and start again"
        )
    if code & 0xFF in _BUSY:
        return StoreUnavailable(text)
    if code & 0xFF in _DAMAGED:
        return StoreError(f"{text}: it is damaged, put a backup in its place (embermq restore)")
    return StoreError(text)


def open_writer(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """The one writing connection of a file. `synchronous` is FULL, NORMAL or OFF.

    It may be used by another thread while the owner waits for it.
    """
    try:
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        _prepare(
            connection,
            f"""
            PRAGMA busy_timeout = {BUSY_TIMEOUT_MS};
            PRAGMA page_size = {PAGE_BYTES};
            PRAGMA journal_mode = WAL;
            PRAGMA synchronous = {synchronous};
            PRAGMA secure_delete = OFF;
            PRAGMA temp_store = MEMORY;
            PRAGMA cache_size = -8000;
            PRAGMA journal_size_limit = 67108864;
            """,
        )
    except sqlite3.Error as error:
        raise to_store_error(error, f"cannot open {path}") from error
    return connection


def open_reader(path: Path, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> sqlite3.Connection:
    """A read-only connection; raises StoreUnavailable when there is no such file."""
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        _prepare(connection, f"PRAGMA busy_timeout = {busy_timeout_ms}; PRAGMA cache_size = -4000;")
    except sqlite3.Error as error:
        raise to_store_error(error, f"cannot open {path}") from error
    return connection


def apply_broker_schema(connection: sqlite3.Connection) -> None:
    """Create what is missing in broker.db. Raises StoreUnavailable, and changes nothing, for a file of a version that
    this program does not open."""
    try:
        version = stored_version(connection)
        if version is not None and (problem := version_refusal("broker.db", version, SCHEMA)):
            raise StoreUnavailable(problem)
        connection.executescript(files(__package__).joinpath("broker.sql").read_text())
        if version is None:
            connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", (SCHEMA,))
    except sqlite3.Error as error:
        raise to_store_error(error, "cannot prepare broker.db") from error


def stored_version(connection: sqlite3.Connection) -> int | None:
    """The version of a broker.db; None when it is new."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchone() is None:
        return None
    row = connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()
    return None if row is None else int(row[0])


def check_user_version(connection: sqlite3.Connection, name: str, known: int) -> None:
    """Give a new file its version, kept as `user_version`, and check that of another.

    Raises StoreUnavailable, and changes nothing, for a version that this program does not open.
    """
    is_empty = connection.execute("SELECT 1 FROM sqlite_schema").fetchone() is None
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if is_empty and version == 0:
        # Before its first table: who finds a table finds a version, also after a crash, and beside another process.
        connection.execute(f"PRAGMA user_version = {known}")
    elif problem := version_refusal(name, version, known):
        raise StoreUnavailable(problem)


def log_identity(connection: sqlite3.Connection) -> int:
    """Which message log broker.db holds, 0 to 2^62: it stays over restarts and with a copy, and no other log has it."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'log_id'").fetchone()
    return int(row[0])


def _prepare(connection: sqlite3.Connection, script: str) -> None:
    """Set what is to hold for a connection; one that cannot have it is closed."""
    try:
        connection.executescript(script)
    except sqlite3.Error:
        connection.close()
        raise
