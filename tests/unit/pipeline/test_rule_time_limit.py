"""A job of a rule that takes too long is ended; one that cannot be ended is told apart."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from embermq.pipeline.errors import RuleError, RuleStuck
from embermq.pipeline.rules import evaluating
from embermq.pipeline.rules.evaluating import Evaluation

TASK = "Executor task launch worker for task 0.0 in stage 7.0 (TID 7)"


class HeldSpark:
    """A Spark whose one job, with one stage, number 7, ends when it is cancelled; its threads are `threads`."""

    def __init__(self, *threads: str) -> None:
        self.groups: list[str] = []
        self.cancelled = threading.Event()
        self.threads = list(threads)
        self.sparkContext = self
        stages = SimpleNamespace(stageIds=[7])
        self.statusTracker = lambda: SimpleNamespace(
            getJobIdsForGroup=lambda _: [1], getJobInfo=lambda _: stages
        )
        stacks = SimpleNamespace(keySet=lambda: SimpleNamespace(toArray=self._shown))
        thread = SimpleNamespace(getAllStackTraces=lambda: stacks)
        self._jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Thread=thread)))

    def _shown(self) -> list[Any]:
        return [SimpleNamespace(getName=lambda name=name: name) for name in self.threads]

    def setJobGroup(self, group: str, _: str, *, interruptOnCancel: bool) -> None:  # noqa: N802, N803
        assert interruptOnCancel
        self.groups.append(group)

    def setLocalProperty(self, *_: object) -> None:  # noqa: N802
        """Nothing."""

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802
        assert group == self.groups[-1]
        self.cancelled.set()

    def collect(self) -> list[Any]:
        assert self.cancelled.wait(60)
        raise PySparkException("the job was cancelled")


def collected(spark: Any) -> None:
    Evaluation(spark, "hot", lambda records: records, timeout_s=0.01).collected(spark)


def test_a_job_that_takes_too_long_is_cancelled() -> None:
    with pytest.raises(RuleError, match=r"takes longer than 0.01 s$"):
        collected(HeldSpark("main", TASK.replace("stage 7.", "stage 77.")))


def test_what_still_works_on_it_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluating, "GRACE_S", 0.0)
    with pytest.raises(RuleStuck, match="Spark cannot end it"):
        collected(HeldSpark(TASK))
