"""An SQL server as a store stands on it: versions of the tables, encryption, waits that end, errors without secrets."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from secrets import token_hex

import pytest
from msgspec.structs import replace
from sqlalchemy import text
from tests.support.certificates import Authority
from tests.support.mariadb import MariadbServer
from tests.support.postgres import PostgresServer
from tests.support.sql_server import SqlServer
from tests.support.sql_users import open_sql_users

from embermq.adapters.sql import database as database_module
from embermq.adapters.sql.database import Database
from embermq.adapters.sql.tables import VERSION_TABLE, has_tables, make_tables
from embermq.database.database_url import SqlSettings, parse_url
from embermq.model.client_type import ClientType
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.users import User

QUICK = SqlSettings(timeout_s=2.0)
IMPORTED = 100_000
IMPORT_S = 60.0
NOW_S = 1.0
"""Of an answer that nothing is asked for: less than any time that is waited for a server."""
TLS_IN_USE = {
    "postgresql": "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    "mysql": "SELECT variable_value <> '' FROM information_schema.session_status WHERE variable_name = 'Ssl_cipher'",
}


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def ask(database: Database, statement: str = "SELECT 1") -> object:
    with database.begin("cannot ask") as connection:
        found: object = connection.execute(text(statement)).scalar_one()
    return found


def time_of_refusal(database: Database) -> float:
    began_s = time.monotonic()
    try:
        ask(database)
    except StoreUnavailable:
        return time.monotonic() - began_s
    raise AssertionError("the server answered")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_of_many_that_make_the_tables_at_once_one_does(sql_server: SqlServer, sql_url: str) -> None:
    url = parse_url(sql_url)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda _: make_tables(url, SqlSettings()), range(6)))
    assert found.count(True) == 1
    rows = sql_server.execute(f"SELECT version_num FROM {VERSION_TABLE}", database=name_of(sql_url))
    assert len(rows) == 1
    assert has_tables(url, SqlSettings())


def test_a_postgresql_database_without_an_encoding_is_spoken_to_in_utf_8(postgres: SqlServer) -> None:
    """`SQL_ASCII` is what a cluster has that was made in the locale C."""
    name = f"test_{token_hex(6)}"
    postgres.execute(f"CREATE DATABASE {name} ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0")
    url = parse_url(postgres.url(name))
    make_tables(url, SqlSettings())
    with closing(Database(url, SqlSettings())) as database:
        assert ask(database, "SELECT 'wörk'") == "wörk"
    postgres.drop(postgres.url(name))


def test_what_ended_half_way_is_finished(sql_server: SqlServer, sql_url: str) -> None:
    """As a crash leaves it where the server does not take tables back: they are there, and no version."""
    store = open_sql_users(sql_url)
    store.close()
    sql_server.execute(f"DELETE FROM {VERSION_TABLE}", database=name_of(sql_url))
    sql_server.execute("DROP TABLE embermq_user_changes", database=name_of(sql_url))
    assert not has_tables(parse_url(sql_url), QUICK)
    store = open_sql_users(sql_url)
    assert store.add(User("ann", "x", ClientType.DEVICE, False, 0))
    store.close()


@pytest.mark.parametrize("version", ["9999", "a1b2"])
def test_tables_of_another_version_are_refused_and_left_alone(
    sql_server: SqlServer, sql_url: str, version: str
) -> None:
    open_sql_users(sql_url).close()
    sql_server.execute(f"UPDATE {VERSION_TABLE} SET version_num = '{version}'", database=name_of(sql_url))
    for open_ in (has_tables, make_tables):
        with pytest.raises(
            StoreUnavailable, match=f"tables of version {version}, this version of EmberMQ knows"
        ):
            open_(parse_url(sql_url), QUICK)


@pytest.mark.parametrize("wrong", ["password", "database", "port"])
def test_what_cannot_be_opened_is_told_without_the_password(
    sql_server: SqlServer, sql_url: str, wrong: str
) -> None:
    url = parse_url(sql_url)
    changed = {"password": "hidden/words", "database": "nowhere", "port": 1}
    url = replace(url, **{wrong: changed[wrong]})
    with pytest.raises(StoreUnavailable) as caught:
        make_tables(url, QUICK)
    told = f"{caught.value} {caught.value!r} {url!r}"
    assert "cannot read the schema version in" in told
    assert "hidden" not in told
    assert sql_server.password not in told


def test_a_server_that_stops_answering_is_not_waited_for_long(sql_server: SqlServer, sql_url: str) -> None:
    """The first call ends when its time is over, the next ones at once; one tries again, and finds it back. What was
    given up is closed, without waiting for the garbage collector."""
    database = Database(parse_url(sql_url), QUICK)
    before = open_files()
    assert ask(database) == 1
    sql_server.pause()
    gc.disable()
    took_s = time_of_refusal(database)
    assert took_s < 10 * QUICK.timeout_s
    assert time_of_refusal(database) < NOW_S
    assert open_files() == before
    gc.enable()
    sql_server.resume()
    end_s = time.monotonic() + 60
    while True:
        try:
            assert ask(database) == 1
            break
        except StoreUnavailable:
            assert time.monotonic() < end_s
    database.close()


def test_a_killed_server_is_found_again(sql_server: SqlServer, sql_url: str) -> None:
    store = open_sql_users(sql_url, QUICK)
    store.add(User("ann", "x", ClientType.DEVICE, False, 0))
    sql_server.kill()
    with pytest.raises(StoreUnavailable):
        store.find("ann")
    sql_server.start()
    end_s = time.monotonic() + 60
    found = None
    while found is None and time.monotonic() < end_s:
        try:
            found = store.find("ann")
        except StoreUnavailable:
            continue
    assert found is not None and found.name == "ann"
    store.close()


def test_a_statement_that_takes_too_long_ends(sql_url: str) -> None:
    database = Database(parse_url(sql_url), QUICK)
    slow = "SELECT pg_sleep(30)" if database.url.kind == "postgresql" else "SELECT SLEEP(30)"
    began_s = time.monotonic()
    with pytest.raises(StoreUnavailable):
        ask(database, slow)
    assert time.monotonic() - began_s < 10 * QUICK.timeout_s
    database.close()


def test_more_calls_than_connections_take_turns(sql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "CONNECTIONS_MAX", 2)
    database = Database(parse_url(sql_url), QUICK)
    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(lambda _: ask(database), range(64))) == {1}
    told = "all connections of this process"
    with database.begin("a"), database.begin("b"), pytest.raises(StoreUnavailable, match=told):
        ask(database)
    assert ask(database) == 1
    database.close()


def test_what_does_not_fit_is_refused_and_not_cut(sql_url: str) -> None:
    store = open_sql_users(sql_url)
    user = User("ann", "x" * 70_000, ClientType.DEVICE, False, 0)
    if parse_url(sql_url).kind == "mysql":
        with pytest.raises(StoreError, match="too long"):
            store.add(user)
        assert store.find("ann") is None
        assert store.newest_change() == 0
    else:
        assert store.add(user)
        assert store.find("ann") == user
    store.close()


@pytest.mark.in_faults
def test_a_hundred_thousand_accounts_are_imported_soon(sql_url: str) -> None:
    users = (User(f"user-{number}", "x" * 97, ClientType.DEVICE, False, 0) for number in range(IMPORTED))
    with closing(open_sql_users(sql_url)) as store:
        began_s = time.monotonic()
        assert store.import_all(users, replace=False) == IMPORTED
        names = [user.name for user in store.all()]
        took_s = time.monotonic() - began_s
    assert took_s < IMPORT_S
    assert len(names) == IMPORTED
    assert names == sorted(names)


def test_a_store_that_lost_changes_says_so(sql_server: SqlServer, sql_url: str) -> None:
    """As one does that was restored, or that took over from another before it had everything."""
    store = open_sql_users(sql_url)
    for number in range(3):
        store.add(User(f"user-{number}", "x", ClientType.DEVICE, False, 0))
    seen = store.newest_change()
    for statement in (
        "DELETE FROM embermq_user_changes WHERE seq > 1",
        "UPDATE embermq_meta SET number = 1 WHERE name = 'user_changes'",
    ):
        sql_server.execute(statement, database=name_of(sql_url))
    found = store.changes(seen)
    assert (found.seq, found.complete) == (1, False)
    assert store.changes(1).complete
    store.close()


@pytest.fixture(scope="module", params=[PostgresServer, MariadbServer])
def tls_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SqlServer, Authority]]:
    """A server with a certificate, and a user `badge` who has to show one."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    server: SqlServer = request.param()
    try:
        start_with_tls(server, authority)
        yield server, authority
    finally:
        server.close()


def start_with_tls(server: SqlServer, authority: Authority) -> None:
    server.create()
    pem = server.own(Path(shutil.copy(authority.server(), server.folder / "server.pem")))
    ca = server.own(Path(shutil.copy(authority.certificate, server.folder / "ca.pem")))
    if isinstance(server, PostgresServer):
        rules = server.data / "pg_hba.conf"
        rules.write_text(f"hostssl all badge all scram-sha-256 clientcert=verify-ca\n{rules.read_text()}")
        server.settings |= {"ssl": "on"}
        server.settings |= {"ssl_cert_file": str(pem), "ssl_key_file": str(pem), "ssl_ca_file": str(ca)}
        making = ["CREATE USER badge SUPERUSER PASSWORD 'word'"]
    else:
        assert isinstance(server, MariadbServer)
        server.settings |= {"ssl-cert": str(pem), "ssl-key": str(pem), "ssl-ca": str(ca)}
        making = [
            "CREATE USER badge@'127.0.0.1' IDENTIFIED BY 'word' REQUIRE X509",
            "GRANT ALL ON *.* TO badge@'127.0.0.1'",
        ]
    server.start()
    for statement in making:
        server.execute(statement)


def tls_in_use(url: str, **options: object) -> bool:
    text = "&".join(f"{name}={value}" for name, value in options.items())
    database = Database(parse_url(f"{url}{'&' if '?' in url else '?'}{text}"), QUICK)
    try:
        return ask(database, TLS_IN_USE[database.url.kind]) in ("true", 1)
    finally:
        database.close()


def test_connections_are_encrypted_as_the_settings_say(tls_server: tuple[SqlServer, Authority]) -> None:
    server, authority = tls_server
    url = server.database()
    ca = str(authority.certificate)
    assert tls_in_use(url, tls="verify", ca_file=ca)
    assert tls_in_use(url, tls="require")
    assert not tls_in_use(url, tls="off")
    assert not tls_in_use(url, tls="auto"), "on loopback"


def test_a_server_that_cannot_be_trusted_is_not_spoken_to(
    tls_server: tuple[SqlServer, Authority], tmp_path: Path
) -> None:
    server, _ = tls_server
    url = server.database()
    stranger = str(Authority(tmp_path / "stranger").certificate)
    for trusted in ({"ca_file": stranger}, {}):
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            tls_in_use(url, tls="verify", **trusted)
    with pytest.raises(StoreUnavailable, match=r"nowhere\.pem|No such file"):
        tls_in_use(url, tls="verify", ca_file=tmp_path / "nowhere.pem")


def test_a_server_without_encryption_is_refused_where_it_is_asked_for(sql_url: str) -> None:
    with pytest.raises(StoreUnavailable):
        tls_in_use(sql_url, tls="require")


def test_a_client_certificate_is_shown(tls_server: tuple[SqlServer, Authority]) -> None:
    server, authority = tls_server
    url = server.database().replace(f"{server.user}:", "badge:", 1)
    scheme, _, rest = url.partition("://badge:")
    url = f"{scheme}://badge:word@{rest.rpartition('@')[2]}"
    trusted = {"tls": "verify", "ca_file": authority.certificate}
    with pytest.raises(StoreUnavailable):
        tls_in_use(url, **trusted)
    badge = authority.client()
    badge.chmod(0o600)
    assert tls_in_use(url, **trusted, cert_file=badge)
