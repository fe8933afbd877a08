"""Which worker runs what: a file is one worker's, so that what its tests share is started once. The files of the one
broker with its log in Kafka are one worker's together, and those of the Spark session are left to few workers."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

SESSION = ("spark: SparkSession", "redrive: Redrive")
"""The fixtures that are or need the Spark session of a worker."""
SPARK_WORKERS = 2
"""So many workers start it, which takes 10 CPU seconds and 2 GB each; one would not be through when all others are."""


class FilesTogether(LoadFileScheduling):  # type: ignore[misc]
    """For `pytest -n WORKERS --dist loadfile`. What a worker had still to do when it ended, another one does; the test
    that ended it runs again as often as a test that fails (`--reruns`), not for ever."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        self._ended: Counter[str] = Counter()
        """How many workers each test has ended."""
        self._with_spark: set[WorkerController] = set()

    def _assign_work_unit(self, node: WorkerController) -> None:
        """The first that this worker may take; when there is none, others do what is left."""
        unit = next((unit for unit in self.workqueue if self._may_take(node, unit)), None)
        if unit is None:
            node.shutdown()
            return
        if self._needs_spark(unit):
            self._with_spark.add(node)
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)

    def _may_take(self, node: WorkerController, unit: str) -> bool:
        return (
            node in self._with_spark or len(self._with_spark) < SPARK_WORKERS or not self._needs_spark(unit)
        )

    def _needs_spark(self, unit: str) -> bool:
        return needs_spark(self.config.rootpath, unit)

    def remove_node(self, node: WorkerController) -> str | None:
        """See the base. Returns the test that the worker was running."""
        self._with_spark.discard(node)
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
        return together(nodeid.partition("::")[0])


def together(path: str) -> str:
    """The name of what one worker runs, of which this file is a part."""
    return "kafka_pipeline" if path.startswith("tests/kafka_pipeline/") else path


@cache
def needs_spark(root: Path, path: str) -> bool:
    """Whether tests of this file take the Spark session of their worker."""
    return path.startswith("tests/pipeline/") and any(
        fixture in (root / path).read_text() for fixture in SESSION
    )
