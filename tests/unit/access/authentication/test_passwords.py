"""Every check of a password costs the same work, and imported hashes become the broker's own."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Collection
from threading import Event
from typing import Any

import pytest
from argon2 import PasswordHasher
from msgspec.structs import replace
from tests.support.users_in_memory import UsersInMemory

from embermq.access.authentication.account_lookups import HAS_LEFT, AccountLookups
from embermq.access.authentication.checks import Checks
from embermq.access.authentication.gate import Visitor
from embermq.access.authentication.generated_passwords import hash_generated, make_password
from embermq.access.authentication.imported_hashes import ROUNDS_MAX, parse_imported
from embermq.access.authentication.passwords import PasswordHashes, PasswordStep, PasswordVerdict
from embermq.access.authentication.remembered_passwords import RememberedPasswords
from embermq.access.authentication.step import NOT_MINE, Admit, Applicant, Deny, StepAnswer
from embermq.model.client_type import ClientType
from embermq.model.counters import Counters
from embermq.mqtt.wire.reason_codes import ConnectReturnCode, ReasonCode, to_connect_return_code
from embermq.ports.errors import StoreFull, StoreUnavailable
from embermq.ports.users import NAMES_MAX, User

HERE = Visitor(True, None, ClientType.DEVICE, None)


def sha512_hash(password: bytes, salt: bytes = b"saltsaltsalt") -> str:
    digest = hashlib.sha512(password + salt).digest()
    return f"$6${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def pbkdf2_hash(password: bytes, rounds: int, salt: bytes = b"saltsaltsalt") -> str:
    digest = hashlib.pbkdf2_hmac("sha512", password, salt, rounds)
    return f"$7${rounds}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


class CountingHasher:
    """argon2id that counts how often it was computed."""

    def __init__(self, hasher: PasswordHasher) -> None:
        self._hasher = hasher
        self.count = 0

    def verify(self, password_hash: str, password: bytes) -> bool:
        self.count += 1
        return self._hasher.verify(password_hash, password)

    def check_needs_rehash(self, password_hash: str) -> bool:
        return self._hasher.check_needs_rehash(password_hash)

    def hash(self, password: bytes) -> str:
        self.count += 1
        return self._hasher.hash(password)


class Work:
    """What a check has computed: argon2id hashes, and rounds of PBKDF2."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hashes: PasswordHashes) -> None:
        self._hasher = CountingHasher(hashes._hasher)
        self._rounds = 0
        real = hashlib.pbkdf2_hmac

        def pbkdf2(name: str, password: bytes, salt: bytes, rounds: int) -> bytes:
            self._rounds += rounds
            return real(name, password, salt, rounds)

        monkeypatch.setattr(hashes, "_hasher", self._hasher)
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", pbkdf2)

    def taken(self) -> tuple[int, int]:
        found = (self._hasher.count, self._rounds)
        self._hasher.count = self._rounds = 0
        return found


HASHES = PasswordHashes()
GENERATED = make_password().encode()
ACCOUNTS = {
    "own": HASHES.make(b"secret"),
    "plain": sha512_hash(b"secret"),
    "cheap": pbkdf2_hash(b"secret", 101),
    "dear": pbkdf2_hash(b"secret", 2_000),
    "damaged": "$7$nonsense",
    "unreadable": "nonsense",
    "generated": hash_generated(GENERATED),
}


def store() -> UsersInMemory:
    return UsersInMemory(*(User(name, text, ClientType.DEVICE, False, 0) for name, text in ACCOUNTS.items()))


def step(users: UsersInMemory) -> PasswordStep:
    return made(users, HASHES)


def made(users: UsersInMemory, hashes: PasswordHashes, *, remembered_max: int = 10) -> PasswordStep:
    return PasswordStep(
        users, AccountLookups(users), Checks(1, 1), hashes, RememberedPasswords(remembered_max, Counters())
    )


def test_every_check_takes_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    users = store()
    HASHES.expect(users.imported_hashes())
    checked = step(users)
    work = Work(monkeypatch, HASHES)
    took: dict[tuple[str, bytes], tuple[int, int]] = {}
    for name in [*ACCOUNTS, "nobody", ""]:
        for password in (b"wrong", b"", b"secret"):
            checked._check(name, password)
            took[name, password] = work.taken()
    assert set(took.values()) == {(1, 2_000)}, took


def test_without_imported_hashes_a_check_is_one_argon2(monkeypatch: pytest.MonkeyPatch) -> None:
    users = UsersInMemory(User("own", ACCOUNTS["own"], ClientType.DEVICE, False, 0))
    HASHES.expect(users.imported_hashes())
    work = Work(monkeypatch, HASHES)
    for name in ("own", "nobody"):
        step(users)._check(name, b"wrong")
        assert work.taken() == (1, 0)


@pytest.mark.parametrize("name", ["plain", "cheap", "dear"])
def test_an_imported_hash_serves_until_the_first_login(name: str) -> None:
    users = store()
    before = users.users[name]
    checked = step(users)
    assert isinstance(checked._check(name, b"wrong"), Deny)
    assert users.users[name] == before
    assert checked._check(name, b"secret") == Admit(name, ClientType.DEVICE, account_version=before.version)
    after = users.users[name]
    assert after.password_hash.startswith("$argon2id$")
    assert after.version == before.version
    assert users.changed == []
    assert isinstance(checked._check(name, b"secret"), Admit)
    assert isinstance(checked._check(name, b"wrong"), Deny)


def test_a_full_disk_refuses_no_right_password(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(name: str, before: str, after: str) -> bool:
        raise StoreFull("cannot change a user: disk is full")

    users = store()
    monkeypatch.setattr(users, "replace_hash", full)
    assert isinstance(step(users)._check("cheap", b"secret"), Admit)
    assert "the stored hash of user 'cheap' stays for now: cannot change a user: disk is full" in caplog.text


class Changing(PasswordHashes):
    """Something changes the account of `own` during each check, so many times."""

    def __init__(self, users: UsersInMemory, times: int, **change: Any) -> None:
        super().__init__()
        self._users, self._times, self._change = users, times, change

    def check(self, stored: str | None, password: bytes) -> PasswordVerdict:
        verdict = super().check(stored, password)
        if self._times:
            self._times -= 1
            if self._change:
                self._users.update(replace(self._users.users["own"], **self._change))
            else:
                self._users.remove("own")
        return verdict


def checked_while_it_changes(times: int = 1, **change: Any) -> StepAnswer:
    users = store()
    return made(users, Changing(users, times, **change))._check("own", b"secret")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"password_hash": "x"}, ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        ({"disabled": True}, ReasonCode.NOT_AUTHORIZED),
    ],
)
def test_an_account_that_changes_during_the_check_counts_as_it_is_then(
    change: dict[str, Any], code: ReasonCode
) -> None:
    answer = checked_while_it_changes(**change)
    assert isinstance(answer, Deny)
    assert answer.reason_code is code


def test_an_account_that_goes_during_the_check_is_none() -> None:
    assert checked_while_it_changes() is NOT_MINE


def test_a_change_that_leaves_the_password_refuses_nobody() -> None:
    """A client library takes "wrong password" for the last word."""
    answer = checked_while_it_changes(client_type=ClientType.APPLICATION)
    assert answer == Admit("own", ClientType.APPLICATION, account_version=2)


def test_an_account_that_changes_during_each_check_is_told_to_come_again() -> None:
    answer = checked_while_it_changes(times=2, client_type=ClientType.APPLICATION)
    assert isinstance(answer, Deny)
    assert answer.reason_code is ReasonCode.SERVER_UNAVAILABLE
    assert to_connect_return_code(answer.reason_code) is ConnectReturnCode.SERVER_UNAVAILABLE


def test_a_disabled_account_keeps_its_imported_hash() -> None:
    users = UsersInMemory(User("cheap", ACCOUNTS["cheap"], ClientType.DEVICE, True, 0))
    answer = step(users)._check("cheap", b"secret")
    assert isinstance(answer, Deny)
    assert answer.reason_code is ReasonCode.NOT_AUTHORIZED
    assert users.users["cheap"].password_hash == ACCOUNTS["cheap"]


def test_a_name_without_an_account_may_be_known_to_another_step() -> None:
    assert step(store())._check("nobody", b"secret") is NOT_MINE


@pytest.mark.parametrize("name", ["damaged", "unreadable"])
def test_a_hash_that_cannot_be_read_opens_nothing(name: str) -> None:
    for password in (b"secret", b"", b"$7$nonsense", b"nonsense"):
        assert isinstance(step(store())._check(name, password), Deny)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "begins with"),
        ("secret", "begins with"),
        ("$5$a$b", "begins with"),
        ("$6$a", "of the form"),
        ("$6$YQ==$a$b", "of the form"),
        ("$7$101$YQ==", "of the form"),
        ("$7$0$YQ==$YQ==", "from 1 on"),
        ("$7$-1$YQ==$YQ==", "from 1 on"),
        ("$7$x$YQ==$YQ==", "from 1 on"),
        ("$7$²$YQ==$YQ==", "from 1 on"),
        (f"$7${ROUNDS_MAX + 1}$YQ==$YQ==", "more than the largest possible"),
        ("$7$9999999999$YQ==$YQ==", "from 1 on"),
        ("$6$!$YQ==", "not base64"),
        ("$6$YQ==$ä", "not base64"),
        ("$6$YQ==$YQ==", "a hash of 1 bytes"),
        (f"$6$${base64.b64encode(bytes(64)).decode()}", "a salt of 0"),
    ],
)
def test_imported_hashes_that_cannot_be(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_imported(text)


def test_nothing_shows_a_hash() -> None:
    parsed = parse_imported(ACCOUNTS["cheap"])
    assert "salt" not in repr(parsed)
    assert repr(parsed) == "ImportedHash(rounds=101)"
    verdict = HASHES.check(ACCOUNTS["cheap"], b"secret")
    assert verdict.better is not None
    assert "argon2" not in repr(verdict)


def entering(username: str, password: bytes) -> Applicant:
    return Applicant("c1", username, password, HERE)


def asked(step_: PasswordStep, *clients: Applicant) -> list[StepAnswer]:
    """What they are told, all at once."""

    async def scenario() -> list[StepAnswer]:
        return await asyncio.gather(*(step_.check(client) for client in clients))

    return asyncio.run(scenario())


@pytest.mark.parametrize("name", ["own", "plain", "dear"])
def test_who_was_let_in_before_enters_again_without_a_slow_hash(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    checked = step(store())
    work = Work(monkeypatch, HASHES)
    [first] = asked(checked, entering(name, b"secret"))
    assert work.taken()[0] == 1
    assert asked(checked, *[entering(name, b"secret")] * 50) == [first] * 50
    assert isinstance(first, Admit)
    assert work.taken() == (0, 0)


def test_a_wrong_password_of_a_remembered_account_costs_what_it_always_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = step(store())
    asked(checked, entering("own", b"secret"))
    work = Work(monkeypatch, HASHES)
    [answer] = asked(checked, entering("own", b"Secret"))
    assert isinstance(answer, Deny)
    assert work.taken()[0] == 1


@pytest.mark.parametrize("name", ["own", "generated"])
@pytest.mark.parametrize("change", ["password", "disabled", "type", "removed", "restored"])
def test_nothing_that_is_remembered_outlives_its_account(
    monkeypatch: pytest.MonkeyPatch, name: str, change: str
) -> None:
    """The next CONNECT counts, without a look at what changed in between; also when a store that was put back gives the
    new account the version of the old one."""
    users = store()
    checked = step(users)
    password = GENERATED if name == "generated" else b"secret"
    for _ in range(2):
        assert isinstance(asked(checked, entering(name, password))[0], Admit)
    before = users.users[name]
    other = replace(before, password_hash=HASHES.make(b"other"))
    expected: object = Deny
    if change == "password":
        users.update(other)
    elif change == "disabled":
        users.update(replace(before, disabled=True))
    elif change == "type":
        users.update(replace(before, client_type=ClientType.APPLICATION))
        expected = Admit(name, ClientType.APPLICATION, account_version=2)
    elif change == "removed":
        users.remove(name)
        expected = NOT_MINE
    else:
        users.users[name] = other
    [answer] = asked(checked, entering(name, password))
    assert isinstance(answer, Deny) if expected is Deny else answer == expected


def test_what_is_remembered_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"u{number}" for number in range(4)]
    users = UsersInMemory(*(User(name, ACCOUNTS["own"], ClientType.DEVICE, False, 0) for name in names))
    counters = Counters()
    remembered = RememberedPasswords(2, counters)
    checked = PasswordStep(users, AccountLookups(users), Checks(1, 9), HASHES, remembered)
    work = Work(monkeypatch, HASHES)
    for name in ["u0", "u1", "u0", "u2"]:  # u1 has not been seen for the longest time
        asked(checked, entering(name, b"secret"))
    assert (len(remembered), counters.passwords_evicted) == (2, 1)
    assert work.taken()[0] == 3
    asked(checked, entering("u0", b"secret"), entering("u2", b"secret"))
    assert work.taken()[0] == 0
    asked(checked, entering("u1", b"secret"))
    assert work.taken()[0] == 1


def test_with_none_to_be_remembered_every_login_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = made(store(), HASHES, remembered_max=0)
    work = Work(monkeypatch, HASHES)
    for _ in range(2):
        assert isinstance(asked(checked, entering("own", b"secret"))[0], Admit)
        assert work.taken()[0] == 1


def test_a_generated_password_needs_no_slow_hash_and_a_wrong_one_costs_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = step(store())
    work = Work(monkeypatch, HASHES)
    [answer] = asked(checked, entering("generated", GENERATED))
    assert answer == Admit("generated", ClientType.DEVICE, account_version=1)
    assert work.taken() == (0, 0)
    for wrong in (b"", b"secret", GENERATED[:-1], GENERATED + b"0", b"0" * 32, GENERATED.upper()):
        [answer] = asked(checked, entering("generated", wrong))
        assert isinstance(answer, Deny)
        assert work.taken()[0] == 1


def test_generated_passwords_have_128_bits_and_a_salt() -> None:
    one, other = make_password(), make_password()
    assert len(bytes.fromhex(one)) == 16
    assert one != other
    assert hash_generated(one.encode()) != hash_generated(one.encode())
    assert one not in hash_generated(one.encode())


@pytest.mark.parametrize("text", ["$generated$", "$generated$x$y", "$generated$00", "$generated$00$00"])
def test_a_damaged_generated_hash_opens_nothing(text: str) -> None:
    users = UsersInMemory(User("pump", text, ClientType.DEVICE, False, 0))
    for password in (b"", b"0" * 32, GENERATED):
        assert isinstance(asked(step(users), entering("pump", password))[0], Deny)


def test_many_clients_at_once_are_looked_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    users = store()
    reads: list[int] = []
    find_many = users.find_many

    def counted(names: Collection[str]) -> dict[str, User]:
        reads.append(len(names))
        return find_many(names)

    monkeypatch.setattr(users, "find_many", counted)
    clients = [entering(f"nobody-{number}", b"x") for number in range(2)] + [
        entering("generated", GENERATED)
    ] * 5_000
    answers = asked(made(users, HASHES), *clients)
    assert all(isinstance(answer, Admit) for answer in answers[2:])
    assert len(reads) <= 12  # the first comes alone
    assert max(reads) <= NAMES_MAX


def test_who_leaves_is_looked_up_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a server hangs, strangers come and leave by the thousand; what they sent is not kept for the answer."""
    users, begun, hangs = store(), Event(), Event()
    read: set[str] = set()
    find_many = users.find_many

    def stalled(names: Collection[str]) -> dict[str, User]:
        begun.set()
        hangs.wait()
        read.update(names)
        return find_many(names)

    monkeypatch.setattr(users, "find_many", stalled)

    async def scenario() -> list[User | Deny | None]:
        lookups = AccountLookups(users)
        gone = replace(HERE, left=asyncio.get_running_loop().create_future())
        first = asyncio.create_task(lookups.find("first", HERE))
        await asyncio.to_thread(begun.wait)
        leaves = [asyncio.create_task(lookups.find(f"gone-{number}", gone)) for number in range(1_000)]
        stays = asyncio.create_task(lookups.find("own", HERE))
        try:
            await asyncio.sleep(0)
            assert gone.left is not None
            gone.left.set_result(None)
            answers = await asyncio.gather(*leaves)
        finally:
            hangs.set()
        assert [await first, await stays] == [None, users.users["own"]]
        await lookups.close()
        return answers

    assert asyncio.run(scenario()) == [HAS_LEFT] * 1_000
    assert read == {"first", "own"}


def test_accounts_that_cannot_be_read_are_our_fault_for_all_who_wait() -> None:
    users = store()
    users.error = StoreUnavailable("locked")
    answers = asked(step(users), *[entering("own", b"secret")] * 3)
    assert {answer.reason_code for answer in answers if isinstance(answer, Deny)} == {
        ReasonCode.SERVER_UNAVAILABLE
    }


def test_a_hash_of_other_numbers_is_made_anew_at_the_next_login() -> None:
    users = store()
    checked = made(users, PasswordHashes(memory_kib=1_024, passes=3))
    version = users.users["own"].version
    assert isinstance(asked(checked, entering("own", b"wrong"))[0], Deny)
    assert users.users["own"].password_hash == ACCOUNTS["own"]
    assert isinstance(asked(checked, entering("own", b"secret"))[0], Admit)
    assert users.users["own"].password_hash.split("$")[3] == "m=1024,t=3,p=1"
    assert users.users["own"].version == version
    assert isinstance(asked(checked, entering("own", b"secret"))[0], Admit)
