"""The step `scram`: SCRAM-SHA-256 and SCRAM-SHA-512 without channel binding (RFC 5802, RFC 7677), by AUTH packets.

Its library is loaded when the first client uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from embermq.access.authentication.accounts import DISABLED
from embermq.access.authentication.checks import Checks
from embermq.access.authentication.identity import Question
from embermq.access.authentication.scram_verifiers import (
    METHODS,
    Verifier,
    lines_of_nobody,
    verifier_of,
    verifier_of_nobody,
)
from embermq.access.authentication.step import NOT_MINE, Admit, Applicant, Deny, Look, Step, Talk, Welcome
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.errors import StoreError
from embermq.ports.users import User, Users

DATA_BYTES_MAX = 2_048
"""The longest message of a client: preparing it takes time, and a name of 512 bytes fits with its escapes."""
TOO_LONG = Deny(ReasonCode.NOT_AUTHORIZED, f"its SCRAM message has more than {DATA_BYTES_MAX} bytes")
MALFORMED = Deny(ReasonCode.NOT_AUTHORIZED, "its SCRAM message is malformed or out of order")
WRONG = Deny(ReasonCode.NOT_AUTHORIZED, "its SCRAM proof is not that of an account")
CHANGED = Deny(ReasonCode.SERVER_UNAVAILABLE, "its account was changed during authentication")
"""Its proof was of what the account had: whether it knows what the account has now, only a new run can tell."""


class _Server(Protocol):
    """The library's half of one exchange."""

    def set_client_first(self, client_first: str) -> None: ...
    def get_server_first(self) -> str: ...
    def set_client_final(self, client_final: str) -> None: ...
    def get_server_final(self) -> str: ...


class ScramStep(Step):
    """Whoever proves to know the password of an account. Who has no account, or one without what SCRAM needs, is led
    through the same messages and fails at the proof.

    Its look-ups are short, so it has `checks` of its own: they are not to wait behind passwords. It closes them.
    """

    name = "scram"
    methods = frozenset(METHODS)

    def __init__(self, users: Users, checks: Checks, *, iterations: int) -> None:
        self._users = users
        self._checks = checks
        self._iterations = iterations
        self._secret = b""
        self._of_nobody = lines_of_nobody(iterations)

    def look(self, applicant: Applicant) -> Look:
        """See the base. Nothing can be told from CONNECT alone."""
        return NOT_MINE

    def talk(self, method: str) -> Talk:
        return _ScramTalk(self, method, self._checks)

    async def close(self) -> None:
        self._checks.close()

    def find(self, method: str, name: str) -> tuple[User | None, Verifier]:
        """The account that is asked for, and what to check its proof by: made up when there is none. Both ways read and
        make up the same, so that time tells nobody which one it was. Raises StoreError."""
        if not self._secret:
            self._secret = self._users.secret()
        user = self._users.find(name)
        nobody = verifier_of_nobody(self._secret, method, name, self._iterations)
        has_some = user is not None and bool(user.scram)
        verifier = verifier_of(user.scram if user is not None and has_some else self._of_nobody, method)
        return (user, verifier) if has_some and verifier is not None else (None, nobody)

    def admit(self, user: User) -> Admit | Deny:
        """The answer to a proof that was right, unless the account changed on the way. Raises StoreError."""
        now = self._users.find(user.name)
        if now is None or not now.scram:
            return WRONG
        if now.disabled:
            return DISABLED
        if now.scram != user.scram:
            return CHANGED
        return Admit(now.name, now.client_type, account_version=now.version)


class _ScramTalk(Talk):
    """One run: the client's first message, ours, its proof, ours. A client that sends nothing at first is asked for its
    first message (RFC 4422, 5.1)."""

    def __init__(self, step: ScramStep, method: str, checks: Checks) -> None:
        self._step = step
        self._method = method
        self._checks = checks
        self._server: _Server | None = None
        self._user: User | None = None
        self._was_asked = False

    async def answer(self, data: bytes | None) -> Question | Welcome | Deny:
        if self._server is None and not data and not self._was_asked:
            self._was_asked = True
            return Question(None)
        try:
            text = (data or b"").decode()
        except UnicodeDecodeError:
            return MALFORMED
        if len(text) > DATA_BYTES_MAX:
            return TOO_LONG
        if self._server is None:
            return await self._checks.run(partial(self._first, text))
        return await self._final(self._server, text)

    def _first(self, text: str) -> Question | Deny:
        server = _library_server(self._method, self._find)
        said = _said(server.set_client_first, text) and server.get_server_first()
        if not said:
            return MALFORMED
        self._server = server
        return Question(said.encode())

    def _find(self, name: str) -> Verifier:
        self._user, verifier = self._step.find(self._method, name)
        return verifier

    async def _final(self, server: _Server, text: str) -> Welcome | Deny:
        if not _said(server.set_client_final, text):
            return WRONG
        user = self._user
        if user is None:  # the proof fitted what was made up
            return WRONG
        admit = await self._checks.run(partial(self._step.admit, user))
        return Welcome(admit, server.get_server_final().encode()) if isinstance(admit, Admit) else admit


def _library_server(method: str, find: Callable[[str], Verifier]) -> _Server:
    from scramp import ScramMechanism

    def keys(name: str) -> tuple[bytes, bytes, bytes, int]:
        verifier = find(name)
        return verifier.salt, verifier.stored_key, verifier.server_key, verifier.iterations

    server: _Server = ScramMechanism(method).make_server(keys)
    return server


def _said(say: Callable[[str], None], text: str) -> bool:
    """Whether the library takes what the client said. Raises StoreError when the look-up did."""
    from scramp import ScramException

    try:
        say(text)
    except ScramException as error:
        if isinstance(error.__cause__, StoreError):
            raise error.__cause__ from None
        return False
    return True
