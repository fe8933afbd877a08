"""Keys that tokens are signed with, from files that may change."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWK
from jwt.exceptions import PyJWTError
from msgspec import Struct

from embermq.access.authentication.errors import ChainError
from embermq.access.authentication.settings import JwtSettings

LOG = logging.getLogger("embermq.authentication")
FILE_BYTES_MAX = 1024 * 1024
KEYS_MAX = 100
SECRET_BYTES_MIN = 32
_SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
"""A secret is as long as the hash, or longer (RFC 7518, 3.2)."""
RSA_BITS_MIN = 2_048
LOOK_S = 1.0
"""How often at most the files are looked at."""
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": ("ES256",), "secp384r1": ("ES384",), "secp521r1": ("ES512",)}
Secret = bytes | RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


class Key(Struct, frozen=True):
    """`algorithms` are those that it may check, and no others; `kid` is "" for a key that has no name."""

    material: Secret
    algorithms: tuple[str, ...]
    kid: str = ""

    def __repr__(self) -> str:
        """Without the key."""
        return f"Key(algorithms={self.algorithms})"


class KeyFiles:
    """The keys of all files, for any thread. Raises ChainError when one cannot be used at first; later the keys
    before stay, and the log says why."""

    def __init__(self, settings: JwtSettings) -> None:
        self._settings = settings
        self._marks = self._look()
        self._refused: list[tuple[int, int, int] | None] | None = None
        """Marks of files that cannot be used, which the log has been told."""
        self._keys = tuple(self._read())
        self._looked_s = 0.0

    def candidates(self, algorithm: str, kid: object, now_s: float) -> list[Key]:
        """Keys that may check a token: the one that it names, or those without a name when there is none of that name.
        `now_s` never goes back."""
        if not self._looked_s <= now_s < self._looked_s + LOOK_S:
            self._looked_s = now_s
            self._refresh()
        fitting = [key for key in self._keys if algorithm in key.algorithms]
        named = [key for key in fitting if key.kid and key.kid == kid]
        if named:
            return named
        unnamed = [key for key in fitting if not key.kid]
        if kid is None and not unnamed and len(fitting) == 1:
            return fitting
        return unnamed

    def _refresh(self) -> None:
        marks = self._look()
        if marks == self._marks:
            return
        try:
            self._keys = tuple(self._read())
        except ChainError as error:  # it may become readable without another mark, so it is tried again
            if marks != self._refused:
                LOG.error("the keys of tokens stay as they were: %s", error)
            self._refused = marks
        else:
            self._marks, self._refused = marks, None
            LOG.info("the keys of tokens were read again: %d", len(self._keys))

    def _files(self) -> Iterator[tuple[str, str]]:
        settings = self._settings
        if settings.hmac_secret_file:
            yield "jwt.hmac_secret_file", settings.hmac_secret_file
        for name in settings.public_key_files:
            yield "jwt.public_key_files", name

    def _look(self) -> list[tuple[int, int, int] | None]:
        marks: list[tuple[int, int, int] | None] = []
        for _, name in self._files():
            try:
                found = os.stat(name)
            except OSError:
                marks.append(None)
            else:
                marks.append((found.st_ino, found.st_size, found.st_mtime_ns))
        return marks

    def _read(self) -> Iterator[Key]:
        for setting, name in self._files():
            data = _content(setting, name)
            try:
                if setting == "jwt.hmac_secret_file":
                    yield _secret(data)
                elif data.lstrip()[:1] == b"{":  # no PEM file begins so
                    yield from _key_set(data)
                else:
                    yield _key(_public(data), "")
            except ValueError as error:
                raise ChainError(setting, f"{name} {error}") from None


def _content(setting: str, name: str) -> bytes:
    path = Path(name)
    if path.exists() and not path.is_file():  # a pipe would hold up the start for ever
        raise ChainError(setting, f"{name} is not a file")
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ChainError(setting, f"cannot read {name}: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ChainError(setting, f"{name} has more than the largest possible {FILE_BYTES_MAX} bytes")
    return data


def _secret(data: bytes) -> Key:
    secret = data.rstrip(b"\r\n")
    if b"-----BEGIN" in secret:
        raise ValueError("is a PEM file: a public key is no secret")
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError(f"has {len(secret)} bytes, less than the smallest possible {SECRET_BYTES_MIN}")
    algorithms = [name for name, size in _SECRET_BYTES.items() if len(secret) >= size]
    return Key(secret, tuple(algorithms))


def _public(data: bytes) -> object:
    try:
        return load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(
            "is not a PEM file with a public key (-----BEGIN PUBLIC KEY-----), nor a JSON Web Key Set"
        ) from None


def _key(material: object, kid: str) -> Key:
    if isinstance(material, RSAPublicKey):
        if material.key_size < RSA_BITS_MIN:
            raise ValueError(
                f"has an RSA key of {material.key_size} bits, less than the smallest possible {RSA_BITS_MIN}"
            )
        return Key(material, _RSA, kid)
    if isinstance(material, EllipticCurvePublicKey) and material.curve.name in _CURVES:
        return Key(material, _CURVES[material.curve.name], kid)
    if isinstance(material, Ed25519PublicKey):
        return Key(material, ("EdDSA",), kid)
    raise ValueError("has a key of an unsupported kind: RSA, P-256, P-384, P-521 and Ed25519 public keys are")


def _key_set(data: bytes) -> Iterator[Key]:
    try:
        entries = json.loads(data)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError('is not a JSON Web Key Set, {"keys": [...]}') from None
    if not isinstance(entries, list) or not entries or len(entries) > KEYS_MAX:
        raise ValueError(f"has no list of 1 to {KEYS_MAX} keys")
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise ValueError(f"has a key number {number} that is no object")
        if entry.get("use", "sig") != "sig":
            continue
        if entry.get("kty") == "oct" or "d" in entry:
            raise ValueError(f"has a secret key, number {number}: a key set is for public keys")
        kid = entry.get("kid", "")
        try:
            key = _key(PyJWK(entry).key, kid if isinstance(kid, str) else "")
        except (PyJWTError, TypeError, UnsupportedAlgorithm):
            raise ValueError(f"has a key that cannot be used, number {number}") from None
        said = entry.get("alg")
        yield Key(key.material, (said,), key.kid) if said in key.algorithms else key
