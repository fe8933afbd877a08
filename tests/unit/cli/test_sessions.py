"""`embermq sessions` as it shows what a broker answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from embermq.admin.operation import AdminOperation
from embermq.admin.operations import LIST_APPLICATION_LOGS
from embermq.admin.session_values import ApplicationLogView
from embermq.cli import control
from embermq.cli.main import main

GOOD = ApplicationLogView(name="p.good", client_id="good", groups=(), records=1_200, lag=3)
HEADLESS = ApplicationLogView(
    name="p.bad", client_id="bad", groups=(), records=None, lag=None, problem="partition 0 has no leader"
)


class _Broker:
    missing: frozenset[str] = frozenset()

    def ask(self, operation: AdminOperation) -> object:
        assert operation is LIST_APPLICATION_LOGS, "nothing is deleted"
        return msgspec.to_builtins([HEADLESS, GOOD])


@pytest.fixture(autouse=True)
def _one_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def running(*_: object) -> Iterator[_Broker]:
        yield _Broker()

    monkeypatch.setattr(control, "running_broker", running)


def test_a_log_that_cannot_be_looked_at_is_listed_with_what_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sessions", "logs"]) == 0
    _, bad, good, empty, told = capsys.readouterr().out.splitlines()
    assert bad.split() == ["p.bad", "bad", "-", "-"]
    assert good.split() == ["p.good", "good", "1,200", "3"]
    assert (empty, told) == ("", "p.bad: partition 0 has no leader")


def test_it_does_not_count_as_one_that_nobody_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "logs", "--clean", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["sessions", "logs", "--clean", "--yes"]) == 0
    assert capsys.readouterr().out == ""
