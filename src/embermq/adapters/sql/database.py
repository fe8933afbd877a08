"""One database on a server: a bounded pool of connections, and calls that fail soon while the server is away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError, TimeoutError

from embermq.database.database_url import DatabaseUrl, Kind, SqlSettings
from embermq.database.drivers import CONNECT_S_MIN, IDLE_S, connector
from embermq.ports.errors import StoreError, StoreFull, StoreUnavailable

TEXT_MAX = 500
_FULL_POSTGRESQL = {"53100"}
_FULL_MYSQL = {1021, 1114, 3, 20, 28}
_ENGINE_ERROR_MYSQL = 1030
"""`Got error 28 from storage engine`: the number of the system's error is in the text."""


def is_away(error: SQLAlchemyError) -> bool:
    """Whether the server could not be reached, or was lost on the way; not when it refused a statement."""
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    return error.connection_invalidated or error.statement is None


def to_store_error(error: SQLAlchemyError, doing: str, url: DatabaseUrl) -> StoreError:
    """Translate. The text names the store, and has no password and no values."""
    text = f"{doing} in {url.shown}: {_told(error, url)}"
    if _is_full(error):
        return StoreFull(text)
    if isinstance(error, OperationalError | InterfaceError | TimeoutError):
        return StoreUnavailable(text)
    return StoreError(text)


def _is_full(error: SQLAlchemyError) -> bool:
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state in _FULL_POSTGRESQL
    number, text = _mysql(error.orig)
    return number in _FULL_MYSQL or (number == _ENGINE_ERROR_MYSQL and "error 28" in text)


def _told(error: SQLAlchemyError, url: DatabaseUrl) -> str:
    """The driver's own words on one line."""
    if isinstance(error, TimeoutError):
        return "all connections of this process are in use, none became free in sql.timeout_s"
    text = str(error)
    if isinstance(error, DBAPIError):
        number, of_mysql = _mysql(error.orig)
        text = f"{of_mysql} ({number})" if number else str(error.orig)
    if url.password:
        text = text.replace(url.password, "***")
    text = " ".join(text.split())
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."


def _mysql(error: BaseException | None) -> tuple[int, str]:
    """Number and text of an error of PyMySQL, 0 and nothing for another's."""
    arguments: tuple[object, ...] = getattr(error, "args", ())
    if len(arguments) == 2 and isinstance(arguments[0], int):
        return arguments[0], str(arguments[1])
    return 0, ""


CONNECTIONS_MAX = 5
"""That one process keeps open: logins are answered from memory most often, and servers give few to each."""
RETRY_S = 1.0
"""After the server was not reached, calls fail at once for so long; then one call tries again."""
DIALECTS: dict[Kind, str] = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


class Database:
    """May be used by any thread. Nothing is opened before the first call.

    A connection is looked at before each use, so a server that was restarted costs nobody an error.
    """

    def __init__(self, url: DatabaseUrl, settings: SqlSettings, *, timeout_s: float | None = None) -> None:
        """`timeout_s`: how long a statement may take, when it is not what the settings say. Raises StoreUnavailable
        for files of certificates that cannot be used."""
        self.url = url
        try:
            connect = connector(url, settings, timeout_s or settings.timeout_s)
        except OSError as error:
            raise StoreUnavailable(f"stores.static: ca_file, cert_file: cannot be used: {error}") from error
        self._engine = create_engine(
            f"{DIALECTS[url.kind]}://",
            creator=connect,
            pool_size=CONNECTIONS_MAX,
            max_overflow=0,
            pool_timeout=settings.timeout_s,
            pool_recycle=IDLE_S // 2,
            pool_pre_ping=True,
            pool_use_lifo=True,
            isolation_level="READ COMMITTED",
            hide_parameters=True,
        )
        self._away = _Away(RETRY_S, 2 * max(CONNECT_S_MIN, settings.timeout_s))

    @contextmanager
    def begin(self, doing: str) -> Iterator[Connection]:
        """One transaction: committed at the end, rolled back when the body raises.

        Raises StoreError, whose text begins with `doing`. When the connection is lost during the commit itself, nobody
        knows whether it took place.
        """
        with self._told(doing), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def own_connection(self, doing: str) -> Iterator[Connection]:
        """A connection whose transactions are the caller's business, and which is closed at the end. Raises as
        `begin`."""
        with self._told(doing), self._engine.connect() as connection:
            try:
                yield connection
            finally:
                connection.invalidate()

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        self._away.check()
        try:
            yield
        except SQLAlchemyError as error:
            # In a variable here, the new error would hold this frame and the frame the error: what a driver left open
            # when it gave up would stay open as well.
            raise self._translate(error, doing) from error
        except BaseException:
            self._away.over()
            raise
        self._away.over()

    def _translate(self, error: SQLAlchemyError, doing: str) -> StoreError:
        told = to_store_error(error, doing, self.url)
        if is_away(error):
            self._away.found(str(told))
        elif not isinstance(error, TimeoutError):
            self._away.over()
        return told

    def close(self) -> None:
        """Close the connections; those in use follow when they are free."""
        self._engine.dispose()


class _Away:
    """Remembers that the server was not reached, so that those who come next need not find out again."""

    def __init__(self, retry_s: float, trial_s: float) -> None:
        self._retry_s = retry_s
        self._trial_s = trial_s
        self._lock = Lock()
        self._until_s = 0.0
        self._why = ""

    def check(self) -> None:
        """Raise StoreUnavailable while it is so. When the time is over, one caller passes, and the others wait for how
        that ends."""
        if not self._why:
            return
        with self._lock:
            now_s = time.monotonic()
            if self._why and now_s < self._until_s:
                raise StoreUnavailable(self._why)
            self._until_s = now_s + self._trial_s

    def found(self, why: str) -> None:
        with self._lock:
            self._why = why
            self._until_s = time.monotonic() + self._retry_s

    def over(self) -> None:
        self._why = ""
