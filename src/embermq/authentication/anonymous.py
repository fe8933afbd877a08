"""The step `anonymous`: clients that show nothing."""

from __future__ import annotations

from embermq.authentication.step import NOT_MINE, Admit, Applicant, Look, Step


class AnonymousStep(Step):
    """Whoever gives neither a name nor a password enters where its listener says so; where that says nothing, from this
    machine, and from elsewhere when it is `allowed`."""

    name = "anonymous"

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed

    def look(self, applicant: Applicant) -> Look:
        """See the base."""
        if applicant.username is not None or applicant.password is not None:
            return NOT_MINE
        visitor = applicant.visitor
        said = visitor.allow_anonymous
        allowed = visitor.loopback or self._allowed if said is None else said
        return Admit() if allowed else NOT_MINE
