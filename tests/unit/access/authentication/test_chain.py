"""Who enters, and as what."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from tests.support.users_in_memory import UsersInMemory
from tests.support.waiting import wait_for

from embermq.access.authentication.chain_gate import ChainGate
from embermq.access.authentication.gate import Visitor
from embermq.access.authentication.generated_passwords import hash_generated, make_password
from embermq.access.authentication.identity import Identity, Refusal
from embermq.access.authentication.passwords import PasswordHashes
from embermq.access.authentication.settings import AuthenticationSettings
from embermq.adapters.sqlite.users import SqliteUsers
from embermq.app import authentication as build
from embermq.app.accounts import Accounts
from embermq.app.authentication import Authentication
from embermq.app.errors import UserError
from embermq.edge.settings import ClientSettings
from embermq.model.client_type import ClientType
from embermq.model.counters import Counters
from embermq.mqtt.wire.packets import Connect
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreUnavailable
from embermq.ports.users import User, Users

DEADLINE_S = 30


class HashesCounted(PasswordHashes):
    """Real hashes that count how often one was computed for a check."""

    def __init__(self) -> None:
        super().__init__()
        self.checks = 0
        self.gate = threading.Event()
        """While it is clear, no hash is done."""
        self.gate.set()

    def matches(self, password_hash: str, password: bytes) -> bool:
        self.gate.wait(DEADLINE_S)
        self.checks += 1
        return super().matches(password_hash, password)


HASHES = HashesCounted()
ANN = User("ann", HASHES.make(b"secret"), ClientType.DEVICE, False, 0)
BILLING = User("billing", HASHES.make(b"money"), ClientType.APPLICATION, False, 0)
GONE = User("gone", HASHES.make(b"secret"), ClientType.DEVICE, True, 0)


def authentication(users: Users | None = None, **settings: object) -> Authentication:
    clients = ClientSettings(**settings)  # type: ignore[arg-type]
    return Authentication(
        users or UsersInMemory(ANN, BILLING, GONE),
        AuthenticationSettings(),
        clients,
        Counters(),
        hashes=HASHES,
    )


async def asked(gate: ChainGate, packet: Connect, visitor: Visitor) -> Identity | Refusal:
    return gate.admit(packet, visitor) or await gate.check(packet, visitor)


def entered(
    packet: Connect, visitor: Visitor, users: Users | None = None, **settings: object
) -> Identity | Refusal:
    async def scenario() -> Identity | Refusal:
        made = authentication(users, **settings)
        try:
            return await asked(made.gate, packet, visitor)
        finally:
            await made.close()

    return asyncio.run(scenario())


def connect(username: str | None = None, password: bytes | None = None, client_id: str = "c1") -> Connect:
    return Connect(client_id, ProtocolVersion.V5, True, 0, username, password, None, None)


def admitted(
    username: str | None,
    password: bytes | None,
    *,
    client_id: str = "c1",
    loopback: bool = True,
    users: Users | None = None,
    **settings: object,
) -> Identity | Refusal:
    """What a client hears that comes to a listener with no word of its own."""
    visitor = Visitor(loopback, None, ClientType.DEVICE, None)
    return entered(connect(username, password, client_id), visitor, users, **settings)


def code_of(answer: Identity | Refusal) -> ReasonCode:
    return ReasonCode.SUCCESS if isinstance(answer, Identity) else answer.code


@pytest.mark.parametrize(
    ("username", "password", "code"),
    [
        ("ann", b"secret", ReasonCode.SUCCESS),
        ("ann", b"Secret", ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        ("ann", b"", ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        ("ann", None, ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        ("ann", b"\xff\x00", ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        ("nobody", b"secret", ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        ("nobody", b"", ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        ("", b"", ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        (None, b"secret", ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        ("gone", b"secret", ReasonCode.NOT_AUTHORIZED),
        ("gone", b"wrong", ReasonCode.BAD_USER_NAME_OR_PASSWORD),
    ],
)
def test_a_name_that_is_given_is_checked_everywhere(
    username: str | None, password: bytes | None, code: ReasonCode
) -> None:
    for loopback in (True, False):
        assert code_of(admitted(username, password, loopback=loopback, allow_anonymous=True)) is code


@pytest.mark.parametrize(
    ("loopback", "allowed", "code"),
    [
        (True, False, ReasonCode.SUCCESS),
        (True, True, ReasonCode.SUCCESS),
        (False, True, ReasonCode.SUCCESS),
        (False, False, ReasonCode.NOT_AUTHORIZED),
    ],
)
def test_anonymous_clients_enter_on_loopback_or_when_allowed(
    loopback: bool, allowed: bool, code: ReasonCode
) -> None:
    assert code_of(admitted(None, None, loopback=loopback, allow_anonymous=allowed)) is code


@pytest.mark.promise("application-1")
@pytest.mark.parametrize(
    ("username", "password", "client_id", "expected"),
    [
        (None, None, "c1", ClientType.DEVICE),
        (None, None, "billing-7", ClientType.APPLICATION),
        (None, None, "Billing-7", ClientType.DEVICE),
        (None, None, "x-billing-7", ClientType.DEVICE),
        ("ann", b"secret", "c1", ClientType.DEVICE),
        ("ann", b"secret", "billing-7", ClientType.APPLICATION),
        ("billing", b"money", "c1", ClientType.APPLICATION),
    ],
)
def test_the_type_comes_with_the_user_or_the_client_id(
    username: str | None, password: bytes | None, client_id: str, expected: ClientType
) -> None:
    answer = admitted(username, password, client_id=client_id, application_ids=("billing-*",))
    assert isinstance(answer, Identity)
    assert (answer.client_type, answer.username) == (expected, username or "")


@pytest.mark.parametrize(("username", "password"), [("ann", b"wrong"), ("nobody", b"wrong")])
def test_an_unknown_user_costs_as_much_as_a_wrong_password(username: str, password: bytes) -> None:
    before = HASHES.checks
    assert code_of(admitted(username, password)) is ReasonCode.BAD_USER_NAME_OR_PASSWORD
    assert HASHES.checks == before + 1


def test_the_hash_of_nobody_costs_what_a_user_costs() -> None:
    assert ANN.password_hash.split("$")[1:4] == HASHES._of_nobody.split("$")[1:4]
    assert ANN.password_hash.split("$")[1:4] == ["argon2id", "v=19", "m=19456,t=2,p=1"]
    assert [len(part) for part in ANN.password_hash.split("$")] == [
        len(part) for part in HASHES._of_nobody.split("$")
    ]
    with pytest.raises(VerifyMismatchError):  # computed and compared: one that cannot be read costs nothing
        PasswordHasher().verify(HASHES._of_nobody, b"")


def test_checks_are_bounded_and_the_loop_goes_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "CHECKS_WAITING_MAX", 3)

    async def scenario() -> None:
        users = UsersInMemory(ANN)
        made = authentication(users)
        HASHES.gate.clear()
        visitor = Visitor(True, None, ClientType.DEVICE, None)

        async def enter() -> ReasonCode:
            return code_of(await asked(made.gate, connect("ann", b"secret"), visitor))

        held = [asyncio.create_task(enter()) for _ in range(5)]
        await wait_for(lambda: made._checks.now == 5, what="the checks")
        assert await enter() is ReasonCode.SERVER_BUSY
        at_once = made.gate.admit(connect(), visitor)
        assert at_once is not None and code_of(at_once) is ReasonCode.SUCCESS
        HASHES.gate.set()
        assert set(await asyncio.gather(*held)) == {ReasonCode.SUCCESS}
        assert await enter() is ReasonCode.SUCCESS
        await made.close()

    asyncio.run(scenario())


def test_nobody_who_can_be_known_quickly_waits_behind_slow_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads are busy and the waiting is full."""
    monkeypatch.setattr(build, "CHECKS_MAX", 1)
    monkeypatch.setattr(build, "CHECKS_WAITING_MAX", 1)
    generated = make_password().encode()
    pump = User("pump", hash_generated(generated), ClientType.DEVICE, False, 0)

    async def scenario() -> None:
        made = authentication(UsersInMemory(ANN, BILLING, pump))
        visitor = Visitor(True, None, ClientType.DEVICE, None)

        async def enter(name: str, password: bytes) -> ReasonCode:
            return code_of(await asked(made.gate, connect(name, password), visitor))

        assert await enter("ann", b"secret") is ReasonCode.SUCCESS
        HASHES.gate.clear()
        try:
            held = [asyncio.create_task(enter("billing", b"money")) for _ in range(2)]
            await wait_for(lambda: made._checks.now == 2, what="the checks")
            assert await enter("billing", b"money") is ReasonCode.SERVER_BUSY
            assert await enter("ann", b"secret") is ReasonCode.SUCCESS
            assert await enter("pump", generated) is ReasonCode.SUCCESS
        finally:
            HASHES.gate.set()
        assert set(await asyncio.gather(*held)) == {ReasonCode.SUCCESS}
        await made.close()

    asyncio.run(scenario())


def test_accounts_that_cannot_be_read_refuse_without_a_crash() -> None:
    users = UsersInMemory(ANN)
    users.error = StoreUnavailable("locked")
    assert code_of(admitted("ann", b"secret", users=users)) is ReasonCode.SERVER_UNAVAILABLE


def test_a_hash_that_cannot_be_read_is_no_password() -> None:
    assert not HASHES.matches("plain text", b"plain text")
    assert not HASHES.matches("", b"")


def test_accounts_keep_no_password(tmp_path: Path) -> None:
    users = SqliteUsers(tmp_path / "users.db")
    Accounts(users).add("ann", b"correct horse", ClientType.DEVICE)
    found = users.find("ann")
    users.close()
    assert found is not None
    assert HASHES.matches(found.password_hash, b"correct horse")
    assert not any(b"correct horse" in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "password", "why"),
    [
        ("", b"x", "a user name has 1 to 65535 bytes"),
        ("ä" * 32_768, b"x", "this one has 65536"),
        ("a\nb", b"x", "cannot be shown"),
        ("ann", b"", "the password is empty"),
        ("ann", b"x" * 65_536, "the password has 65536 bytes"),
    ],
)
def test_accounts_that_mqtt_cannot_carry_are_refused(name: str, password: bytes, why: str) -> None:
    users = UsersInMemory()
    with pytest.raises(UserError, match=why):
        Accounts(users).add(name, password, ClientType.DEVICE)
    assert users.all() == []


@pytest.mark.parametrize("general", [True, False])
@pytest.mark.parametrize("loopback", [True, False])
def test_a_listener_has_the_last_word_about_strangers(general: bool, loopback: bool) -> None:
    def answer(said: bool | None) -> bool:
        visitor = Visitor(loopback, said, ClientType.DEVICE, None)
        return isinstance(entered(connect(), visitor, allow_anonymous=general), Identity)

    assert answer(None) is (general or loopback)
    assert answer(True) is True
    assert answer(False) is False


@pytest.mark.promise("application-1")
def test_a_listener_may_make_applications() -> None:
    answer = entered(connect("ann", b"secret"), Visitor(False, None, ClientType.APPLICATION, None))
    assert isinstance(answer, Identity)
    assert (answer.username, answer.client_type) == ("ann", ClientType.APPLICATION)


@pytest.mark.parametrize(
    ("name", "client_type"),
    [("pump-7", ClientType.DEVICE), ("ann", ClientType.DEVICE), ("billing", ClientType.APPLICATION)],
)
def test_a_certificate_is_who_one_is_whatever_connect_says(name: str, client_type: ClientType) -> None:
    visitor = Visitor(False, False, ClientType.DEVICE, name)
    for packet in (connect(), connect("ann", b"wrong")):
        answer = entered(packet, visitor)
        assert isinstance(answer, Identity)
        assert (answer.username, answer.client_type) == (name, client_type)


def test_a_certificate_of_a_disabled_account_does_not_enter() -> None:
    assert (
        code_of(entered(connect(), Visitor(True, True, ClientType.DEVICE, "gone")))
        is ReasonCode.NOT_AUTHORIZED
    )


def test_a_user_name_may_be_the_client_id() -> None:
    ann = admitted("ann", b"secret", username_as_client_id=True, application_ids=("ann",))
    assert isinstance(ann, Identity)
    assert (ann.client_id, ann.client_type) == ("ann", ClientType.APPLICATION)
    other = admitted("ann", b"secret", username_as_client_id=True, application_ids=("c1",))
    assert isinstance(other, Identity) and other.client_type is ClientType.DEVICE
    assert code_of(admitted(None, None, username_as_client_id=True)) is ReasonCode.NOT_AUTHORIZED
    own = admitted("ann", b"secret")
    assert isinstance(own, Identity) and own.client_id == ""


def test_client_ids_that_the_broker_makes_are_not_to_be_guessed() -> None:
    ids = set()
    for _ in range(2):
        made = admitted("ann", b"secret", client_id="")
        assert isinstance(made, Identity)
        assert re.fullmatch(r"ember-[0-9a-f]{16}", made.new_client_id)
        ids.add(made.new_client_id)
    assert len(ids) == 2
