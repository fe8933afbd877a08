"""The step `jwt`: a token in the place of the password."""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWK
from jwt.exceptions import (
    ExpiredSignatureError,
    ImmatureSignatureError,
    InvalidAudienceError,
    InvalidIssuedAtError,
    InvalidIssuerError,
    InvalidSignatureError,
    MissingRequiredClaimError,
    PyJWTError,
)
from msgspec import Struct

from embermq.access.authentication.checks import Checks
from embermq.access.authentication.errors import ChainError
from embermq.access.authentication.settings import JwtSettings
from embermq.access.authentication.step import CHECK, NOT_MINE, Admit, Applicant, Deny, Look, Step, StepAnswer
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.reason_codes import ReasonCode

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


EXPIRES_S_MAX = 253_402_300_799
"""The end of the year 9999. What is later is a mistake, milliseconds for example."""
LEEWAY_S = 5
"""How much the clocks of who signs a token and of this machine may differ."""
NAME_BYTES_MAX = 65_535
REASONS: dict[type[PyJWTError], str] = {
    ExpiredSignatureError: "it has expired",
    ImmatureSignatureError: "it is not valid yet",
    InvalidAudienceError: "it is for another audience",
    InvalidIssuedAtError: "its time of issue cannot be",
    InvalidIssuerError: "it is of another issuer",
    InvalidSignatureError: "its signature is wrong",
    MissingRequiredClaimError: "a claim is missing that must be there",
}
"""Told in our own words: nothing of the token is to come into the log."""
CLIENT_TYPES = {"device": ClientType.DEVICE, "application": ClientType.APPLICATION}


class _Refused(Exception):
    """The text says why, without anything of the token."""


class TokenStep(Step):
    """A password that has the form of a token is its business, and nobody else's; the user name of CONNECT does not
    count. Raises ChainError when a key file cannot be used."""

    name = "jwt"

    def __init__(self, settings: JwtSettings, checks: Checks) -> None:
        self._settings = settings
        self._checks = checks
        self._keys = KeyFiles(settings)
        self._required = ["exp"] if settings.require_exp else []

    def look(self, applicant: Applicant) -> Look:
        password = applicant.password
        return CHECK if password is not None and _is_token(password) else NOT_MINE

    async def check(self, applicant: Applicant) -> StepAnswer:
        return await self._checks.run(partial(self._check, applicant))

    def _check(self, applicant: Applicant) -> StepAnswer:
        token = (applicant.password or b"").decode("ascii")
        header = _header(token)
        if header is None:
            return NOT_MINE
        try:
            return self._admit(self._claims(token, header), applicant.client_id)
        except _Refused as refused:
            return _deny(str(refused))
        except PyJWTError as error:
            return _deny(REASONS.get(type(error), f"it is malformed ({type(error).__name__})"))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            return _deny(f"it is malformed ({type(error).__name__})")

    def _claims(self, token: str, header: dict[str, object]) -> dict[str, object]:
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._settings.algorithms:
            raise _Refused("its algorithm is not one of jwt.algorithms")
        if "crit" in header or header.get("b64") is False:
            raise _Refused("it asks for extensions that are not known")  # RFC 7515, 4.1.11
        keys = self._keys.candidates(algorithm, header.get("kid"), time.monotonic())
        if not keys:
            raise _Refused("there is no key for it")
        for key in keys[:-1]:
            try:
                return self._verified(token, algorithm, key)
            except InvalidSignatureError:
                continue
        return self._verified(token, algorithm, keys[-1])

    def _verified(self, token: str, algorithm: str, key: Key) -> dict[str, object]:
        settings = self._settings
        claims: dict[str, object] = jwt.decode(
            token,
            key.material,
            algorithms=[algorithm],
            issuer=settings.issuer or None,
            audience=settings.audience or None,
            leeway=LEEWAY_S,
            options={"require": self._required},
        )
        return claims

    def _admit(self, claims: dict[str, object], client_id: str) -> Admit:
        settings = self._settings
        name = claims.get(settings.user_claim)
        if not isinstance(name, str) or not name or not name.isprintable():
            raise _Refused("jwt.user_claim names no user in it")
        if len(name.encode()) > NAME_BYTES_MAX:
            raise _Refused(f"its user name has more than {NAME_BYTES_MAX} bytes")
        if settings.client_id_claim and (not client_id or claims.get(settings.client_id_claim) != client_id):
            raise _Refused("it is for another client id")
        client_type = ClientType.DEVICE
        if settings.client_type_claim and settings.client_type_claim in claims:
            said = claims[settings.client_type_claim]
            if not isinstance(said, str) or said not in CLIENT_TYPES:
                raise _Refused("its client type is neither device nor application")
            client_type = CLIENT_TYPES[said]
        return Admit(name, client_type, expires_ms=self._expires_ms(claims.get("exp")))

    def _expires_ms(self, exp: object) -> int:
        if exp is None:
            return 0
        if isinstance(exp, bool) or not isinstance(exp, int | float):
            raise _Refused("its exp is not a number")
        if not 0 <= exp <= EXPIRES_S_MAX:
            raise _Refused("its exp is not a Unix time in seconds up to the year 9999")
        return int(exp * 1000) + LEEWAY_S * 1000


def _is_token(password: bytes) -> bool:
    """Whether it has the form of one: three parts, the first of which begins as `{"` does in base64."""
    return password.startswith(b"ey") and password.count(b".") == 2 and password.isascii()


def _header(token: str) -> dict[str, object] | None:
    """Its header, not verified; None for what is no token after all."""
    part = token.partition(".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) else None


def _deny(why: str) -> Deny:
    return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, f"its token is refused: {why}")
