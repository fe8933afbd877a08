"""Which worker runs what: a file is one worker's, so that what its tests share is started once, and some files are one
worker's together: those of the pipeline's one Spark session, and those of the one broker with its log in Kafka."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[2]
SESSION = ("spark: SparkSession", "redrive: Redrive")
"""The fixtures that are or need that session."""


class FilesTogether(LoadFileScheduling):  # type: ignore[misc]
    """For `pytest -n WORKERS --dist loadfile`. What a worker had still to do when it ended, another one does; the test
    that ended it runs again as often as a test that fails (`--reruns`), not for ever."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        self._ended: Counter[str] = Counter()
        """How many workers each test has ended."""

    def remove_node(self, node: WorkerController) -> str | None:
        """See the base. Returns the test that the worker was running."""
        units = self.assigned_work[node].values()
        ended_by = next((test for unit in units for test, is_done in unit.items() if not is_done), None)
        if ended_by is not None:
            self._ended[ended_by] += 1
            if self._ended[ended_by] > (self.config.getoption("reruns", 0) or 0):
                for unit in units:
                    if ended_by in unit:
                        unit[ended_by] = True
        super().remove_node(node)
        return ended_by

    def mark_test_pending(self, item: str) -> None:
        """Nothing is left to do: `remove_node` has put it into the queue again."""

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
