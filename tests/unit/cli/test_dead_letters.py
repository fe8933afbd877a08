"""`embermq queues dlq retry --all` when there are more than the broker puts back at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from embermq.admin.operation import AdminOperation
from embermq.admin.operations import RETRY_DEAD_LETTERS
from embermq.cli import control, dead_letters
from embermq.cli.main import main

MANY = dead_letters.RETRIED_AT_ONCE
NONE_STAY = {"held": 0, "orphaned": 0, "missing_queues": [], "crowded": 0, "full_queues": []}


class Answering:
    """A broker that has these answers, one for each request."""

    def __init__(self, *answers: Mapping[str, object]) -> None:
        self.answers = list(answers)
        self.asked: list[object] = []

    def ask(self, operation: AdminOperation, **fields: object) -> Mapping[str, object]:
        assert operation is RETRY_DEAD_LETTERS and fields["name"] == "q"
        self.asked.append(fields["limit"])
        return {**NONE_STAY, **self.answers.pop(0)}


def retried(monkeypatch: pytest.MonkeyPatch, broker: Answering) -> int:
    @contextmanager
    def running(*_options: object) -> Iterator[Answering]:
        yield broker

    monkeypatch.setattr(control, "running_broker", running)
    return main(["queues", "dlq", "retry", "q", "--all"])


def test_all_are_put_back_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = Answering({"messages": MANY}, {"messages": MANY - 5, "held": 5}, {"messages": 7, "held": 5})
    assert retried(monkeypatch, broker) == 3
    assert capsys.readouterr().out == f"put back {2 * MANY + 2:,} messages\n"
    assert broker.asked == [MANY] * 3


def test_some_that_were_consumed_meanwhile_do_not_end_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were found and are neither put back nor held: the answer says less than was asked for."""
    broker = Answering({"messages": MANY - 3}, {"messages": MANY - 7, "held": 5}, {"messages": 9, "held": 5})
    assert retried(monkeypatch, broker) == 3
    assert capsys.readouterr().out == f"put back {2 * MANY - 1:,} messages\n" and not broker.answers


def test_it_ends_when_nothing_goes_back_any_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert retried(monkeypatch, Answering({"messages": 0, "held": MANY})) == 3
    told = capsys.readouterr()
    assert told.out == "put back 0 messages\n" and told.err.startswith(f"{MANY:,} stay")


def test_what_has_no_room_is_told_with_what_can_be_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert retried(monkeypatch, Answering({"messages": 1, "crowded": 2, "full_queues": ["q"]})) == 3
    told = capsys.readouterr()
    assert told.out == "put back 1 message\n"
    assert told.err == (
        "2 stay: their consumer groups were removed, and q can have no more groups (queues.groups_max);"
        " remove one that nobody needs, or raise the limit\n"
    )
    names = [f"q{number}" for number in range(20)]
    assert "q8, q9 and others can have" in dead_letters.about_crowded(20, names)
