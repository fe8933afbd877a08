"""Password hashes of Mosquitto, kept until their user's first login, and the files that they come from.

Password hashes of Mosquitto, kept until their user's first login.

`$6$salt$hash` is SHA-512 over password and salt, `$7$iterations$salt$hash` PBKDF2 with HMAC-SHA-512; salt and hash are
base64. Source: mosquitto, `mosquitto_passwd(1)` and its `password_mosq.c`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from msgspec import Struct

SHA512 = "6"
PBKDF2 = "7"
ROUNDS_MAX = 1_000_000
"""About half a second of one core; a check of every client would last so long while such a hash is kept."""
SALT_BYTES_MAX = 1_024
HASH_BYTES = 64


class ImportedHash(Struct, frozen=True):
    """`rounds` is 0 for a plain SHA-512."""

    rounds: int
    salt: bytes
    digest: bytes

    def __repr__(self) -> str:
        """Without salt and hash."""
        return f"ImportedHash(rounds={self.rounds})"

    def matches(self, password: bytes) -> bool:
        """Whether this is the password; takes `rounds`."""
        if self.rounds:
            found = hashlib.pbkdf2_hmac("sha512", password, self.salt, self.rounds)
        else:
            found = hashlib.sha512(password + self.salt).digest()
        return hmac.compare_digest(found, self.digest)


def is_imported(text: str) -> bool:
    """Whether a hash is of these kinds, and not the broker's own."""
    return text.startswith((f"${SHA512}$", f"${PBKDF2}$"))


def parse_imported(text: str) -> ImportedHash:
    """Read one; raises ValueError that says what is wrong, without the text."""
    parts = text.split("$")
    if len(parts) < 2 or parts[0] or parts[1] not in (SHA512, PBKDF2):
        raise ValueError("is not a hash of mosquitto_passwd, which begins with $6$ or $7$")
    rounds = 0
    if parts[1] == PBKDF2 and len(parts) == 5:
        number = parts.pop(2)
        if not (number.isascii() and number.isdigit()) or len(number) > 9 or int(number) < 1:
            raise ValueError("has iterations that are not a number from 1 on")
        rounds = int(number)
        if rounds > ROUNDS_MAX:
            raise ValueError(f"has {rounds} iterations, more than the largest possible {ROUNDS_MAX}")
    elif parts[1] == PBKDF2:
        raise ValueError("is not of the form $7$iterations$salt$hash")
    if len(parts) != 4:
        raise ValueError("is not of the form $6$salt$hash")
    try:
        salt = base64.b64decode(parts[2], validate=True)
        digest = base64.b64decode(parts[3], validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("has a salt or a hash that is not base64") from None
    if not 1 <= len(salt) <= SALT_BYTES_MAX or len(digest) != HASH_BYTES:
        raise ValueError(
            f"has a salt of {len(salt)} and a hash of {len(digest)} bytes; "
            f"1 to {SALT_BYTES_MAX} and {HASH_BYTES} can be"
        )
    return ImportedHash(rounds, salt, digest)


FILE_BYTES_MAX = 64 * 1024 * 1024


class PasswordEntry(Struct, frozen=True):
    """One user of the file; `line` counts from 1."""

    line: int
    name: str
    password_hash: str

    def __repr__(self) -> str:
        """Without the hash."""
        return f"Entry(line={self.line}, name={self.name!r})"


def parse_password_file(data: bytes) -> tuple[list[PasswordEntry], list[str]]:
    """The users, and what is wrong, by line. Empty lines and those that begin with # say nothing.

    What is wrong is told without what the line holds: it may be a password.
    """
    entries: dict[str, PasswordEntry] = {}
    problems: list[str] = []
    for number, ended in enumerate(data.split(b"\n"), 1):
        line = ended.rstrip(b"\r")
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            entry = _parse(number, line)
            if entry.name in entries:
                raise ValueError(f"names a user again who is in line {entries[entry.name].line}")
        except ValueError as error:
            problems.append(f"line {number}: {error}")
        else:
            entries[entry.name] = entry
    return list(entries.values()), problems


def _parse(number: int, line: bytes) -> PasswordEntry:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    name, colon, password_hash = text.partition(":")
    if not colon:
        raise ValueError("is not name:hash")
    if not password_hash.startswith("$"):
        raise ValueError("has a password in plain text; mosquitto_passwd -U FILE hashes those")
    if not is_imported(password_hash):
        raise ValueError("has a hash of a kind that is not understood; $6$ and $7$ are")
    try:
        parse_imported(password_hash)
    except ValueError as error:
        raise ValueError(f"the hash {error}") from None
    return PasswordEntry(number, name, password_hash)
