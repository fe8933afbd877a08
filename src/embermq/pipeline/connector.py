"""The jars that Spark needs and PySpark does not carry: which ones, where they are, and getting them at set-up time."""

import sys
from collections.abc import Callable
from pathlib import Path

from embermq.pipeline.errors import PipelineSettingsError
from embermq.pipeline.jars import Jar, fetch_jars, read_jar_list, what_is_wrong
from embermq.pipeline.java import find_java
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
