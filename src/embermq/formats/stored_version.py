"""Which versions of stored data this program opens: the one that it writes.

Every file and every store on a server carries the version of its tables. Who changes them raises the number. There are
no steps from an earlier version as long as none is released.
"""


def version_refusal(what: str, version: int, known: int) -> str:
    """Why a store of that version is not opened, and the way out; "" when it is. `what` names the store."""
    if version > known:
        return (
            f"{what} has schema version {version}, this version of EmberMQ knows up to {known}:"
            " start it with the newer EmberMQ that wrote it"
        )
    if version < known:
        return (
            f"{what} has schema version {version}, of a build before EmberMQ 0.1.0; this version of EmberMQ opens "
            f"{known}: let clients take their messages with the build that wrote it, then begin with an empty one"
        )
    return ""


PIPELINE_FILES = 1
"""Counted up when an older reader or writer would misunderstand the tables."""


def newer_file(name: str, version: int) -> str:
    """What is said of a file that is newer than this program; "" when it is not.

    For readers, to whom 0 is a file that is just being made.
    """
    return version_refusal(name, version, PIPELINE_FILES) if version > PIPELINE_FILES else ""
