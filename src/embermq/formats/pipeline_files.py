"""The files that the pipeline writes and the broker reads: their version, which SQLite keeps as `user_version`."""

from embermq.formats.stored_version import version_refusal

PIPELINE_FILES = 1
"""Counted up when an older reader or writer would misunderstand the tables."""


def newer_file(name: str, version: int) -> str:
    """What is said of a file that is newer than this program; "" when it is not.

    For readers, to whom 0 is a file that is just being made.
    """
    return version_refusal(name, version, PIPELINE_FILES) if version > PIPELINE_FILES else ""
