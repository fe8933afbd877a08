"""What can go wrong in a migration."""

from embermq.pipeline.errors import PipelineError


class MigrationError(PipelineError):
    """Why tables of 1.x cannot be brought over: a server that does not answer, tables that are none, a target in use.

    Never shows a password.
    """
