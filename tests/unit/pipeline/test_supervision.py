"""What must not end who keeps queries, or the driver, alive."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embermq.pipeline.errors import KafkaLogError
from embermq.pipeline.keeper import Keeper
from embermq.pipeline.supervisor import session_members


@pytest.mark.promise("pipeline-14")
def test_a_log_that_is_away_while_queries_begin_does_not_end_the_driver() -> None:
    def away() -> int:
        raise KafkaLogError("h:9092: partitions of e.msg.all: no answer in time")

    kind: Any = SimpleNamespace(name="dispatch", mode="realtime")
    nothing: Any = None
    keeper = Keeper(kind, nothing, nothing, threading.Event())
    job: Any = SimpleNamespace(last_batch=None, lag=away)
    keeper.job, keeper._state = job, "running"
    assert not keeper.is_settled()
    job.lag = lambda: 1
    assert not keeper.is_settled()
    job.lag = lambda: 0
    assert keeper.is_settled()


@pytest.mark.promise("pipeline-14")
def test_processes_of_others_that_are_hidden_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc may be mounted so that only one's own can be read (hidepid=1)."""
    read_text = Path.read_text

    def hidden(path: Path, *arguments: Any, **options: Any) -> str:
        if path != Path(f"/proc/{os.getpid()}/stat"):
            raise PermissionError(1, "Operation not permitted", str(path))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", hidden)
    assert session_members(os.getsid(0)) == [os.getpid()]
