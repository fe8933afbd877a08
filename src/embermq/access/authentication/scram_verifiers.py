"""What an account keeps for SCRAM: enough to check a proof, not enough to make one (RFC 5802, 3)."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from secrets import token_bytes

from msgspec import Struct

METHODS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
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


def make_verifiers(name: str, password: bytes, iterations: int) -> str:
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
            text, iteration_count=iterations, salt=token_bytes(SALT_BYTES)
        )
        lines.append(_line(Verifier(method, iterations, salt, stored_key, server_key)))
    return "\n".join(lines)


def lines_of_nobody(iterations: int) -> str:
    """What takes as long to read as what an account keeps."""
    return "\n".join(_line(verifier_of_nobody(b"", method, "", iterations)) for method in METHODS)


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


def verifier_of_nobody(secret: bytes, method: str, name: str, iterations: int) -> Verifier:
    """What stands for an account that does not exist: the same at each attempt, and like any other for whoever does not
    know `secret`. No password fits it."""

    def made(what: str) -> bytes:
        return hmac.digest(secret, f"{method}\0{what}\0{name}".encode(), HASHES[method])

    return Verifier(method, iterations, made("salt")[:SALT_BYTES], made("stored"), made("server"))


def _line(verifier: Verifier) -> str:
    keys = f"{_text(verifier.stored_key)}:{_text(verifier.server_key)}"
    return f"{verifier.method}${verifier.iterations}:{_text(verifier.salt)}${keys}"


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)
