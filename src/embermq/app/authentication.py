"""Who enters, and as what: passwords, anonymous clients, client types."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from msgspec import Struct

from embermq.model.client_type import ClientType
from embermq.ports.errors import StoreError
from embermq.ports.users import User, Users
from embermq.protocol.reason_codes import ReasonCode
from embermq.server.settings import ClientSettings

MEMORY_KIB = 19 * 1024
TIME_COST = 2
PARALLELISM = 1


class Admission(Struct, frozen=True):
    """The answer to a CONNECT: SUCCESS with the client's type, or why not.

    Refusals: BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED (anonymous or disabled), SERVER_BUSY (too many checks wait),
    SERVER_UNAVAILABLE (the accounts cannot be read).
    """

    reason_code: ReasonCode
    client_type: ClientType = ClientType.DEVICE
    user: str | None = None


class AuthenticationStatistics(Struct, frozen=True):
    """Counts since the start, and checks under way or waiting now."""

    admitted: int
    refused: int
    busy: int
    checking: int


class PasswordHashes:
    """argon2id hashes; making or checking one takes about 20 ms of one core and 19 MiB."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher(time_cost=TIME_COST, memory_cost=MEMORY_KIB, parallelism=PARALLELISM)
        self._of_nobody = self._hasher.hash("")

    def make(self, password: bytes) -> str:
        """A salted hash with its parameters in it."""
        return self._hasher.hash(password)

    def matches(self, password_hash: str, password: bytes) -> bool:
        """Whether this is the password; False for a hash that cannot be read."""
        try:
            return self._hasher.verify(password_hash, password)
        except (Argon2Error, InvalidHashError):
            return False

    def spend(self, password: bytes) -> None:
        """Take the time of a check for a user who does not exist, so that time tells nobody who does."""
        self.matches(self._of_nobody, password)


class Authenticator:
    """Decides at CONNECT. Passwords are checked off the event loop, a bounded number at a time."""

    def __init__(self, users: Users, settings: ClientSettings, hashes: PasswordHashes | None = None) -> None:
        self._users = users
        self._settings = settings
        self._hashes = hashes or PasswordHashes()
        self._threads = ThreadPoolExecutor(settings.password_checks_max, thread_name_prefix="password")
        self._room = settings.password_checks_max + settings.password_checks_waiting_max
        self._checking = 0
        self._admitted = 0
        self._refused = 0
        self._busy = 0

    def client_type(self, client_id: str, user: User | None = None) -> ClientType:
        """APPLICATION by the user or by a client-id rule; everything else is DEVICE."""
        if user is not None and user.client_type is ClientType.APPLICATION:
            return ClientType.APPLICATION
        if any(fnmatchcase(client_id, rule) for rule in self._settings.application_ids):
            return ClientType.APPLICATION
        return ClientType.DEVICE

    def admit_anonymous(self, client_id: str, *, loopback: bool, allowed: bool | None = None) -> Admission:
        """The answer for a client that names no user, at once; `loopback`: it comes from this machine; `allowed`: what
        its listener says about it, None when that says nothing."""
        if allowed is None:
            allowed = loopback or self._settings.allow_anonymous
        if allowed:
            return self._count(Admission(ReasonCode.SUCCESS, self.client_type(client_id)))
        return self._count(Admission(ReasonCode.NOT_AUTHORIZED))

    async def admit(
        self, *, client_id: str, username: str | None, password: bytes | None, loopback: bool
    ) -> Admission:
        """The answer to a CONNECT. A name that is given is always checked, also where anonymous clients may enter."""
        if username is None and password is None:
            return self.admit_anonymous(client_id, loopback=loopback)
        return await self._in_thread(partial(self._check, client_id, username or "", password or b""))

    async def admit_certificate(self, client_id: str, name: str) -> Admission:
        """The answer for a client whose certificate proves that it is the user `name`. An account of that name is not
        needed; if there is one, its type holds, and it may be disabled."""
        return await self._in_thread(partial(self._look_up, client_id, name))

    async def _in_thread(self, check: Callable[[], Admission]) -> Admission:
        if self._checking >= self._room:
            self._busy += 1
            return self._count(Admission(ReasonCode.SERVER_BUSY))
        self._checking += 1
        try:
            return self._count(await asyncio.get_running_loop().run_in_executor(self._threads, check))
        except StoreError:
            return self._count(Admission(ReasonCode.SERVER_UNAVAILABLE))
        finally:
            self._checking -= 1

    def statistics(self) -> AuthenticationStatistics:
        """A snapshot."""
        return AuthenticationStatistics(self._admitted, self._refused, self._busy, self._checking)

    def close(self) -> None:
        """Drop the checks that wait, and let those under way finish."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _check(self, client_id: str, username: str, password: bytes) -> Admission:
        user = self._users.find(username)
        if user is None:
            self._hashes.spend(password)
            return Admission(ReasonCode.BAD_USER_NAME_OR_PASSWORD)
        if not self._hashes.matches(user.password_hash, password):
            return Admission(ReasonCode.BAD_USER_NAME_OR_PASSWORD)
        if user.disabled:
            return Admission(ReasonCode.NOT_AUTHORIZED)
        return Admission(ReasonCode.SUCCESS, self.client_type(client_id, user), user.name)

    def _look_up(self, client_id: str, name: str) -> Admission:
        user = self._users.find(name)
        if user is not None and user.disabled:
            return Admission(ReasonCode.NOT_AUTHORIZED)
        return Admission(ReasonCode.SUCCESS, self.client_type(client_id, user), name)

    def _count(self, admission: Admission) -> Admission:
        if admission.reason_code is ReasonCode.SUCCESS:
            self._admitted += 1
        else:
            self._refused += 1
        return admission
