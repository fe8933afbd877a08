"""Which versions run here, found without loading anything heavy."""

from __future__ import annotations

import platform
import sqlite3
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from embermq import HOT_PATH, __version__
from embermq.pipeline.errors import JavaNotFoundError
from embermq.pipeline.java import find_java

MISSING = "none"


class ProgramVersions(Struct, frozen=True):
    """As text; `none` where something is not installed. `compiled`: whether the hot path is."""

    embermq: str
    compiled: str
    python: str
    sqlite: str
    pyspark: str
    java: str


def read_versions() -> ProgramVersions:
    """Ask the interpreter, the installed packages and the system's Java."""
    return ProgramVersions(
        embermq=__version__,
        compiled="yes" if HOT_PATH.is_compiled else f"no: {HOT_PATH.why}",
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        pyspark=_installed("pyspark"),
        java=_java(),
    )


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return MISSING


def _java() -> str:
    """The Java that the pipeline would use, or why there is none."""
    with TemporaryDirectory(prefix="embermq-java-") as launcher_dir:
        try:
            java = find_java(Path(launcher_dir))
        except JavaNotFoundError as error:
            return f"{MISSING}: {error}"
        place = "" if java.home.is_relative_to(launcher_dir) else f", {java.home}"
        return f"{java.version} ({java.origin}{place})"
