"""How far a job is, in messages or other things to count, for people at a terminal; nothing for machines."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
        """Move the line."""
        self._is_counting = True
        self._progress.update(self._task, description=self._things, completed=done, total=total)
