"""The chain as the settings want it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from embermq.access.authentication.account_lookups import AccountLookups
from embermq.access.authentication.accounts import AccountBook, Vacancy
from embermq.access.authentication.anonymous import AnonymousStep
from embermq.access.authentication.certificates import CertificateStep
from embermq.access.authentication.chain import Chain
from embermq.access.authentication.chain_gate import ChainGate
from embermq.access.authentication.checks import Checks
from embermq.access.authentication.passwords import PasswordHashes, PasswordStep
from embermq.access.authentication.remembered_passwords import RememberedPasswords
from embermq.access.authentication.scram import ScramStep, lines_of_nobody
from embermq.access.authentication.settings import (
    AuthenticationSettings,
    HttpHookSettings,
    JwtSettings,
)
from embermq.access.authentication.slowing import FailureCounts, Slowing
from embermq.access.authentication.step import Step
from embermq.access.authentication.watch import AccountWatch, Expel
from embermq.access.bans import BanKind
from embermq.admin.access_operations import PUT_BAN
from embermq.admin.ban_desk import BanDesk
from embermq.admin.errors import OperationRefused
from embermq.admin.trail import Trail, recorded
from embermq.admin.values import PutBanRequest
from embermq.edge.settings import ClientSettings
from embermq.model.counters import Counters
from embermq.ports.errors import StoreError
from embermq.ports.users import Users

BY_ACCOUNT = frozenset({"certificate", "password", "scram", "anonymous"})
"""Steps that leave a name which nobody has an account for to nobody else: tokens and hooks know names without one."""


FAILURES_FREE = 5
"""Wrong credentials from one address that are answered at once."""
BAN_WINDOW_S = 600
"""How long failures of an address are counted, from the first one on."""
CHECKS_MAX = 2
"""Passwords checked at a time; each takes a thread, a core and 19 MiB while it lasts."""
CHECKS_WAITING_MAX = 1_000
"""Clients that wait for a check, some 10 s of work; one more is answered with 0x89 (server busy)."""
REMEMBERED_MAX = 100_000
"""Accounts whose password was right and is remembered, 250 bytes each: they enter again without argon2id."""
LATE_MAX = 1_000
"""Answers that are late at a time, of all addresses; others are then given at once."""


class Authentication:
    """The gate and what it stands on. To be made on the event loop and closed there. Raises StoreError, and
    ChainError for a file of keys or certificates that cannot be used."""

    def __init__(
        self,
        users: Users,
        settings: AuthenticationSettings,
        clients: ClientSettings,
        counters: Counters,
        *,
        jwt: JwtSettings | None = None,
        http_hook: HttpHookSettings | None = None,
        hashes: PasswordHashes | None = None,
    ) -> None:
        self._users = users
        self._hashes = hashes or PasswordHashes()
        self._hashes.expect(users.imported_hashes())
        self._checks = Checks(CHECKS_MAX, CHECKS_WAITING_MAX)
        self._quick = Checks(1, CHECKS_WAITING_MAX)
        """For what does not take long: it shall not wait behind passwords."""
        self._lookups = AccountLookups(users)
        self._remembered = RememberedPasswords(REMEMBERED_MAX, counters)
        self._watching: asyncio.Task[None] | None = None
        by_account = "password" in settings.chain and BY_ACCOUNT.issuperset(settings.chain)
        self._vacancy = Vacancy(users) if by_account else None
        makers: dict[str, Callable[[], Step]] = {
            "certificate": CertificateStep,
            "password": lambda: PasswordStep(
                users, self._lookups, self._checks, self._hashes, self._remembered
            ),
            "scram": lambda: ScramStep(users, self._quick),
            "jwt": lambda: _token_step(jwt or JwtSettings(), self._quick),
            "http": lambda: _http_hook_step(http_hook or HttpHookSettings()),
            "anonymous": lambda: AnonymousStep(
                self._quick, allowed=clients.allow_anonymous, vacancy=self._vacancy
            ),
        }
        self._chain = Chain([makers[name]() for name in settings.chain], AccountBook(self._lookups))
        self.gate = ChainGate(
            self._chain,
            clients.application_ids,
            username_as_client_id=clients.username_as_client_id,
            slowing=Slowing(free=FAILURES_FREE),
            late_max=LATE_MAX,
            failures=FailureCounts(failures_max=settings.ban_failures, window_s=BAN_WINDOW_S),
            counters=counters,
        )

    def watch(self, expel: Expel) -> None:
        """From now on have `expel` end the connections of clients whose accounts are changed or removed."""
        watch = AccountWatch(self._users, self._hashes, self._remembered, expel, self._vacancy)
        self._watching = asyncio.get_running_loop().create_task(watch.run())

    async def close(self) -> None:
        """Drop the checks that wait, and let those under way finish."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self._chain.close()
        await self._lookups.close()
        self._checks.close()
        self._quick.close()


def made_ahead(settings: AuthenticationSettings) -> PasswordHashes:
    """What takes long and needs no store: a node that stands by has it when its turn comes."""
    if ScramStep.name in settings.chain:
        lines_of_nobody()  # its library is loaded now
    return PasswordHashes()


def _token_step(settings: JwtSettings, checks: Checks) -> Step:
    from embermq.access.authentication.tokens import TokenStep  # with its library only where there are tokens

    return TokenStep(settings, checks)


def _http_hook_step(settings: HttpHookSettings) -> Step:
    from embermq.access.authentication.http_hook import HttpHookStep  # likewise

    return HttpHookStep(settings)


LOG = logging.getLogger("embermq.server")
BY = "the broker"


class FailureBans:
    """Bans as an operator would, with the same trace."""

    def __init__(self, desk: BanDesk, trail: Trail, *, failures: int, lasts_s: int) -> None:
        self._desk = desk
        self._trail = trail
        self._failures = failures
        self._lasts_s = lasts_s
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def ban(self, address: str) -> None:
        """Begin to; called on the event loop."""
        if address not in self._under_way:
            task = self._under_way[address] = asyncio.get_running_loop().create_task(self._ban(address))
            task.add_done_callback(lambda _: self._under_way.pop(address))

    async def _ban(self, address: str) -> None:
        reason = f"{self._failures} wrong credentials"
        asked = PutBanRequest(
            kind=BanKind.ADDRESS.value, value=address, lasts=f"{self._lasts_s}s", reason=reason
        )
        try:
            async with recorded(self._trail, PUT_BAN, asked, by=BY, peer="", over="failures"):
                put = await self._desk.put(asked)
        except (OperationRefused, StoreError) as error:
            LOG.error("an address could not be banned: %s", error, extra={"address": address})
            return
        found = {
            "address": address,
            "until": put.ban.until,
            "reason": reason,
            "disconnected": put.disconnected,
        }
        LOG.warning("address banned", extra=found)
