"""The steps in their order."""

from __future__ import annotations

from collections.abc import Sequence

from embermq.access.authentication.accounts import AccountBook
from embermq.access.authentication.step import CHECK, NOT_MINE, Admit, Applicant, Deny, Look, Step, StepAnswer
from embermq.mqtt.wire.reason_codes import ReasonCode

NOBODY_KNOWS = Deny(
    ReasonCode.BAD_USER_NAME_OR_PASSWORD, "no step of authentication.chain accepts its credentials"
)
NOTHING_SHOWN = Deny(
    ReasonCode.NOT_AUTHORIZED, "it has no credentials, and anonymous clients are refused here"
)


class Chain:
    """Asks step after step until one does not say *not mine*; a client that is nobody's does not enter.

    Whoever a step lets in by a name that has an account is also held to that account: it may be disabled, and its
    type counts.
    """

    def __init__(self, steps: Sequence[Step], accounts: AccountBook) -> None:
        self._accounts = accounts
        self._steps = [step for step in steps if not step.methods]
        self._by_method = {method: step for step in steps for method in step.methods}

    def look(self, applicant: Applicant) -> Admit | Deny | Look:
        """The answer at once; CHECK when `check` has to be asked."""
        for step in self._steps:
            answer = step.look(applicant)
            if isinstance(answer, Admit) and answer.username:
                return CHECK
            if answer is not NOT_MINE:
                return answer
        return _nobodys(applicant)

    async def check(self, applicant: Applicant) -> Admit | Deny:
        for step in self._steps:
            answer = await _ask(step, applicant)
            if isinstance(answer, Deny):
                return answer
            if isinstance(answer, Admit):
                return await self._accounts.hold(answer, applicant.visitor) if answer.username else answer
        return _nobodys(applicant)

    def speaking(self, method: str) -> Step | None:
        """The step that speaks a method of enhanced authentication."""
        return self._by_method.get(method)

    async def close(self) -> None:
        for step in [*self._steps, *set(self._by_method.values())]:
            await step.close()


async def _ask(step: Step, applicant: Applicant) -> StepAnswer:
    answer = step.look(applicant)
    return await step.check(applicant) if answer is CHECK else answer


def _nobodys(applicant: Applicant) -> Deny:
    if applicant.username is None and applicant.password is None:
        return NOTHING_SHOWN
    return NOBODY_KNOWS
