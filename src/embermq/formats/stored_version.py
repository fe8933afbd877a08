"""Which versions of stored data this program opens: from what 0.1.0 wrote up to what it writes itself.

Every file and every store on a server carries the version of its tables. Who changes them raises the number and adds
the step from the one before; until 0.1.0 is released there is no step, and the first version is raised along.
"""

from msgspec import Struct


class Versions(Struct, frozen=True):
    """Of one kind of store: what 0.1.0 wrote, and what this program writes."""

    first: int
    newest: int

    def refusal(self, what: str, version: int) -> str:
        """Why a store of that version is not opened, and the way out; "" when it is. `what` names the store."""
        if version > self.newest:
            return (
                f"{what} has schema version {version}, this version of EmberMQ knows up to {self.newest}:"
                " start it with the newer EmberMQ that wrote it"
            )
        if version < self.first:
            return (
                f"{what} has schema version {version}, of a build before EmberMQ 0.1.0; this version of EmberMQ opens "
                f"{self.first} and later: let clients take their messages with the build that wrote it, then begin "
                "with an empty one"
            )
        return ""
