"""`embermq queues dlq retry --all` when there are more than the broker puts back at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
import pytest

from embermq.cli import dead_letters
from embermq.cli.main import main

MANY = dead_letters.RETRIED_AT_ONCE


class Answering:
    """A broker that has these answers, one for each request."""

    def __init__(self, *answers: Mapping[str, object]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def ask(self, method: str, path: str, **parameters: str) -> bytes:
        assert (method, path) == ("POST", "/api/v1/queues/q/dlq/retry")
        self.asked.append(parameters["limit"])
        return msgspec.json.encode({"held": 0, "orphaned": 0, "missing_queues": [], **self.answers.pop(0)})


def retried(monkeypatch: pytest.MonkeyPatch, broker: Answering) -> int:
    @contextmanager
    def running(*_options: object) -> Iterator[Answering]:
        yield broker

    monkeypatch.setattr(dead_letters, "running_broker", running)
    return main(["queues", "dlq", "retry", "q", "--all"])


def test_all_are_put_back_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = Answering({"messages": MANY}, {"messages": MANY - 5, "held": 5}, {"messages": 7, "held": 5})
    assert retried(monkeypatch, broker) == 3
    assert capsys.readouterr().out == f"put back {2 * MANY + 2:,} messages\n"
    assert broker.asked == [str(MANY)] * 3


def test_it_ends_when_nothing_goes_back_any_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert retried(monkeypatch, Answering({"messages": 0, "held": MANY})) == 3
    told = capsys.readouterr()
    assert told.out == "put back 0 messages\n" and told.err.startswith(f"{MANY:,} stay")
