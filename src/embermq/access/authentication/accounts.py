"""What accounts say about clients that entered by something else than their password."""

from __future__ import annotations

from msgspec.structs import replace

from embermq.access.authentication.account_lookups import AccountLookups
from embermq.access.authentication.gate import Visitor
from embermq.access.authentication.step import Admit, Deny
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.users import Users

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
    """Holds clients to the account of their name."""

    def __init__(self, lookups: AccountLookups) -> None:
        self._lookups = lookups

    async def hold(self, admit: Admit, visitor: Visitor) -> Admit | Deny:
        """The same, with the type of its account; Deny when that is disabled. Whoever showed the password of an account
        has been held to it already."""
        if admit.account_version:
            return admit
        user = await self._lookups.find(admit.username, visitor)
        if user is None:
            return admit
        if isinstance(user, Deny):
            return user
        if user.disabled:
            return DISABLED
        if user.client_type is ClientType.APPLICATION:
            return replace(admit, client_type=ClientType.APPLICATION)
        return admit
