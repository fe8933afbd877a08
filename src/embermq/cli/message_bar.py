"""How far a job is, in messages or other things to count, for people at a terminal; nothing for machines."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


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
        self._task = self._progress.add_task(things, total=None)

    def __enter__(self) -> MessageBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: int, total: int) -> None:
        """Move the line; the first time it appears."""
        self._progress.start()
        self._progress.update(self._task, completed=done, total=total)
