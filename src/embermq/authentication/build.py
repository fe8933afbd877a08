"""The chain as the settings want it."""

from __future__ import annotations

from collections.abc import Callable

from embermq.authentication.accounts import AccountBook
from embermq.authentication.anonymous import AnonymousStep
from embermq.authentication.certificates import CertificateStep
from embermq.authentication.chain import Chain
from embermq.authentication.checks import Checks
from embermq.authentication.gate import ChainGate
from embermq.authentication.passwords import PasswordHashes, PasswordStep
from embermq.authentication.scram import ScramStep
from embermq.authentication.settings import AuthenticationSettings, ScramSettings
from embermq.authentication.step import Step
from embermq.ports.users import Users
from embermq.server.settings import ClientSettings


class Authentication:
    """The gate and what it stands on. To be made on the event loop and closed there."""

    def __init__(
        self,
        users: Users,
        settings: AuthenticationSettings,
        clients: ClientSettings,
        *,
        scram: ScramSettings,
        hashes: PasswordHashes | None = None,
    ) -> None:
        self._checks = Checks(clients.password_checks_max, clients.password_checks_waiting_max)
        makers: dict[str, Callable[[], Step]] = {
            "certificate": CertificateStep,
            "password": lambda: PasswordStep(users, self._checks, hashes),
            "scram": lambda: ScramStep(users, self._checks, iterations=scram.iterations),
            "anonymous": lambda: AnonymousStep(allowed=clients.allow_anonymous),
        }
        self._chain = Chain([makers[name]() for name in settings.chain], AccountBook(users, self._checks))
        self.gate = ChainGate(self._chain, clients.application_ids)

    async def close(self) -> None:
        """Drop the checks that wait, and let those under way finish."""
        await self._chain.close()
        self._checks.close()
