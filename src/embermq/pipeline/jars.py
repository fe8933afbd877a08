"""Jars by a list of coordinates and hashes: what is there and right, and fetching what is not.

They come from Maven Central, or a mirror of it, by Ivy, which every PySpark carries: no Maven is needed, and Spark need
not start.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from msgspec import Struct

from embermq.pipeline.errors import JarsError, PipelineSettingsError, RepositoryError
from embermq.pipeline.java import JavaRuntime, find_java
from embermq.pipeline.settings import PipelineSettings, is_s3

_KAFKA = Path(__file__).with_name("connector_jars.txt")
_DELTA = Path(__file__).with_name("delta_jars.txt")
_S3 = Path(__file__).with_name("s3_jars.txt")


def jars_folder(settings: PipelineSettings) -> Path:
    """`pipeline.jars_dir`, or the folder that belongs to this installation of EmberMQ and goes with it."""
    return Path(settings.jars_dir) if settings.jars_dir else Path(sys.prefix) / "share" / "embermq" / "jars"


def connector_jars(settings: PipelineSettings) -> list[Path]:
    """The jars for Kafka, whole and with the right hashes. Nothing is fetched, ever, while the pipeline runs.

    Raises PipelineSettingsError that names the first jar that is wrong, and the command that fetches it.
    """
    return _found(settings, read_jar_list(_KAFKA), "Spark needs it to read Kafka", "")


def lake_jars(settings: PipelineSettings) -> list[Path]:
    """The same for the lake that the settings name."""
    return _found(
        settings, _of_lake(settings), "Spark needs it to write the lake", ", then start the pipeline again"
    )


def submitted_jars(settings: PipelineSettings) -> list[Path]:
    """What `spark-submit` is given, as a session on Kafka takes it."""
    return connector_jars(settings) + (lake_jars(settings) if "lake" in settings.queries else [])


def fetch_all(settings: PipelineSettings, repository: str, told: Callable[[int, int], None]) -> list[Jar]:
    """Bring the jars into the folder of the settings; those that had to be fetched. What S3 needs is fetched for a lake
    in S3 alone. Raises PipelineError.

    `repository` is the URL of a mirror of Maven Central, or ""; `told` hears how many of how many have come.
    """
    jars = [*read_jar_list(_KAFKA), *_of_lake(settings)]
    return fetch_jars(jars, jars_folder(settings), find_java, repository=repository, told=told)


def _of_lake(settings: PipelineSettings) -> tuple[Jar, ...]:
    return read_jar_list(_DELTA) + (read_jar_list(_S3) if is_s3(settings) else ())


def _found(settings: PipelineSettings, jars: tuple[Jar, ...], purpose: str, then: str) -> list[Path]:
    folder = jars_folder(settings)
    for jar in jars:
        if wrong := what_is_wrong(jar, folder):
            into = f" --into {folder}" if settings.jars_dir else ""
            raise PipelineSettingsError(
                f"{_origin(settings)}: {wrong}; {purpose}. Fetch it with: embermq pipeline "
                f"fetch-jars{into}{then}"
            )
    return [(folder / jar.file_name).resolve() for jar in jars]


def _origin(settings: PipelineSettings) -> str:
    return (
        f"pipeline.jars_dir = {str(jars_folder(settings))!r}{'' if settings.jars_dir else ' (the default)'}"
    )


FETCH_TIMEOUT_S = 900
_WORK = ".fetching"
_COORDINATE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FETCHED = re.compile(r"\[SUCCESSFUL \] [^#]+#(?P<artifact>[^;]+);(?P<version>[^!]+)!")
_NOT_THERE = re.compile(r"module not found: [^#]+#(?P<artifact>[^;]+);(?P<version>\S+)")
_CAUSE = re.compile(r"Host \S+ not found|.*(?:[Cc]onnection|[Tt]imed out|Exception|FAILED).*")
_REPOSITORY = re.compile(r"https?://[^\s@<>\"'{}]+")
_NAMED_MAX = 4
_TOLD_MAX = 300

# Ivy knows where Maven Central is. The jars' own descriptions are not read, so nothing but the list is fetched.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <timeout-constraints>
    <timeout-constraint name="patience" connectionTimeout="20000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false" timeoutConstraint="patience"{root}/>
  </resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0">
  <info organisation="embermq" module="jars"/>
  <dependencies>
{lines}
  </dependencies>
</ivy-module>
"""
_DEPENDENCY = (
    '    <dependency org="{group}" name="{artifact}" rev="{version}" conf="*->default" transitive="false"/>'
)


class Jar(Struct, frozen=True):
    """One jar of Maven Central; `sha256` in lower-case hexadecimal digits."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


def read_jar_list(path: Path) -> tuple[Jar, ...]:
    """The jars of a file with lines `group:artifact:version sha256`; lines that begin with # are for people.

    Raises ValueError, naming the line, for anything else.
    """
    jars = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        coordinates, _, sha256 = line.partition(" ")
        parts = coordinates.split(":")
        if len(parts) != 3 or not all(map(_COORDINATE.fullmatch, parts)) or not _SHA256.fullmatch(sha256):
            raise ValueError(f"{path}, line {number}: not 'group:artifact:version sha256': {line[:200]!r}")
        group, artifact, version = parts
        jars.append(Jar(group, artifact, version, sha256))
    return tuple(jars)


def what_is_wrong(jar: Jar, folder: Path) -> str:
    """Why the jar in `folder` cannot be used; "" when it can."""
    path = folder / jar.file_name
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return f"{jar.file_name} is missing"
    except OSError as error:
        return f"{jar.file_name} cannot be read: {error.strerror}"
    return "" if found == jar.sha256 else f"{jar.file_name} has the SHA-256 {found} instead of {jar.sha256}"


def fetch_jars(
    jars: Sequence[Jar],
    folder: Path,
    find_java: Callable[[Path], JavaRuntime],
    *,
    repository: str = "",
    told: Callable[[int, int], None] = lambda done, total: None,
) -> list[Jar]:
    """Bring what is missing or damaged into `folder`; what was brought. Nothing happens when all is there.

    A jar appears under its name only when it is whole and its hash is right. `find_java` is given a folder to work in;
    `repository` is the URL of a mirror, and Maven Central when it is ""; `told` hears how many of how many jars have
    come. Several may fetch at the same time: the second one waits. Raises JarsError, RepositoryError.
    """
    if repository and not _REPOSITORY.fullmatch(repository):
        raise RepositoryError("a Maven repository is named by a URL of http or https, without a user in it")
    if not any(what_is_wrong(jar, folder) for jar in jars):
        return []
    with _sole_work_folder(folder) as work:
        wanted = [jar for jar in jars if what_is_wrong(jar, folder)]
        if wanted:
            told(0, len(wanted))
            _describe(wanted, repository, work)
            _run_ivy(len(wanted), work, find_java(work / "java"), told)
            _put_in_place(wanted, work / "fetched", folder)
    return wanted


@contextmanager
def _sole_work_folder(folder: Path) -> Iterator[Path]:
    """An empty folder inside `folder`, for one process at a time; what a killed one left is cleared away."""
    work = folder / _WORK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(work, ignore_errors=True)
        try:
            work.mkdir()
        except OSError as error:
            raise _cannot_write(folder, error) from error
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def _describe(wanted: Sequence[Jar], repository: str, work: Path) -> None:
    """What Ivy shall do, in its own files."""
    root = f" root={quoteattr(repository)}" if repository else ""
    (work / "settings.xml").write_text(_SETTINGS.format(root=root))
    lines = "\n".join(
        _DEPENDENCY.format(group=jar.group, artifact=jar.artifact, version=jar.version) for jar in wanted
    )
    (work / "ivy.xml").write_text(_MODULE.format(lines=lines))


def _run_ivy(count: int, work: Path, java: JavaRuntime, told: Callable[[int, int], None]) -> None:
    from embermq.pipeline.java_trust import (
        trust_of_the_machine,
    )  # its library is large, and needed here alone

    command = [
        *("timeout", "--kill-after=5", f"{FETCH_TIMEOUT_S}"),
        *(str(java.home / "bin" / "java"), f"-Djava.io.tmpdir={work}"),
        *(trust_of_the_machine(work / "trust.p12") if java.is_installed_with_us else ()),
        *("-cp", str(_ivy()), "org.apache.ivy.Main"),
        *(
            "-settings",
            str(work / "settings.xml"),
            "-cache",
            str(work / "cache"),
            "-ivy",
            str(work / "ivy.xml"),
        ),
        *("-retrieve", str(work / "fetched" / "[artifact]-[revision].[ext]")),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ivy:
        assert ivy.stdout is not None
        printed: list[str] = []
        done = 0
        try:
            for line in ivy.stdout:
                printed.append(line)
                if _FETCHED.search(line):
                    done += 1
                    told(done, count)
        except BaseException:
            ivy.terminate()
            raise
    if ivy.returncode != 0:
        raise JarsError(_why_not(printed, ivy.returncode))


def _why_not(printed: Sequence[str], code: int) -> str:
    """What Ivy's many lines come to: the jars that it did not find, and the first cause that it names."""
    found = (_NOT_THERE.search(line) for line in printed)
    missing = [f"{one['artifact']}-{one['version']}.jar" for one in found if one]
    causes = [cause[0].strip()[:_TOLD_MAX] for line in printed if (cause := _CAUSE.search(line))]
    if not missing:
        return (
            f"the jars were not fetched; Ivy ended with {code}: {causes[0] if causes else 'without a word'}"
        )
    more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
    why = f" ({causes[0]})" if causes else ""
    return (
        f"the Maven repository did not give {', '.join(missing[:_NAMED_MAX])}{more}{why}. Is it within reach? "
        "Without a network copy the jars there by hand"
    )


def _put_in_place(wanted: Sequence[Jar], fetched: Path, folder: Path) -> None:
    for jar in wanted:
        if wrong := what_is_wrong(jar, fetched):
            raise JarsError(
                f"what the Maven repository gave for {jar.coordinates} is not what was asked for: {wrong}"
            )
    for jar in wanted:
        try:
            (fetched / jar.file_name).replace(folder / jar.file_name)
        except OSError as error:
            raise _cannot_write(folder, error) from error


def _ivy() -> Path:
    spec = find_spec("pyspark")
    folders = [Path(place) / "jars" for place in (spec and spec.submodule_search_locations) or []]
    found = [path for folder in folders for path in sorted(folder.glob("ivy-*.jar"))]
    if not found:
        raise JarsError(f"PySpark has no ivy-*.jar in {', '.join(map(str, folders)) or 'this Python'}")
    return found[-1]


def _cannot_write(folder: Path, error: OSError) -> JarsError:
    return JarsError(f"jars cannot be put into {folder}: {error.strerror}")
