"""The step `jwt`: a token in the place of the password."""

from __future__ import annotations

import base64
import json
import time
from functools import partial

import jwt
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

from embermq.access.authentication.checks import Checks
from embermq.access.authentication.settings import JwtSettings
from embermq.access.authentication.step import CHECK, NOT_MINE, Admit, Applicant, Deny, Look, Step, StepAnswer
from embermq.access.authentication.token_keys import Key, KeyFiles
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.reason_codes import ReasonCode

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
