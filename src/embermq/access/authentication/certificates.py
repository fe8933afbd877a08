"""The step `certificate`: the listener has verified a certificate, and it names a user."""

from __future__ import annotations

from embermq.access.authentication.step import NOT_MINE, Admit, Applicant, Look, Step


class CertificateStep(Step):
    """A client with a certificate is the user that it names, whatever CONNECT says; an account of that name is not
    needed."""

    name = "certificate"

    def look(self, applicant: Applicant) -> Look:
        name = applicant.visitor.certificate_name
        return Admit(name) if name is not None else NOT_MINE
