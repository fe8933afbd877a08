"""When a run of dispatch is held up, and begins anew."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embermq.pipeline.errors import PipelineError
from embermq.pipeline.jobs import kafka_dispatch
from embermq.pipeline.jobs.kafka_dispatch import KafkaDispatch
from embermq.pipeline.jobs.query_job import JobSetup, KafkaSide
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.log_look import Bounds
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings, Mode

END = 100


class Kafka:
    """What dispatch asks for: one partition, and an application log that may have no leader."""

    def __init__(self) -> None:
        self.kafka = KafkaLog(bootstrap="h:9092", prefix="e")
        self.published: dict[int, int] = {}
        self.leaderless: dict[str, int] = {}
        self.unused = 0

    def bounds(self, _: str = "") -> dict[int, Bounds]:
        return {0: Bounds(0, END, self.unused)}

    def topics(self) -> set[str]:
        return set()

    def progress(self) -> dict[str, dict[int, int]]:
        return {"dispatch": dict(self.published)}

    def log_id(self) -> str:
        return "one"

    def publish(self, _query: str, positions: Mapping[int, int]) -> None:
        self.published |= positions

    def record_limits(self, topics: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(topics, 1)

    def raise_record_limits(self, _limits: Mapping[str, int]) -> dict[str, str]:
        return {}

    def without_leader(self, _prefix: str) -> dict[str, int]:
        return self.leaderless


class Runs:
    """Of dispatch, by the clock of the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode = "microbatch") -> None:
        self.kafka = Kafka()
        positions: Any = self.kafka
        topics: Any = None
        setup = JobSetup(DriverSettings(mode=mode), Places(folder), KafkaSide(positions, topics))
        self.now_s, self.records = 0.0, 1
        self.ends: dict[int, int] = {}
        """Of the newest batch of a run, if there is one."""
        monkeypatch.setattr(
            kafka_dispatch, "time", SimpleNamespace(monotonic=lambda: self.now_s, time_ns=lambda: 0)
        )
        monkeypatch.setattr(
            kafka_dispatch, "source_end", lambda *_: (self.ends, self.records, 1) if self.ends else None
        )
        self.job = KafkaDispatch(setup)
        monkeypatch.setattr(self.job, "_started", lambda *_: object())
        self.start()

    def start(self) -> None:
        nobody: Any = None
        self.ends = {}
        self.job.start(nobody)

    def look(self, after_s: float, end: int = 0) -> None:
        """So much later, when the newest batch of the run ends there."""
        self.now_s += after_s
        self.ends = {0: end} if end else {}
        self.job.upkeep(0)


@pytest.mark.promise("pipeline-14")
def test_a_run_that_is_held_up_begins_anew_and_names_a_log_without_a_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(tmp_path, monkeypatch)
    runs.look(1, 10)
    runs.kafka.leaderless = {"e.msg.app.bad": 0}
    for _ in range(6):
        runs.look(11, 10)
    with pytest.raises(
        PipelineError, match=r"nothing of e\.msg\.all got done .*leader.* e\.msg\.app\.bad \(partition 0\)"
    ):
        runs.look(11, 10)
    runs.kafka.leaderless = {}
    runs.start()
    runs.look(1, 20)
    assert runs.kafka.published == {0: 20}


@pytest.mark.promise("pipeline-14")
def test_a_log_that_ends_with_the_end_of_a_transaction_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real-time mode stops behind the last record, for as long as nothing comes."""
    runs = Runs(tmp_path, monkeypatch)
    runs.kafka.unused = 1
    for _ in range(100):
        runs.look(11, END - 1)
    assert runs.kafka.published == {0: END - 1}
    runs.kafka.unused = 0  # a record
    for _ in range(6):
        runs.look(11, END - 1)
    with pytest.raises(PipelineError, match="held up"):
        runs.look(11, END - 1)


def test_batches_are_longer_while_nothing_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks are a second apart. What a batch has shown counts until the next one shows something else."""
    runs = Runs(tmp_path, monkeypatch, "realtime")
    rests_s = int(DriverSettings().rest_after_s)
    runs.look(1, END)
    runs.records = 0
    begun = []
    for second in range(rests_s + 10):
        runs.look(1, END)
        if runs.job.begins_anew():
            begun.append(second)
            runs.start()
    assert begun == [rests_s] and runs.job._batch_s == DriverSettings().rest_batch_s
    runs.records = 1
    runs.look(1, END + 1)
    assert runs.job.begins_anew() and runs.job._batch_s == DriverSettings().realtime_batch_s
    runs.look(1, END + 1)
    assert not runs.job.begins_anew()
