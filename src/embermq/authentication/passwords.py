"""The step `password`: a name and a password that an account has."""

from __future__ import annotations

from functools import partial

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from embermq.authentication.accounts import DISABLED
from embermq.authentication.checks import Checks
from embermq.authentication.step import CHECK, NOT_MINE, Admit, Answer, Applicant, Deny, Look, Step
from embermq.ports.users import Users
from embermq.protocol.reason_codes import ReasonCode

MEMORY_KIB = 19 * 1024
TIME_COST = 2
PARALLELISM = 1
WRONG = Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "the password is not that of the account")


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


class PasswordStep(Step):
    """A name without an account is not its business, but costs what the others cost."""

    name = "password"

    def __init__(self, users: Users, checks: Checks, hashes: PasswordHashes | None = None) -> None:
        self._users = users
        self._checks = checks
        self._hashes = hashes or PasswordHashes()

    def look(self, applicant: Applicant) -> Look:
        """See the base. A name that is given is always checked, also where anonymous clients may enter."""
        return NOT_MINE if applicant.username is None and applicant.password is None else CHECK

    async def check(self, applicant: Applicant) -> Answer:
        """See the base."""
        return await self._checks.run(
            partial(self._check, applicant.username or "", applicant.password or b"")
        )

    def _check(self, username: str, password: bytes) -> Answer:
        user = self._users.find(username)
        if user is None:
            self._hashes.spend(password)
            return NOT_MINE
        if not self._hashes.matches(user.password_hash, password):
            return WRONG
        if user.disabled:
            return DISABLED
        return Admit(user.name, user.client_type, account_version=user.version)
