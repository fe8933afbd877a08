"""What every store of accounts promises (repositories: users)."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.sql_server import SqlServer
from tests.support.sql_users import open_sql_users
from tests.support.users_in_memory import UsersInMemory
from tests.support.waiting import wait_until

from embermq.adapters.sqlite.users import SqliteUsers
from embermq.model.client_type import ClientType
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.users import CHANGES_MAX, NAMES_MAX, Changes, User, Users

Open = Callable[[], Users]
SERVERS = {"postgresql": "postgres", "mysql": "mariadb"}
ANN = User("ann", "$argon2id$ann", ClientType.DEVICE, False, 1_700_000_000_123)
BILLING = User("billing", "$argon2id$billing", ClientType.APPLICATION, True, 2**40)


EMPTY = (
    "DELETE FROM embermq_users",
    "DELETE FROM embermq_user_changes",
    "DELETE FROM embermq_meta WHERE name <> 'user_changes'",
    "UPDATE embermq_meta SET number = 0",
)
"""The tables as an upgrade leaves them."""


@pytest.fixture(scope="module")
def databases() -> Iterator[dict[str, tuple[SqlServer, str]]]:
    """One a server for all tests here: making the tables takes longer than most of them."""
    made: dict[str, tuple[SqlServer, str]] = {}
    yield made
    for server, url in made.values():
        server.drop(url)


@pytest.fixture
def url_of(
    request: pytest.FixtureRequest, databases: dict[str, tuple[SqlServer, str]]
) -> Callable[[str], str]:
    """The URL of a server's database without accounts."""

    def emptied(kind: str) -> str:
        server: SqlServer = request.getfixturevalue(SERVERS[kind])
        if kind not in databases:
            databases[kind] = server, server.database()
            open_sql_users(databases[kind][1]).close()
        url = databases[kind][1]
        for statement in EMPTY:
            server.execute(statement, database=url.rpartition("/")[2])
        return url

    return emptied


@pytest.fixture(params=["sqlite", *SERVERS])
def open_users(request: pytest.FixtureRequest, url_of: Callable[[str], str], tmp_path: Path) -> Open:
    """Opens the same accounts as often as it is called, as several processes do; the test closes them."""
    if request.param == "sqlite":
        return lambda: SqliteUsers(tmp_path / "users.db")
    url = url_of(request.param)
    return lambda: open_sql_users(url, is_current=True)


@pytest.fixture(params=["sqlite", "memory", *SERVERS])
def users(request: pytest.FixtureRequest, url_of: Callable[[str], str], tmp_path: Path) -> Iterator[Users]:
    """The stand-in of other tests keeps the promises as well."""
    store: Users
    if request.param in SERVERS:
        store = open_sql_users(url_of(request.param), is_current=True)
    else:
        store = SqliteUsers(tmp_path / "users.db") if request.param == "sqlite" else UsersInMemory()
    yield store
    store.close()


def test_a_user_is_found_as_it_was_added(users: Users) -> None:
    assert users.add(ANN)
    assert users.add(BILLING)
    assert users.find("ann") == ANN
    assert users.find("billing") == replace(BILLING, version=2)


def test_a_store_without_accounts_says_so(users: Users) -> None:
    assert users.is_empty()
    users.add(ANN)
    assert not users.is_empty()
    users.remove("ann")
    assert users.is_empty()


@pytest.mark.parametrize("name", ["", "ANN", "ann ", "an", "%", "ann\0", "änn", "🦊"])
def test_names_are_exact(users: Users, name: str) -> None:
    users.add(ANN)
    assert users.find(name) is None
    assert not users.remove(name)
    assert users.all() == [ANN]


@pytest.mark.parametrize("name", ["ann'; DROP TABLE users; --", "ä", "🦊", "a" * 65_535])
def test_any_text_is_a_name(users: Users, name: str) -> None:
    user = User(name, "x", ClientType.DEVICE, False, 0)
    assert users.add(user)
    assert users.find(name) == user


def test_many_are_found_at_once(users: Users) -> None:
    names = [f"u{number}" for number in range(NAMES_MAX - 1)]
    users.import_all([User(name, "x", ClientType.DEVICE, False, 0) for name in names], replace=False)
    users.add(ANN)
    found = users.find_many(["ann", *names[1:], "nobody"])
    assert found.keys() == {"ann", *names[1:]}
    assert found["ann"] == users.find("ann")
    assert users.find_many(["nobody", "ANN", "ann\0"]) == {}
    assert users.find_many([]) == {}


def test_a_taken_name_is_not_added_again(users: Users) -> None:
    users.add(ANN)
    assert not users.add(User("ann", "other", ClientType.APPLICATION, True, 5))
    assert users.find("ann") == ANN


def test_update_keeps_name_and_creation(users: Users) -> None:
    users.add(ANN)
    assert users.update(User("ann", "new", ClientType.APPLICATION, True, 5))
    assert users.find("ann") == User("ann", "new", ClientType.APPLICATION, True, ANN.created_ms, 2)


def test_update_of_nobody_adds_nobody(users: Users) -> None:
    assert not users.update(ANN)
    assert users.all() == []


def test_remove_tells_whether_there_was_one(users: Users) -> None:
    users.add(ANN)
    users.add(BILLING)
    assert users.remove("ann")
    assert not users.remove("ann")
    assert users.find("ann") is None
    assert users.all() == [replace(BILLING, version=2)]


def test_all_is_sorted_by_name(users: Users) -> None:
    for name in ("c", "a", "b"):
        users.add(User(name, "x", ClientType.DEVICE, False, 0))
    assert [user.name for user in users.all()] == ["a", "b", "c"]


def test_the_version_counts_what_ends_connections(users: Users) -> None:
    """A name that is given anew never has a version that it had before."""
    seen: list[int] = []

    def look() -> None:
        user = users.find("ann")
        assert user is not None
        seen.append(user.version)

    users.add(ANN)
    look()
    for _ in range(3):
        users.update(ANN)
        look()
    users.remove("ann")
    users.add(ANN)
    look()
    users.import_all([ANN], replace=True)
    look()
    assert seen == sorted(set(seen))


def test_a_hash_in_another_form_is_the_same_password(users: Users) -> None:
    users.add(ANN)
    added = users.newest_change()
    before = users.find("ann")
    assert before is not None
    assert users.replace_hash("ann", ANN.password_hash, "$argon2id$better")
    assert users.find("ann") == replace(before, password_hash="$argon2id$better")
    assert not users.replace_hash("ann", ANN.password_hash, "$argon2id$late")
    assert not users.replace_hash("nobody", ANN.password_hash, "$argon2id$late")
    assert users.find("ann") == replace(before, password_hash="$argon2id$better")
    assert users.newest_change() == added


def test_imported_hashes_are_those_of_others(users: Users) -> None:
    users.add(ANN)
    users.add(User("old", "$7$101$c2FsdA==$aGFzaA==", ClientType.DEVICE, False, 0))
    users.add(User("pump", "$generated$00$00", ClientType.DEVICE, False, 0))
    users.add(User("older", "$6$c2FsdA==$aGFzaA==", ClientType.DEVICE, False, 0))
    assert sorted(users.imported_hashes()) == ["$6$c2FsdA==$aGFzaA==", "$7$101$c2FsdA==$aGFzaA=="]


def test_an_import_keeps_or_replaces_who_is_there(users: Users) -> None:
    users.add(ANN)
    other = User("ann", "$6$other", ClientType.APPLICATION, False, 5)
    new = User("bob", "$6$bob", ClientType.DEVICE, False, 5)
    assert users.import_all([other, new], replace=False) == 1
    assert [(user.name, user.password_hash) for user in users.all()] == [
        ("ann", ANN.password_hash),
        ("bob", "$6$bob"),
    ]
    assert users.import_all([other, new], replace=True) == 2
    found = users.find("ann")
    assert found is not None
    assert (found.password_hash, found.created_ms) == ("$6$other", ANN.created_ms)


def test_changes_are_told_in_their_order(users: Users) -> None:
    start = users.newest_change()
    users.add(ANN)
    users.add(BILLING)
    users.update(ANN)
    users.remove("billing")
    found = users.changes(start)
    assert (sorted(found.names), found.complete, found.seq) == (
        ["ann", "billing"],
        True,
        users.newest_change(),
    )
    assert users.changes(found.seq) == Changes(found.seq, (), complete=True)
    assert users.changes(found.seq - 1).names == ("billing",)


def test_many_changes_come_in_pages(users: Users) -> None:
    names = [f"user-{number:05}" for number in range(CHANGES_MAX + 5)]
    users.import_all([User(name, "x", ClientType.DEVICE, False, 0) for name in names], replace=False)
    first = users.changes(0)
    assert len(first.names) == CHANGES_MAX
    assert first.names + users.changes(first.seq).names == tuple(names)


def test_threads_may_share_a_store(users: Users) -> None:
    def add(number: int) -> bool:
        return users.add(User(f"user-{number % 20}", "x", ClientType.DEVICE, False, number))

    with ThreadPoolExecutor(8) as threads:
        added = list(threads.map(add, range(80)))
    assert added.count(True) == 20
    assert len(users.all()) == 20


def test_the_hash_is_not_shown(users: Users) -> None:
    users.add(ANN)
    assert "argon2id" not in repr(users.find("ann"))
    assert "argon2id" not in f"{users.all()}"


def test_another_process_sees_a_change_at_once(open_users: Open) -> None:
    writer, reader = open_users(), open_users()
    try:
        assert reader.find("ann") is None
        writer.add(ANN)
        assert reader.find("ann") == ANN
        writer.remove("ann")
        assert reader.find("ann") is None
    finally:
        writer.close()
        reader.close()


def test_changes_of_another_process_are_told(open_users: Open) -> None:
    writer, reader = open_users(), open_users()
    writer.add(ANN)
    assert reader.changes(0).names == ("ann",)
    writer.close()
    reader.close()


def test_nobody_misses_a_change_while_several_make_them(open_users: Open) -> None:
    """Numbers are seen in their order: who has read up to one never finds a lower one later."""
    stores = [open_users() for _ in range(4)]
    reader = open_users()
    told: list[str] = []
    seq = 0

    def add(number: int) -> None:
        for round_ in range(10):
            user = User(f"user-{number}-{round_}", "x", ClientType.DEVICE, False, 0)
            while True:  # the others may hold a file for longer than one waits for it
                with suppress(StoreUnavailable):
                    stores[number].add(user)
                    break

    def read_all() -> bool:
        nonlocal seq
        found = reader.changes(seq)
        assert found.complete
        told.extend(found.names)
        seq = found.seq
        return seq == 40

    with ThreadPoolExecutor(4) as threads:
        adding = [threads.submit(add, number) for number in range(4)]
        wait_until(
            lambda: read_all() or any(one.done() and one.exception() for one in adding), 60, "all adds"
        )
    for one in adding:
        one.result()
    assert sorted(told) == sorted(f"user-{number}-{round_}" for number in range(4) for round_ in range(10))
    for store in [*stores, reader]:
        store.close()


def test_old_changes_are_forgotten_and_that_is_said(open_users: Open) -> None:
    store = open_users()
    users = [User(f"user-{number}", "x", ClientType.DEVICE, False, 0) for number in range(10_100)]
    store.import_all(users, replace=False)
    assert store.newest_change() == 10_100
    assert not store.changes(50).complete
    assert store.changes(100).complete
    store.add(ANN)
    assert not store.changes(100).complete
    store.close()


def test_an_import_that_fails_adds_nobody(open_users: Open) -> None:
    def users() -> Iterator[User]:
        yield from (User(f"user-{number}", "x", ClientType.DEVICE, False, 0) for number in range(2_500))
        raise StoreError("the source ends early")

    store = open_users()
    with pytest.raises(StoreError, match="ends early"):
        store.import_all(users(), replace=False)
    assert store.all() == []
    assert store.newest_change() == 0
    assert store.add(BILLING)
    store.close()


def test_a_name_may_come_twice_in_an_import(users: Users) -> None:
    first, second = (
        User("bob", "1", ClientType.DEVICE, False, 5),
        User("bob", "2", ClientType.DEVICE, False, 6),
    )
    assert users.import_all([first, second], replace=False) == 1
    found = users.find("bob")
    assert found is not None and found.password_hash == "1"
    assert users.import_all([first, second], replace=True) == 2
    found = users.find("bob")
    assert found is not None and (found.password_hash, found.created_ms) == ("2", 5)


def test_users_outlive_the_store(open_users: Open) -> None:
    for expected in (True, False):
        store = open_users()
        assert store.add(ANN) is expected
        store.close()


def test_the_secret_is_the_same_for_all_and_outlives_them(open_users: Open) -> None:
    stores = [open_users() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(lambda store: store.secret(), stores))
    for store in stores:
        store.close()
    again = open_users()
    assert found == {again.secret()}
    again.close()


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (99, "schema version 99, this version of EmberMQ knows up to"),
        (1, r"schema version 1, of a build before EmberMQ 0\.1\.0"),
        (0, r"schema version 0, of a build before EmberMQ 0\.1\.0"),
    ],
)
def test_sqlite_a_file_of_another_version_is_refused(tmp_path: Path, version: int, told: str) -> None:
    path = tmp_path / "users.db"
    SqliteUsers(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(StoreError, match=told):
        SqliteUsers(path)


def test_sqlite_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    store = SqliteUsers(tmp_path / "users.db")
    store.add(ANN)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    store.close()
    assert modes == {"users.db": 0o600, "users.db-wal": 0o600, "users.db-shm": 0o600}


@pytest.mark.parametrize("content", [b"this is not a database, it is some text" * 100])
def test_sqlite_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "users.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"users\.db"):
        SqliteUsers(path)
    assert path.read_bytes() == content


def test_sqlite_a_missing_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        SqliteUsers(tmp_path / "nowhere" / "users.db")


def test_what_scram_needs_is_kept_with_the_password(users: Users) -> None:
    users.add(replace(ANN, scram="SCRAM-SHA-256$4096:a$b:c\nSCRAM-SHA-512$4096:d$e:f"))
    found = users.find("ann")
    assert found == replace(ANN, scram="SCRAM-SHA-256$4096:a$b:c\nSCRAM-SHA-512$4096:d$e:f")
    assert users.all() == [found]
    assert "4096" not in repr(found)
    users.update(replace(ANN, password_hash="new"))
    assert users.find("ann") == replace(ANN, password_hash="new", version=2)


def test_the_secret_stays(users: Users) -> None:
    assert len(users.secret()) == 32
    assert users.secret() == users.secret()


def test_sqlite_each_store_has_a_secret_of_its_own(tmp_path: Path) -> None:
    found = []
    for name in ("a.db", "b.db"):
        store = SqliteUsers(tmp_path / name)
        found.append(store.secret())
        store.close()
    assert found[0] != found[1]


def test_sqlite_the_secret_is_read_also_while_nothing_can_be_written(tmp_path: Path) -> None:
    store = SqliteUsers(tmp_path / "users.db")
    found = store.secret()
    other = sqlite3.connect(tmp_path / "users.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert store.secret() == found
    other.close()
    store.close()
