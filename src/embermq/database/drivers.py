"""Opening one connection to a server: addresses, encryption, and an end to every wait."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Generator
from math import ceil
from traceback import clear_frames
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine.interfaces import DBAPIConnection

from embermq.database.database_url import DatabaseUrl, SqlSettings

if TYPE_CHECKING:
    from psycopg.abc import PQGen

IDLE_TRANSACTION_S = 60
"""A process that vanished in the middle of a change holds up others for so long."""
CONNECT_S_MIN = 2
"""PostgreSQL's library takes whole seconds, and 1 for 2."""
IDLE_S = 300
"""MySQL ends connections that did nothing for so long; ours are renewed before."""

Connect = Callable[[], DBAPIConnection]


def connector(url: DatabaseUrl, settings: SqlSettings, timeout_s: float) -> Connect:
    """What opens a connection whose statements take `timeout_s` at most, whatever becomes of the server. Opening
    takes no longer than the settings say, also where statements may take longer."""
    tls = url.tls if url.tls != "auto" else "off" if url.is_local else "verify"
    if url.kind == "postgresql":
        return _postgresql(url, settings, tls, timeout_s)
    return _mysql(url, settings, tls, timeout_s)


def _postgresql(url: DatabaseUrl, settings: SqlSettings, tls: str, timeout_s: float) -> Connect:
    import psycopg

    given: dict[str, Any] = {
        "host": url.socket or url.host,
        "port": url.port,
        "user": url.user or None,
        "password": url.password or None,
        "dbname": url.database,
        "connect_timeout": max(CONNECT_S_MIN, ceil(settings.timeout_s)),
        "application_name": "embermq",
        "client_encoding": "utf8",  # else that of the database, and with SQL_ASCII texts come as bytes
        "sslmode": {"off": "disable", "require": "require", "verify": "verify-full"}[tls],
        "sslrootcert": (url.ca_file or _system_authorities()) if tls == "verify" else None,
        "sslcert": url.cert_file or None,
        "sslkey": url.cert_file or None,
    }
    session = (
        f"SET statement_timeout = {round(timeout_s * 1000)};"
        f"SET idle_in_transaction_session_timeout = {IDLE_TRANSACTION_S * 1000}"
    )

    class BoundedConnection(psycopg.Connection[Any]):
        """The server ends a statement that takes too long; this one also stops waiting for a server that does nothing
        any more."""

        def wait(self, gen: PQGen[Any], *given: Any, **named: Any) -> Any:
            deadline_s = time.monotonic() + timeout_s + 1
            try:
                return super().wait(_until(gen, deadline_s), *given, **named)
            except _TookTooLong:
                self.pgconn.finish()
                raise psycopg.OperationalError(f"the server did not answer in {timeout_s + 1:g} s") from None

    def connect() -> DBAPIConnection:
        try:
            connection = BoundedConnection.connect(**given, autocommit=True)
        except psycopg.Error as error:
            # The driver's frame and its error hold one another, and the socket of an attempt that it gave up.
            clear_frames(error.__traceback__)
            raise
        try:
            connection.execute(session.encode())
            connection.autocommit = False
        except psycopg.Error:
            connection.close()
            raise
        return connection  # type: ignore[return-value]

    return connect


class _TookTooLong(Exception):
    """The deadline of a wait has passed."""


def _until(gen: PQGen[Any], deadline_s: float) -> Generator[Any, Any, Any]:
    """The driver resumes what it waits for several times a second, also when nothing came."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            wanted = gen.send(ready)
            if time.monotonic() > deadline_s:
                raise _TookTooLong
    except StopIteration as end:
        return end.value


def _mysql(url: DatabaseUrl, settings: SqlSettings, tls: str, timeout_s: float) -> Connect:
    import pymysql
    from pymysql.constants.CLIENT import FOUND_ROWS

    given: dict[str, Any] = {
        "user": url.user or None,
        "password": url.password,
        "database": url.database,
        "charset": "utf8mb4",
        "client_flag": FOUND_ROWS,  # an UPDATE tells how many rows it found, as SQLAlchemy expects
        "connect_timeout": settings.timeout_s,
        "read_timeout": timeout_s,
        "write_timeout": timeout_s,
        # Without strictness MySQL cuts what is too long, and says nothing.
        "init_command": (
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
            f"innodb_lock_wait_timeout = {max(1, round(timeout_s))}, wait_timeout = {IDLE_S}"
        ),
        **({"unix_socket": url.socket} if url.socket else {"host": url.host, "port": url.port}),
        **({"ssl_disabled": True} if tls == "off" else {"ssl": _context(url, verify=tls == "verify")}),
    }

    def connect() -> DBAPIConnection:
        connection: DBAPIConnection = pymysql.connect(**given)
        return connection

    return connect


def _context(url: DatabaseUrl, *, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=url.ca_file or None)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if url.cert_file:
        context.load_cert_chain(url.cert_file)
    return context


def _system_authorities() -> str:
    """The driver brings an OpenSSL of its own, which does not know where this system keeps them."""
    return ssl.get_default_verify_paths().cafile or "system"
