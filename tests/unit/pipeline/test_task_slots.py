"""Real-time mode needs a task slot for each partition: executors elsewhere are waited for, local ones are there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embermq.pipeline.errors import PipelineError
from embermq.pipeline.jobs.kafka_dispatch import KafkaDispatch
from embermq.pipeline.jobs.query_job import JobSetup, KafkaSide
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings, is_on_loopback

PARTITIONS = 2


class Slots:
    """A session whose executors come one with each look."""

    def __init__(self, *seen: int) -> None:
        self._seen = list(seen)
        self.looks = 0

    @property
    def defaultParallelism(self) -> int:  # noqa: N802
        self.looks += 1
        return self._seen.pop(0) if len(self._seen) > 1 else self._seen[0]


def check(slots: Slots, master: str, folder: Path, wait_s: float = 30.0) -> None:
    positions: Any = SimpleNamespace(
        bounds=lambda: dict.fromkeys(range(PARTITIONS)), kafka=SimpleNamespace(log_topic="t.msg.all")
    )
    topics: Any = None
    settings = DriverSettings(master=master, executors_wait_s=wait_s)
    job = KafkaDispatch(JobSetup(settings, Places(folder), KafkaSide(positions, topics)))
    session: Any = SimpleNamespace(sparkContext=slots)
    job._check_slots(session)


@pytest.mark.promise("pipeline-15")
def test_executors_elsewhere_are_waited_for_a_while(tmp_path: Path) -> None:
    slots = Slots(2, 2, 3)
    check(slots, "spark://h:7077", tmp_path)
    assert slots.looks == 3
    with pytest.raises(
        PipelineError, match=r"each of the 2 partitions of t\.msg\.all .*'spark://h:7077' has 2"
    ):
        check(Slots(2), "spark://h:7077", tmp_path, 0.2)


def test_local_slots_are_all_there_are(tmp_path: Path) -> None:
    slots = Slots(2)
    with pytest.raises(PipelineError, match="has 2"):
        check(slots, "local[2]", tmp_path)
    assert slots.looks == 1


@pytest.mark.parametrize(
    ("master", "is_near"),
    [
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:1,127.0.0.2:2", True),
        ("spark://127.0.0.1:1,spark.example.com:2", False),
        ("spark://10.0.0.1:7077", False),
        ("k8s://127.0.0.1:6443", False),
        ("yarn", False),
    ],
)
def test_what_is_on_loopback(master: str, is_near: bool) -> None:
    assert is_on_loopback(master) is is_near
