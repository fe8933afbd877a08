"""Accounts are watched: who entered by one that is changed, disabled or removed does not stay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct

from embermq.access.authentication.accounts import Vacancy
from embermq.access.authentication.identity import Identity
from embermq.access.authentication.passwords import PasswordHashes
from embermq.access.authentication.remembered_passwords import RememberedPasswords
from embermq.ports.errors import StoreError
from embermq.ports.users import User, Users

LOG = logging.getLogger("embermq.authentication")
LOOK_S = 0.8
"""Between two looks. A client whose check was under way at the first look is met by the second."""

Expel = Callable[[Callable[[Identity], bool]], int]


class Found(Struct, frozen=True):
    """Accounts as they are now, None for one that is gone; `every` when whoever is not among them has none."""

    users: Mapping[str, User | None]
    every: bool = False


class AccountWatch:
    """Looks for changes off the event loop, from those on that come after it was made. `expel` ends the connections of
    those whom its argument is true for; what they entered with is forgotten. Raises StoreError."""

    def __init__(
        self,
        users: Users,
        hashes: PasswordHashes,
        remembered: RememberedPasswords,
        expel: Expel,
        vacancy: Vacancy | None = None,
    ) -> None:
        self._users = users
        self._hashes = hashes
        self._remembered = remembered
        self._vacancy = vacancy
        self._expel = expel
        self._seq = users.newest_change()
        self._before: tuple[str, ...] = ()
        self._every_before = False
        self._failing = False

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """One look. What it finds is looked at once more by the next."""
        try:
            found = await asyncio.to_thread(self._read)
        except StoreError as error:
            if not self._failing:
                LOG.error("changes of accounts cannot be seen: %s", error)
            self._failing = True
            return
        if self._failing:
            LOG.info("changes of accounts can be seen again")
            self._failing = False
        if found.every:
            self._remembered.forget_all()
        self._remembered.forget(found.users)
        if found.users or found.every:
            count = self._expel(partial(is_unwelcome, found))
            if count:
                LOG.info("ended %d connections whose accounts were changed or removed", count)

    def _read(self) -> Found:
        """What it has read of the changes counts when it has seen the accounts as well; else all is read again."""
        seq, every = self._seq, False
        news: tuple[str, ...] = ()
        while (changes := self._users.changes(seq)).seq != seq:
            every = every or not changes.complete
            seq = changes.seq
            news += changes.names
        names = {*self._before, *news}
        if names and self._vacancy is not None:
            self._vacancy.look()
        if news:
            self._hashes.expect(self._users.imported_hashes())
        if every or self._every_before:
            found = Found({user.name: user for user in self._users.all()}, every=True)
        else:
            found = Found({name: self._users.find(name) for name in names})
        self._seq, self._before, self._every_before = seq, news, every
        return found


def is_unwelcome(found: Found, identity: Identity) -> bool:
    """Whether who entered so may not stay, as far as these accounts tell."""
    name = identity.username
    if not name or not (found.every or name in found.users):
        return False
    user = found.users.get(name)
    if user is not None and user.disabled:
        return True
    return bool(identity.account_version) and (user is None or user.version != identity.account_version)
