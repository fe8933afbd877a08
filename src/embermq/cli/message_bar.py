"""What a job says while it runs: how far it is, in messages, bytes or other things to count, and notices.

What a job says while it runs: how far it is, in messages or other things to count, and notices. A bar for people at
a terminal, lines of JSON for programs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from embermq.cli.terminal import shown


class ByteBar:
    """One line for each thing that is done, on standard error; silent when that is no terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:>9}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=4,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ByteBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, doing: str, done: int, total: int) -> None:
        """Move the line of what is done."""
        task = self._tasks.get(doing)
        if task is None:
            task = self._tasks[doing] = self._progress.add_task(doing, total=total)
        self._progress.update(task, completed=done)


PREPARING = "preparing"
"""What it says until there is something to count: a start of Spark, or a look through a large store, takes its time."""


class MessageBar:
    """One line on standard error; silent when that is no terminal."""

    def __init__(self, things: str = "messages") -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=4,
        )
        self._things = things
        self._task = self._progress.add_task(PREPARING, total=None)
        self._is_counting = False

    def __enter__(self) -> MessageBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_counting:
            self._progress.remove_task(self._task)
        self._progress.stop()

    def show(self, done: int, total: int) -> None:
        self._is_counting = True
        self._progress.update(self._task, description=self._things, completed=done, total=total)


@contextmanager
def job_told(
    things: str, *, as_json: bool
) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """What a job calls with how far it is, and with what else it has to say."""
    if as_json:
        yield print_progress, _print_notice
        return
    with MessageBar(things) as bar:
        yield bar.show, _say


def print_progress(done: int, total: int) -> None:
    """A line of JSON a step for programs, {"done": N, "total": N}, in place of the bar."""
    print(msgspec.json.encode({"done": done, "total": total}).decode(), flush=True)


def _print_notice(text: str) -> None:
    print(msgspec.json.encode({"notice": text}).decode(), flush=True)


def _say(text: str) -> None:
    print(shown(text), file=sys.stderr)
