"""The step `password`: a name and a password that an account has."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from functools import partial

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from msgspec import Struct

from embermq.access.authentication.account_lookups import AccountLookups
from embermq.access.authentication.accounts import DISABLED
from embermq.access.authentication.checks import Checks
from embermq.access.authentication.generated_passwords import is_generated, matches_generated
from embermq.access.authentication.imported_hashes import is_imported, parse_imported
from embermq.access.authentication.remembered_passwords import RememberedPasswords
from embermq.access.authentication.slowing import network_of
from embermq.access.authentication.step import CHECK, NOT_MINE, Admit, Applicant, Deny, Look, Step, StepAnswer
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.errors import StoreError
from embermq.ports.users import User, Users

LOG = logging.getLogger("embermq.authentication")
CHANGED = Deny(ReasonCode.SERVER_UNAVAILABLE, "its account was changed during the check, twice")
"""Nothing lasting, as a wrong password would be: the client may come again."""
ARGON2_MEMORY_KIB = 19_456
"""Of one hash while it is computed, with two passes over it: what OWASP recommends of argon2id."""
ARGON2_PASSES = 2
ARGON2_LANES = 1
"""Parts of the memory of one hash, each with a thread of its own: checks of several clients share the cores better."""
NOBODY = f"$bm9ib2R5bm9ib2R5bm9ibw${'A' * 43}"
"""Salt and hash, of as many bytes as all have, that a password is compared with where there is no account: made of no
password, and nobody asks whether it is the same."""
WRONG = Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong password, or no such account")


class PasswordVerdict(Struct, frozen=True):
    """Whether it is the password; `better` is the hash that takes the place of one that was imported, or made with
    other settings."""

    matches: bool
    better: str | None = None

    def __repr__(self) -> str:
        """Without the hash."""
        return f"Verdict(matches={self.matches})"


class PasswordHashes:
    """argon2id hashes; making or checking one takes some 20 ms of one core, and 19 MiB of memory.

    Every check costs the same: one argon2id, and as many rounds of PBKDF2 as the dearest imported hash needs, whether
    there is such an account, which kind of hash it has, and whether the password is right. So time tells nothing, but
    of an argon2id hash made with other numbers, until its user has entered once.
    """

    def __init__(self, *, memory_kib: int = ARGON2_MEMORY_KIB, passes: int = ARGON2_PASSES) -> None:
        self._hasher = PasswordHasher(time_cost=passes, memory_cost=memory_kib, parallelism=ARGON2_LANES)
        self._of_nobody = f"$argon2id$v=19$m={memory_kib},t={passes},p={ARGON2_LANES}{NOBODY}"
        self._rounds = 0

    def expect(self, imported: Iterable[str]) -> None:
        """These imported hashes are in use from now on."""
        rounds = 0
        for text in imported:
            try:
                rounds = max(rounds, parse_imported(text).rounds)
            except ValueError:  # it opens nothing, whatever the password
                continue
        self._rounds = rounds

    def make(self, password: bytes) -> str:
        """A salted hash with its parameters in it."""
        return self._hasher.hash(password)

    def check(self, stored: str | None, password: bytes) -> PasswordVerdict:
        """Whether this is the password. `stored` is None for a user who does not exist."""
        if stored is not None and is_imported(stored):
            return self._check_imported(stored, password)
        self.spend(password, self._rounds)
        if stored is None or is_generated(stored):
            self.matches(self._of_nobody, password)
            return PasswordVerdict(stored is not None and matches_generated(stored, password))
        if not self.matches(stored, password):
            return PasswordVerdict(False)
        return PasswordVerdict(True, self.make(password) if self._hasher.check_needs_rehash(stored) else None)

    def _check_imported(self, stored: str, password: bytes) -> PasswordVerdict:
        try:
            imported = parse_imported(stored)
        except ValueError:
            return self.check(None, password)
        matches = imported.matches(password)
        self.spend(password, self._rounds - imported.rounds)
        better = self.make(password)
        return PasswordVerdict(matches, better if matches else None)

    def matches(self, password_hash: str, password: bytes) -> bool:
        """Whether this is the password of an argon2id hash; False for a hash that cannot be read."""
        try:
            return self._hasher.verify(password_hash, password)
        except (Argon2Error, InvalidHashError):
            return False

    def spend(self, password: bytes, rounds: int) -> None:
        """Take the time of so many rounds."""
        if rounds > 0:
            hashlib.pbkdf2_hmac("sha512", password, b"nobody", rounds)


class PasswordStep(Step):
    """A name without an account is not its business, but costs what the others cost.

    Who comes with a password that is remembered or generated enters at once; all others, whether or not they have an
    account, go to `checks` for the slow hash. So only right passwords are quick.
    """

    name = "password"

    def __init__(
        self,
        users: Users,
        lookups: AccountLookups,
        checks: Checks,
        hashes: PasswordHashes,
        remembered: RememberedPasswords,
    ) -> None:
        self._users = users
        self._lookups = lookups
        self._checks = checks
        self._hashes = hashes
        self._remembered = remembered

    def look(self, applicant: Applicant) -> Look:
        """See the base. A name that is given is always checked, also where anonymous clients may enter."""
        return NOT_MINE if applicant.username is None and applicant.password is None else CHECK

    async def check(self, applicant: Applicant) -> StepAnswer:
        name, password = applicant.username or "", applicant.password or b""
        user = await self._lookups.find(name, applicant.visitor)
        if isinstance(user, Deny):
            return user
        if self._is_known(name, user, password):
            assert user is not None
            return DISABLED if user.disabled else _admitted(user)
        place = network_of(applicant.visitor.address)
        return await self._checks.run(partial(self._check, name, password), place=place)

    def _is_known(self, name: str, user: User | None, password: bytes) -> bool:
        """Whether this is the password of the account, as far as can be said at once."""
        stored = user.password_hash if user is not None else ""
        return self._remembered.knows(name, stored, password) or (
            is_generated(stored) and matches_generated(stored, password)
        )

    def _check(self, username: str, password: bytes) -> StepAnswer:
        """Whose account changes meanwhile is checked once more, as the account is now."""
        answer = self._check_once(username, password)
        return self._check_once(username, password) if answer is CHANGED else answer

    def _check_once(self, username: str, password: bytes) -> StepAnswer:
        user = self._users.find(username)
        verdict = self._hashes.check(user.password_hash if user is not None else None, password)
        if user is None:
            return NOT_MINE
        if not verdict.matches:
            return WRONG
        if user.disabled:
            return DISABLED
        if verdict.better is not None:
            self._keep(user, verdict.better)
        return self._admit(user, password)

    def _admit(self, user: User, password: bytes) -> Admit | Deny:
        """The hash took its time, and longer when there is much to do: what changed meanwhile counts."""
        now = self._users.find(user.name)
        if now is None or now.version != user.version:
            return CHANGED
        self._remembered.keep(now.name, now.password_hash, password)
        return _admitted(now)

    def _keep(self, user: User, better: str) -> None:
        """The stored hash has served. Somebody may have changed the account meanwhile: then theirs stays. A full disk
        is no reason to refuse a right password; the next login tries again."""
        try:
            self._users.replace_hash(user.name, user.password_hash, better)
        except StoreError as error:
            LOG.warning("the stored hash of user %r stays for now: %s", user.name, error)


def _admitted(user: User) -> Admit:
    return Admit(user.name, user.client_type, account_version=user.version)
