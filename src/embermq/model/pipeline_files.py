"""The files that the pipeline writes and the broker reads: their version, which SQLite keeps as `user_version`."""

PIPELINE_FILES_VERSION = 1
"""Counted up when an older reader or writer would misunderstand the tables; 0 is a file from before it was kept."""


def newer_file(name: str, version: int) -> str:
    """What is said of a file that is newer than this program; "" when it is not."""
    if version <= PIPELINE_FILES_VERSION:
        return ""
    return (
        f"{name} has schema version {version}, this version of EmberMQ knows up to {PIPELINE_FILES_VERSION}:"
        " start it with the newer EmberMQ that wrote it"
    )
