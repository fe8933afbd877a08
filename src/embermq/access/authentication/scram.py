"""The step `scram`: SCRAM-SHA-256 and SCRAM-SHA-512 without channel binding (RFC 5802, RFC 7677), by AUTH packets.

Its library is loaded when the first client uses it.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import partial
from secrets import token_bytes
from typing import Protocol

from msgspec import Struct

from embermq.access.authentication.accounts import DISABLED
from embermq.access.authentication.checks import Checks
from embermq.access.authentication.identity import Question
from embermq.access.authentication.step import NOT_MINE, Admit, Applicant, Deny, Look, Step, Talk, Welcome
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.errors import StoreError
from embermq.ports.users import User, Users

METHODS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS = 4_096
"""How much work a guess at a password is, and each login for its client: the least of RFC 7677, which small devices do
in time. All accounts have the same, or they could be told from names without one."""
SALT_BYTES = 16
NAME_BYTES_MAX = 512
"""The longest name in UTF-8 that SCRAM lets in: preparing a text takes time."""
PASSWORD_BYTES_MAX = 4_096


class UnfitForScram(ValueError):
    """A name or password that SCRAM cannot carry. The text says why, and holds no password."""


class Verifier(Struct, frozen=True):
    """Checks the proofs of one SCRAM method: `stored_key` checks the client's proof, `server_key` makes ours."""

    method: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        """Without what a guess could be checked by."""
        return f"Verifier(method={self.method!r}, iterations={self.iterations})"


def make_verifiers(name: str, password: bytes) -> str:
    """One line a method, `SCRAM-SHA-256$4096:salt$stored key:server key` (RFC 5803), as an account keeps them.

    Raises UnfitForScram for a name that clients would send in another form than it is written here (they prepare it by
    SASLprep, RFC 4013), and for a password that cannot be prepared or is longer than PASSWORD_BYTES_MAX.
    """
    from scramp import ScramException, ScramMechanism
    from scramp.utils import saslprep

    if len(name.encode()) > NAME_BYTES_MAX:
        raise UnfitForScram(
            f"the user name has {len(name.encode())} bytes, more than the largest possible {NAME_BYTES_MAX} for SCRAM"
        )
    try:
        prepared = saslprep(name)
    except ScramException as error:
        raise UnfitForScram(f"the user name {name!r} cannot be used with SCRAM: {error.args[0]}") from None
    if prepared != name:
        raise UnfitForScram(f"SCRAM clients send the user name {name!r} as {prepared!r}: use that")
    text = _prepared_password(password)
    lines: list[str] = []
    for method in METHODS:
        salt, stored_key, server_key, _ = ScramMechanism(method).make_auth_info(
            text, iteration_count=ITERATIONS, salt=token_bytes(SALT_BYTES)
        )
        lines.append(_line(Verifier(method, ITERATIONS, salt, stored_key, server_key)))
    return "\n".join(lines)


def lines_of_nobody() -> str:
    """What takes as long to read as what an account keeps."""
    return "\n".join(_line(verifier_of_nobody(b"", method, "")) for method in METHODS)


def _prepared_password(password: bytes) -> str:
    from scramp import ScramException
    from scramp.utils import saslprep

    if len(password) > PASSWORD_BYTES_MAX:
        raise UnfitForScram(
            f"the password has {len(password)} bytes, more than the largest possible {PASSWORD_BYTES_MAX} for SCRAM"
        )
    try:
        prepared: str = saslprep(password.decode())
    except UnicodeDecodeError:
        raise UnfitForScram("the password is not UTF-8, so SCRAM cannot carry it") from None
    except ScramException as error:
        raise UnfitForScram(f"the password cannot be used with SCRAM: {error.args[0]}") from None
    if not prepared:
        raise UnfitForScram("nothing is left of the password when SCRAM prepares it")
    return prepared


def verifier_of(kept: str, method: str) -> Verifier | None:
    """The one of this method, from what an account keeps; None when there is none that can be read."""
    for line in kept.splitlines():
        if line.startswith(method + "$"):
            try:
                return _parse(method, line)
            except ValueError:
                return None
    return None


def _parse(method: str, line: str) -> Verifier:
    _, parameters, keys = line.split("$")
    iterations, salt = parameters.split(":")
    stored_key, server_key = keys.split(":")
    return Verifier(method, int(iterations), _bytes(salt), _bytes(stored_key), _bytes(server_key))


def verifier_of_nobody(secret: bytes, method: str, name: str) -> Verifier:
    """What stands for an account that does not exist: the same at each attempt, and like any other for whoever does not
    know `secret`. No password fits it."""

    def made(what: str) -> bytes:
        return hmac.digest(secret, f"{method}\0{what}\0{name}".encode(), HASHES[method])

    return Verifier(method, ITERATIONS, made("salt")[:SALT_BYTES], made("stored"), made("server"))


def _line(verifier: Verifier) -> str:
    keys = f"{_text(verifier.stored_key)}:{_text(verifier.server_key)}"
    return f"{verifier.method}${verifier.iterations}:{_text(verifier.salt)}${keys}"


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


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

    def __init__(self, users: Users, checks: Checks) -> None:
        self._users = users
        self._checks = checks
        self._secret = b""
        self._of_nobody = lines_of_nobody()

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
        nobody = verifier_of_nobody(self._secret, method, name)
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
