"""What accounts say about clients that entered by something else than their password."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from embermq.authentication.checks import Checks
from embermq.authentication.step import Admit, Deny
from embermq.model.client_type import ClientType
from embermq.ports.users import Users
from embermq.protocol.reason_codes import ReasonCode

DISABLED = Deny(ReasonCode.NOT_AUTHORIZED, "its account is disabled")


class Vacancy:
    """Whether there is no account at all. `likely` is what the last look found, to be had without waiting. Raises
    StoreError."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self.likely = users.is_empty()

    def look(self) -> bool:
        """Whether it is so now; not for the event loop."""
        self.likely = self._users.is_empty()
        return self.likely


class AccountBook:
    """Looks a name up, off the event loop."""

    def __init__(self, users: Users, checks: Checks) -> None:
        self._users = users
        self._checks = checks

    async def hold(self, admit: Admit) -> Admit | Deny:
        """The same, with the type of its account; Deny when that is disabled. Whoever showed the password of an account
        has been held to it already."""
        if admit.account_version:
            return admit
        return await self._checks.run(partial(self._hold, admit))

    def _hold(self, admit: Admit) -> Admit | Deny:
        user = self._users.find(admit.username)
        if user is None:
            return admit
        if user.disabled:
            return DISABLED
        if user.client_type is ClientType.APPLICATION:
            return replace(admit, client_type=ClientType.APPLICATION)
        return admit
