"""The line that a person sees while a job is at work, on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from embermq.cli import message_bar
from embermq.cli.message_bar import MessageBar


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    written = io.StringIO()

    def console(*, stderr: bool) -> Console:
        assert stderr
        return Console(file=written, force_terminal=True, width=80, color_system=None)

    monkeypatch.setattr(message_bar, "Console", console)
    return written


def test_it_is_there_before_there_is_something_to_count(terminal: io.StringIO) -> None:
    """A start of Spark takes many seconds."""
    with MessageBar("dead letters") as bar:
        assert "preparing" in terminal.getvalue()
        bar.show(2, 3)
    assert "dead letters" in terminal.getvalue() and "2/3" in terminal.getvalue()


def test_nothing_to_count_leaves_no_line(terminal: io.StringIO) -> None:
    with MessageBar("files"):
        pass
    assert "files" not in terminal.getvalue()
    assert (
        not terminal.getvalue().splitlines()[-1].replace("\x1b[?25h", "").replace("\x1b[2K", "").strip("\r ")
    )
