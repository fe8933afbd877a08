"""What the errors of drivers mean to a port."""

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError, TimeoutError

from embermq.database.database_url import DatabaseUrl
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
