"""Names that are shown where nobody has an account."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.users_in_memory import UsersInMemory

from embermq.access.authentication.gate import Visitor
from embermq.access.authentication.identity import Identity
from embermq.access.authentication.settings import AuthenticationSettings, HttpHookSettings, StepName
from embermq.app.authentication import Authentication
from embermq.edge.settings import ClientSettings
from embermq.model.client_type import ClientType
from embermq.model.counters import Counters
from embermq.mqtt.wire.packets import Connect
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreUnavailable
from embermq.ports.users import User, Users

HERE = Visitor(True, None, ClientType.DEVICE, None)
ELSEWHERE = Visitor(False, None, ClientType.DEVICE, None)
CLOSED = Visitor(True, False, ClientType.DEVICE, None)
OPEN = Visitor(False, True, ClientType.DEVICE, None)
ANN = User("ann", "$argon2id$ann", ClientType.APPLICATION, False, 0)
DEFAULT = AuthenticationSettings().chain
WRONG, DENIED = ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED


def authentication(
    users: Users, chain: tuple[StepName, ...] = DEFAULT, *, allow_anonymous: bool = False
) -> Authentication:
    clients = ClientSettings(allow_anonymous=allow_anonymous)
    hook = HttpHookSettings(url="http://127.0.0.1:1/")
    settings = AuthenticationSettings(chain=chain)
    return Authentication(users, settings, clients, Counters(), http_hook=hook)


async def answer(
    made: Authentication, visitor: Visitor, username: str | None = "ann", password: bytes | None = b"secret"
) -> str | ReasonCode:
    """The user name that it enters with, or the refusal."""
    packet = Connect("c1", ProtocolVersion.V5, True, 0, username, password, None, None)
    found = made.gate.admit(packet, visitor) or await made.gate.check(packet, visitor)
    return found.username if isinstance(found, Identity) else found.code


def answered(users: Users, visitor: Visitor, **settings: object) -> str | ReasonCode:
    async def scenario() -> str | ReasonCode:
        made = authentication(users, **settings)  # type: ignore[arg-type]
        try:
            return await answer(made, visitor)
        finally:
            await made.close()

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("visitor", "allowed", "expected"),
    [
        (HERE, False, ""),
        (HERE, True, ""),
        (ELSEWHERE, False, WRONG),
        (ELSEWHERE, True, ""),
        (CLOSED, True, WRONG),
        (OPEN, False, ""),
    ],
)
def test_without_accounts_a_name_is_not_believed_and_enters_where_strangers_may(
    visitor: Visitor, allowed: bool, expected: str | ReasonCode
) -> None:
    assert answered(UsersInMemory(), visitor, allow_anonymous=allowed) == expected
    assert answered(UsersInMemory(ANN), visitor, allow_anonymous=allowed) is WRONG


@pytest.mark.parametrize(
    ("username", "password", "expected"),
    [("ann", None, ""), ("ann", b"", ""), ("", b"x", ""), (None, b"x", WRONG), (None, None, "")],
)
def test_a_name_may_come_without_a_password_but_not_a_password_without_a_name(
    username: str | None, password: bytes | None, expected: str | ReasonCode
) -> None:
    async def scenario() -> None:
        made = authentication(UsersInMemory())
        assert await answer(made, HERE, username, password) == expected
        await made.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (("password", "anonymous"), ""),
        (("anonymous", "password"), ""),
        (("password", "scram", "anonymous"), ""),
        (("anonymous",), WRONG),
        (("scram", "anonymous"), WRONG),
        (("password", "scram"), WRONG),
        (("password", "anonymous", "http"), ReasonCode.SERVER_UNAVAILABLE),
        (("anonymous", "http"), ReasonCode.SERVER_UNAVAILABLE),
    ],
)
def test_only_where_names_are_those_of_accounts(
    chain: tuple[StepName, ...], expected: str | ReasonCode
) -> None:
    assert answered(UsersInMemory(), HERE, chain=chain) == expected


def test_the_first_account_counts_at_once() -> None:
    async def scenario() -> None:
        users = UsersInMemory()
        made = authentication(users)
        assert await answer(made, HERE, "bob") == ""
        users.add(ANN)
        assert await answer(made, HERE, "bob") is WRONG
        assert await answer(made, HERE, None, None) == ""
        await made.close()

    asyncio.run(scenario())


def test_accounts_that_cannot_be_read_are_not_taken_for_none() -> None:
    async def scenario() -> None:
        users = UsersInMemory()
        made = authentication(users, ("anonymous", "password"))
        users.error_of_reading = StoreUnavailable("locked")
        assert await answer(made, HERE) is ReasonCode.SERVER_UNAVAILABLE
        await made.close()

    asyncio.run(scenario())


def test_where_there_are_accounts_no_more_is_looked_up_for_a_name_without_one() -> None:
    """It would take a time by which it could be told from a name with one."""

    class Counted(UsersInMemory):
        looks = 0

        def is_empty(self) -> bool:
            self.looks += 1
            return super().is_empty()

    async def scenario() -> None:
        users = Counted(ANN)
        made = authentication(users)
        before = users.looks
        assert await answer(made, HERE, "nobody") is WRONG
        assert users.looks == before
        await made.close()

    asyncio.run(scenario())
