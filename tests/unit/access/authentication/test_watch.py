"""Who entered by an account that is changed does not stay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.support.users_in_memory import UsersInMemory

from embermq.access.authentication.accounts import Vacancy
from embermq.access.authentication.identity import Identity
from embermq.access.authentication.passwords import PasswordHashes
from embermq.access.authentication.remembered_passwords import RememberedPasswords
from embermq.access.authentication.watch import AccountWatch
from embermq.model.client_type import ClientType
from embermq.model.counters import Counters
from embermq.ports.errors import StoreUnavailable
from embermq.ports.users import User

HASHES = PasswordHashes()
ANN = User("ann", "$argon2id$ann", ClientType.DEVICE, False, 0)
BOB = User("bob", "$argon2id$bob", ClientType.DEVICE, False, 0)


class Present:
    """Clients by name; those that are expelled leave."""

    def __init__(self, *identities: Identity) -> None:
        self.identities = list(identities)

    def expel(self, unwelcome: Callable[[Identity], bool]) -> int:
        staying = [identity for identity in self.identities if not unwelcome(identity)]
        count = len(self.identities) - len(staying)
        self.identities = staying
        return count

    @property
    def names(self) -> list[str]:
        return [identity.username for identity in self.identities]


def by_password(name: str, version: int = 1) -> Identity:
    return Identity(name, ClientType.DEVICE, "x", account_version=version)


def by_certificate(name: str) -> Identity:
    return Identity(name, ClientType.DEVICE, "x")


def after(
    users: UsersInMemory, present: Present, change: Callable[[], object], *, looks: int = 1
) -> list[str]:
    watch = AccountWatch(users, HASHES, RememberedPasswords(10, Counters()), present.expel)
    change()
    for _ in range(looks):
        asyncio.run(watch.look())
    return present.names


def test_a_new_password_ends_what_the_old_one_opened() -> None:
    users = UsersInMemory(ANN, BOB)
    present = Present(by_password("ann"), by_password("bob"), by_certificate("ann"), by_certificate(""))
    assert after(users, present, lambda: users.update(replace(ANN, password_hash="$argon2id$new"))) == [
        "bob",
        "ann",
        "",
    ]


def test_who_entered_with_the_new_password_stays() -> None:
    users = UsersInMemory(ANN)
    users.update(ANN)
    present = Present(by_password("ann", users.users["ann"].version))
    assert after(users, present, lambda: users.changed.append("ann"), looks=3) == ["ann"]


def test_a_disabled_account_is_nobodys() -> None:
    users = UsersInMemory(ANN, BOB)
    present = Present(by_password("ann"), by_certificate("ann"), by_password("bob"))
    assert after(users, present, lambda: users.update(replace(ANN, disabled=True))) == ["bob"]


def test_a_removed_account_ends_passwords_but_not_certificates() -> None:
    users = UsersInMemory(ANN)
    present = Present(by_password("ann"), by_certificate("ann"))
    assert after(users, present, lambda: users.remove("ann")) == ["ann"]
    assert present.identities == [by_certificate("ann")]


def test_a_name_that_is_given_anew_is_another_account() -> None:
    users = UsersInMemory(ANN)
    present = Present(by_password("ann"))

    def change() -> None:
        users.remove("ann")
        users.add(ANN)

    assert after(users, present, change) == []


def test_a_check_that_was_under_way_at_the_first_look_is_met_by_the_second() -> None:
    users, present = UsersInMemory(ANN), Present()
    watch = AccountWatch(users, HASHES, RememberedPasswords(10, Counters()), present.expel)
    users.update(ANN)
    asyncio.run(watch.look())
    present.identities.append(by_password("ann"))  # it was found before the change
    asyncio.run(watch.look())
    assert present.names == []


def test_when_changes_were_missed_every_account_counts() -> None:
    users = UsersInMemory(ANN, BOB)
    present = Present(by_password("ann"), by_password("bob"), by_password("gone"), by_certificate("pump"))
    watch = AccountWatch(users, HASHES, RememberedPasswords(10, Counters()), present.expel)
    users.update(ANN)
    users.changed += ["x"] * 5
    users.forgotten = 3
    asyncio.run(watch.look())
    assert present.names == ["bob", "pump"]


def test_very_many_changes_are_seen_in_one_look() -> None:
    users = UsersInMemory(ANN)
    present = Present(by_password("ann"))
    watch = AccountWatch(users, HASHES, RememberedPasswords(10, Counters()), present.expel)
    users.changed += ["x"] * 5_000
    users.update(ANN)
    asyncio.run(watch.look())
    assert present.names == []


def test_accounts_that_cannot_be_read_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    users = UsersInMemory(ANN)
    present = Present(by_password("ann"))
    watch = AccountWatch(users, HASHES, RememberedPasswords(10, Counters()), present.expel)
    users.error = StoreUnavailable("locked")
    for _ in range(3):
        asyncio.run(watch.look())
    users.error = None
    users.remove("ann")
    for _ in range(2):
        asyncio.run(watch.look())
    assert present.names == []
    assert [record.getMessage() for record in caplog.records if record.name.startswith("embermq")] == [
        "changes of accounts cannot be seen: locked",
        "changes of accounts can be seen again",
        "ended 1 connections whose accounts were changed or removed",
    ]


def test_a_look_that_fails_half_way_loses_no_change() -> None:
    users = UsersInMemory(ANN, BOB)
    present = Present(by_password("ann"), by_password("bob"), by_password("gone"))
    watch = AccountWatch(users, HASHES, RememberedPasswords(10, Counters()), present.expel)
    users.update(ANN)
    users.changed += ["x"] * 5
    users.forgotten = 3
    users.error_of_reading = StoreUnavailable("locked")
    asyncio.run(watch.look())
    assert present.names == ["ann", "bob", "gone"]
    users.error_of_reading = None
    asyncio.run(watch.look())
    assert present.names == ["bob"]


def test_when_changes_were_missed_the_second_look_is_at_every_account_too() -> None:
    users, present = UsersInMemory(ANN, BOB), Present()
    watch = AccountWatch(users, HASHES, RememberedPasswords(10, Counters()), present.expel)
    users.update(ANN)
    users.changed += ["x"] * 5
    users.forgotten = 3
    asyncio.run(watch.look())
    present.identities.append(by_password("ann"))  # it was found before the change
    asyncio.run(watch.look())
    assert present.names == []


def test_the_last_account_leaves_a_vacancy_and_the_first_one_ends_it() -> None:
    users = UsersInMemory(ANN)
    vacancy = Vacancy(users)
    watch = AccountWatch(users, HASHES, RememberedPasswords(10, Counters()), Present().expel, vacancy)
    users.remove("ann")
    found = [vacancy.likely]
    asyncio.run(watch.look())
    found.append(vacancy.likely)
    users.add(ANN)
    asyncio.run(watch.look())
    assert [*found, vacancy.likely] == [False, True, False]


def test_what_a_changed_account_entered_with_is_forgotten() -> None:
    users = UsersInMemory(ANN, BOB)
    remembered = RememberedPasswords(10, Counters())
    watch = AccountWatch(users, HASHES, remembered, Present().expel)
    for user in (ANN, BOB):
        remembered.keep(user.name, user.password_hash, b"secret")
    users.update(ANN)
    asyncio.run(watch.look())
    assert not remembered.knows("ann", ANN.password_hash, b"secret")
    assert remembered.knows("bob", BOB.password_hash, b"secret")
    users.changed += ["x"] * 5
    users.forgotten = 3
    asyncio.run(watch.look())
    assert len(remembered) == 0
