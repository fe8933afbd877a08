"""Which worker runs what: a file is one worker's, so that what its tests share is started once, and some files are one
worker's together: those of the pipeline's one Spark session, and those of the one broker with its log in Kafka."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler.loadfile import LoadFileScheduling  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[2]
SESSION = ("spark: SparkSession", "redrive: Redrive")
"""The fixtures that are or need that session."""


class FilesTogether(LoadFileScheduling):  # type: ignore[misc]
    """For `pytest -n WORKERS --dist loadfile`."""

    def _split_scope(self, nodeid: str) -> str:
        return together(str(nodeid.partition("::")[0]))


@cache
def together(path: str) -> str:
    """The name of what one worker runs, of which this file is a part."""
    if path.startswith("tests/kafka_pipeline/"):
        return "kafka_pipeline"
    if path.startswith("tests/pipeline/"):
        source = (ROOT / path).read_text()
        return "spark" if any(fixture in source for fixture in SESSION) else path
    return path
