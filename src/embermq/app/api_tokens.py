"""Tokens of the API: a file in the data directory, beside the accounts, with the hash of each.

Every node has its own. The file is written anew by `embermq tokens`, and read again by the broker when it has changed.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from embermq.admin.access import NAME_PATTERN, ApiToken, Scope, TokenAccess, token_hash
from embermq.app.durable_file import replace_durably
from embermq.app.errors import OptionError, UserError
from embermq.queues.durations import parse_duration

FILE_NAME = "api-tokens.json"
LOCK_NAME = "api-tokens.lock"
PREFIX = "emq_"
SECRET_BYTES = 32
TOKENS_MAX = 1_000
NAME = re.compile(NAME_PATTERN)


class TokenFile:
    """Those of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._lock = data_dir / LOCK_NAME
        self._read: dict[str, ApiToken] = {}
        self._seen: tuple[int, int, int] | None = None

    def all(self) -> Mapping[str, ApiToken]:
        """By name; read again only when the file is another one. Raises OSError."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._read, self._seen = {}, None
            return self._read
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen != self._seen:
            try:
                tokens = msgspec.json.decode(self._path.read_bytes(), type=list[ApiToken])
            except msgspec.MsgspecError as error:
                raise OSError(f"{self._path} is damaged: {error}") from error
            self._read, self._seen = {token.name: token for token in tokens}, seen
        return self._read

    def create(self, name: str, scope: Scope, expires_ms: int, certificate: str = "") -> str:
        """Returns the token, which nobody can read again; "" when the name in a certificate stands for it. Raises
        UserError for a name that is taken, OptionError for one that cannot be."""
        if not NAME.fullmatch(name):
            raise OptionError(
                f"{name[:80]!r} cannot name a token: letters, digits, '.', '_' and '-', at most 64"
            )
        if not certificate.isprintable():
            raise OptionError(f"{certificate[:80]!r} cannot be the name in a certificate")
        secret = "" if certificate else PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        with self._changing() as tokens:
            if name in tokens:
                raise UserError(f"there is a token {name!r} already")
            other = next(
                (one.name for one in tokens.values() if certificate and one.certificate == certificate), ""
            )
            if other:
                raise UserError(f"the token {other!r} is for this name in a certificate already")
            if len(tokens) >= TOKENS_MAX:
                raise UserError(f"there are {len(tokens)} tokens, as many as there may be; revoke one first")
            now_ms = time.time_ns() // 1_000_000
            tokens[name] = ApiToken(
                name, scope, token_hash(secret) if secret else "", now_ms, expires_ms, certificate
            )
        return secret

    def revoke(self, name: str) -> None:
        """Raises UserError when there is none of that name."""
        with self._changing() as tokens:
            if tokens.pop(name, None) is None:
                raise UserError(f"there is no token {name[:80]!r}")

    @contextmanager
    def _changing(self) -> Iterator[dict[str, ApiToken]]:
        """Whole or not at all, and one after another."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = dict(self.all())
            yield tokens
            data = msgspec.json.format(msgspec.json.encode(list(tokens.values())), indent=1)
            replace_durably(self._path, data)
        finally:
            os.close(lock)


def expires_ms_of(duration: str, now_ms: int) -> int:
    """When a token of this duration is over, 0 for never. Raises OptionError."""
    if not duration:
        return 0
    try:
        lasts_ms = parse_duration(duration)
    except ValueError as error:
        raise OptionError(f"expires: {error}") from None
    if not lasts_ms:
        raise OptionError(f"expires: {duration} is over at once")
    return now_ms + lasts_ms


def token_access(data_dir: Path) -> TokenAccess:
    """The check of a listener that anybody may reach."""
    return TokenAccess(TokenFile(data_dir), lambda: time.time_ns() // 1_000_000)
