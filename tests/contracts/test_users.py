"""What every store of accounts promises (repositories: users)."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from embermq.adapters.sqlite.users import SqliteUsers
from embermq.model.client_type import ClientType
from embermq.ports.errors import StoreError
from embermq.ports.users import User, Users

ANN = User("ann", "$argon2id$ann", ClientType.DEVICE, False, 1_700_000_000_123)
BILLING = User("billing", "$argon2id$billing", ClientType.APPLICATION, True, 2**40)


@pytest.fixture(params=[SqliteUsers])
def users(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Users]:
    store: Users = request.param(tmp_path / "users.db")
    yield store
    store.close()


def test_a_user_is_found_as_it_was_added(users: Users) -> None:
    assert users.add(ANN)
    assert users.add(BILLING)
    assert users.find("ann") == ANN
    assert users.find("billing") == BILLING


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
    assert users.all() == [BILLING]


def test_all_is_sorted_by_name(users: Users) -> None:
    for name in ("c", "a", "b"):
        users.add(User(name, "x", ClientType.DEVICE, False, 0))
    assert [user.name for user in users.all()] == ["a", "b", "c"]


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


def test_sqlite_another_process_sees_a_change_at_once(tmp_path: Path) -> None:
    writer, reader = SqliteUsers(tmp_path / "users.db"), SqliteUsers(tmp_path / "users.db")
    try:
        assert reader.find("ann") is None
        writer.add(ANN)
        assert reader.find("ann") == ANN
        writer.remove("ann")
        assert reader.find("ann") is None
    finally:
        writer.close()
        reader.close()


def test_sqlite_users_outlive_the_store(tmp_path: Path) -> None:
    for expected in (True, False):
        store = SqliteUsers(tmp_path / "users.db")
        assert store.add(ANN) is expected
        store.close()


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


def test_sqlite_each_store_has_a_secret_of_its_own_that_outlives_it(tmp_path: Path) -> None:
    found = []
    for name in ("a.db", "a.db", "b.db"):
        store = SqliteUsers(tmp_path / name)
        found.append(store.secret())
        store.close()
    assert found[0] == found[1] != found[2]
