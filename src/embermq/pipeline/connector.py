"""The jars with which Spark reads and writes Kafka: which ones, where they are, and getting them at set-up time."""

import sys
from collections.abc import Callable
from pathlib import Path

from embermq.pipeline.errors import PipelineSettingsError
from embermq.pipeline.jars import Jar, fetch_jars, read_jar_list, what_is_wrong
from embermq.pipeline.java import find_java
from embermq.pipeline.settings import PipelineSettings

_LIST = Path(__file__).with_name("connector_jars.txt")


def jars_folder(settings: PipelineSettings) -> Path:
    """`pipeline.jars_dir`, or the folder that belongs to this installation of EmberMQ and goes with it."""
    return Path(settings.jars_dir) if settings.jars_dir else Path(sys.prefix) / "share" / "embermq" / "jars"


def connector_jars(settings: PipelineSettings) -> list[Path]:
    """The connector's jars, whole and with the right hashes. Nothing is fetched, ever, while the pipeline runs.

    Raises PipelineSettingsError that names the first jar that is wrong, and the command that fetches it.
    """
    folder, jars = jars_folder(settings), read_jar_list(_LIST)
    for jar in jars:
        if wrong := what_is_wrong(jar, folder):
            raise PipelineSettingsError(
                f"{_origin(settings)}: {wrong}; Spark needs it to read Kafka. Fetch it with: embermq pipeline "
                f"fetch-jars{f' --into {folder}' if settings.jars_dir else ''}"
            )
    return [(folder / jar.file_name).resolve() for jar in jars]


def fetch_connector(
    settings: PipelineSettings, repository: str, told: Callable[[int, int], None]
) -> list[Jar]:
    """Bring the connector's jars into the folder of the settings; those that had to be fetched. Raises PipelineError.

    `repository` is the URL of a mirror of Maven Central, or ""; `told` hears how many of how many have come.
    """
    jars = read_jar_list(_LIST)
    return fetch_jars(jars, jars_folder(settings), find_java, repository=repository, told=told)


def _origin(settings: PipelineSettings) -> str:
    return (
        f"pipeline.jars_dir = {str(jars_folder(settings))!r}{'' if settings.jars_dir else ' (the default)'}"
    )
