"""Passwords that EmberMQ makes: 128 random bits, kept as a salted SHA-256.

A slow hash protects what people choose, which can be guessed. 2**128 passwords cannot be tried however fast one try is,
so a device with such a password costs a login two microseconds instead of an argon2id.
"""

from __future__ import annotations

import hashlib
import hmac
from secrets import token_bytes, token_hex

PREFIX = "$generated$"
PASSWORD_BYTES = 16
SALT_BYTES = 16


def make_password() -> str:
    """32 hexadecimal digits, which no shell, URL or AT command takes for something else."""
    return token_hex(PASSWORD_BYTES)


def hash_generated(password: bytes) -> str:
    """The hash of a password of `make_password`; no other may be kept so."""
    assert len(password) == 2 * PASSWORD_BYTES
    salt = token_bytes(SALT_BYTES)
    return f"{PREFIX}{salt.hex()}${_digest(salt, password).hex()}"


def is_generated(text: str) -> bool:
    """Whether a hash is of this kind."""
    return text.startswith(PREFIX)


def matches_generated(text: str, password: bytes) -> bool:
    """Whether this is the password of such a hash; False for one that cannot be read."""
    if len(password) != 2 * PASSWORD_BYTES:
        return False
    salt, _, digest = text.removeprefix(PREFIX).partition("$")
    try:
        return hmac.compare_digest(_digest(bytes.fromhex(salt), password), bytes.fromhex(digest))
    except ValueError:
        return False


def _digest(salt: bytes, password: bytes) -> bytes:
    return hashlib.sha256(salt + password).digest()
