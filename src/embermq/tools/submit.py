"""The command by which `spark-submit` runs the pipeline."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from embermq.app.config import Settings
from embermq.app.errors import UserError
from embermq.app.settings import SQLITE
from embermq.app.slots import check_no_slots
from embermq.compiled import VARIABLE


class Submission(Struct, frozen=True):
    """`environment` is what differs from this process's."""

    words: list[str]
    environment: Mapping[str, str]


def spark_submit(
    settings: Settings, folder: Path, config: Path | None, assignments: Sequence[str]
) -> Submission:
    """`assignments` are those of `--set`; a secret does not belong there. Raises UserError."""
    from embermq.pipeline.jars import submitted_jars
    from embermq.pipeline.java import find_java
    from embermq.pipeline.places import Places
    from embermq.pipeline.session import logging_flag, spark_home
    from embermq.tools import submitted

    check_no_slots(settings)
    if settings.stores.log == SQLITE:
        raise UserError(
            "the embedded message log is files of the broker's machine, which spark-submit has not; the pipeline runs "
            "there with the broker, or by embermq pipeline start"
        )
    jars = submitted_jars(settings.pipeline)
    java = find_java(Places(folder.absolute()).java_wrapper)
    home = Path(os.environ.get("SPARK_HOME") or spark_home())
    options = {
        "--master": settings.pipeline.master,
        "--driver-memory": f"{settings.pipeline.heap_mb}m",
        "--driver-java-options": logging_flag(),
        "--jars": ",".join(map(str, jars)),
    }
    words = [str(home / "bin" / "spark-submit"), *(word for pair in options.items() for word in pair)]
    words += [str(submitted.__file__), str(folder.absolute())]
    words += ["--config", str(config.absolute())] if config is not None else []
    words += [word for assignment in assignments for word in ("--set", assignment)]
    return Submission(words, {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable, VARIABLE: "0"})
