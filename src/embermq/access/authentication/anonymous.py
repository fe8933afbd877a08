"""The step `anonymous`: clients that show nothing, or that show a name where nobody has an account."""

from __future__ import annotations

from embermq.access.authentication.accounts import Vacancy
from embermq.access.authentication.checks import Checks
from embermq.access.authentication.step import CHECK, NOT_MINE, Admit, Applicant, Deny, Look, Step, StepAnswer


class AnonymousStep(Step):
    """Whoever gives neither a name nor a password enters where its listener says so; where that says nothing, from this
    machine, and from elsewhere when it is `allowed`.

    With a `vacancy`, whoever gives a name does too as long as there is no account: there is nothing to check it by,
    so it is not believed. Without one names are not its business; who else could know them stands in the chain.
    """

    name = "anonymous"

    def __init__(self, checks: Checks, *, allowed: bool, vacancy: Vacancy | None = None) -> None:
        self._checks = checks
        self._allowed = allowed
        self._vacancy = vacancy

    def look(self, applicant: Applicant) -> Look:
        visitor = applicant.visitor
        said = visitor.allow_anonymous
        if not (visitor.loopback or self._allowed if said is None else said):
            return NOT_MINE
        if applicant.username is None:
            return Admit() if applicant.password is None else NOT_MINE
        return CHECK if self._vacancy is not None and self._vacancy.likely else NOT_MINE

    async def check(self, applicant: Applicant) -> StepAnswer:
        """See the base. The accounts are looked at once more: the first one counts at once."""
        if self._vacancy is None:
            return NOT_MINE
        vacant = await self._checks.run(self._vacancy.look)
        if isinstance(vacant, Deny):
            return vacant
        return Admit() if vacant else NOT_MINE
