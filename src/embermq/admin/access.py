"""Who may use the API: bearer tokens with scopes; without any token, this machine alone.

Tokens are random, so a plain hash of them is as good as none to whoever reads it.
"""

from __future__ import annotations

import logging
from asyncio import BaseTransport
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from embermq.admin.errors import AccessRefused

SCHEME = "bearer"
NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
MomentMs = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""Unix time, up to the year 9999."""
_PROXY_PREFIXES = ("x-original-", "x-envoy-", "x-amzn-")
_PROXY_SUFFIXES = ("-real-ip", "-client-ip", "-connecting-ip", "-user-ip")

_log = logging.getLogger(__name__)


class Scope(StrEnum):
    """What a token may do. `admin` may do what `operate` may, and all may do what `read` may."""

    READ = "read"
    OPERATE = "operate"
    """Send clients away, publish, read payloads, delete messages, put dead letters back."""
    ADMIN = "admin"
    """End sessions, make and configure queues, decide who may do what."""
    RULES = "rules"
    """Write rules of the pipeline: SQL that sees every message, and publishes anywhere. No other scope may."""


_MAY = {
    Scope.READ: {Scope.READ},
    Scope.OPERATE: {Scope.READ, Scope.OPERATE},
    Scope.ADMIN: {Scope.READ, Scope.OPERATE, Scope.ADMIN},
    Scope.RULES: {Scope.READ, Scope.RULES},
}


class ApiToken(Struct, frozen=True):
    """A token as it is stored: `hash` is SHA-256 in hex, "" where the name in a client's `certificate` stands for it.
    `expires_ms` is 0 for never."""

    name: Annotated[str, Meta(pattern=rf"\A{NAME_PATTERN}\Z")]
    scope: Scope
    hash: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
    created_ms: MomentMs
    expires_ms: MomentMs = 0
    certificate: str = ""

    def __repr__(self) -> str:
        """Without the hash, so that no log can hold it."""
        return f"ApiToken(name={self.name!r}, scope={self.scope.value!r})"


class ApiTokens(Protocol):
    """The tokens of the API, which another process may change meanwhile."""

    def all(self) -> Mapping[str, ApiToken]:
        """Every token that is there now, by name; quick, since each request asks. Raises OSError when it cannot be
        said: then nobody may do anything."""
        ...


CertificateName = Callable[[BaseTransport], str]
"""The name that the verified certificate of a connection proves, "" for none."""


def no_certificate(_: BaseTransport) -> str:
    """Of a connection without TLS."""
    return ""


class Caller(Protocol):
    """Who asks, over whatever protocol. `authorization` is what HTTP calls so, `certificate` the name in the caller's
    certificate; "" without."""

    @property
    def authorization(self) -> str: ...

    @property
    def certificate(self) -> str: ...

    def is_foreign_page(self) -> bool:
        """Whether a browser asks for a page of somebody else's."""
        ...

    def is_of_this_machine(self) -> bool:
        """Whether it is surely a program here, and not a proxy or a browser's page."""
        ...


class Everything:
    """For a socket that only the operator can open."""

    def check(self, caller: Caller, wanted: Scope, *, needs_token: bool = False) -> str:
        """Nothing is refused; who asks has no name."""
        return ""


class TokenAccess:
    """For listeners that anybody may reach."""

    def __init__(self, tokens: ApiTokens, now_ms: UnixClock) -> None:
        self._tokens = tokens
        self._now_ms = now_ms
        self._complaint = ""

    def check(self, caller: Caller, wanted: Scope, *, needs_token: bool = False) -> str:
        """The name of the token that allows it, "" when none is needed. Raises AccessRefused."""
        try:
            tokens = self._tokens.all()
        except OSError as error:
            self._complain(str(error))
            raise AccessRefused(
                403, "the tokens of the API cannot be read; the broker's log says more"
            ) from None
        self._complaint = ""
        given = caller.authorization
        if not tokens and not given:
            if caller.is_of_this_machine():
                if not needs_token:
                    return ""
                raise AccessRefused(
                    403,
                    "this decides about access, so it needs a token: embermq tokens create NAME --scope SCOPE",
                )
            raise AccessRefused(
                403,
                "without tokens the API is for this machine alone: embermq tokens create NAME --scope SCOPE",
            )
        by_certificate = not given and not caller.is_foreign_page()
        token = _of_certificate(tokens, caller.certificate) if by_certificate else None
        if token is None:
            scheme, _, secret = given.partition(" ")
            if scheme.lower() != SCHEME or not secret.strip():
                raise AccessRefused(401, "a token is needed: Authorization: Bearer TOKEN")
            token = _find(tokens, secret.strip())
        if token is None or 0 < token.expires_ms <= self._now_ms():
            raise AccessRefused(401, "the token is unknown, revoked or over")
        if wanted not in _MAY[token.scope]:
            raise AccessRefused(
                403, f"this needs a token with the scope {wanted}, {token.name} has {token.scope}"
            )
        return token.name

    def _complain(self, text: str) -> None:
        """Once, since whoever asks can ask often."""
        if text != self._complaint:
            self._complaint = text
            _log.error("nobody may use the API, its tokens cannot be read: %s", text)


class UnixClock(Protocol):
    """What tells the time, as milliseconds since 1970 in UTC."""

    def __call__(self) -> int: ...


class Access(Protocol):
    """Decides about one request."""

    def check(self, caller: Caller, wanted: Scope, *, needs_token: bool = False) -> str:
        """The name of the caller's token, "" without. `needs_token`: no program on this machine may without one.
        Raises AccessRefused."""
        ...


def may(access: Access, caller: Caller, wanted: Scope) -> bool:
    """Whether it is allowed what is of this scope."""
    try:
        access.check(caller, wanted)
    except AccessRefused:
        return False
    return True


def names_a_proxy(headers: Iterable[str]) -> bool:
    """Whether there is one among these names, in lower case, that only proxies send."""
    return any(
        header == "via"
        or "forwarded" in header
        or header.startswith(_PROXY_PREFIXES)
        or header.endswith(_PROXY_SUFFIXES)
        for header in headers
    )


def is_loopback(host: str) -> bool:
    """Whether it is an address of this machine alone, also an IPv4 one that is written as IPv6."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def token_hash(secret: str) -> str:
    """What is stored of a token."""
    return sha256(secret.encode(errors="surrogateescape")).hexdigest()


def _of_certificate(tokens: Mapping[str, ApiToken], name: str) -> ApiToken | None:
    return next((token for token in tokens.values() if name and token.certificate == name), None)


def _find(tokens: Mapping[str, ApiToken], secret: str) -> ApiToken | None:
    hashed = token_hash(secret)
    found = None
    for token in tokens.values():
        if token.hash and compare_digest(token.hash, hashed):
            found = token
    return found
