"""The progress of long copies for people at a terminal; nothing for machines."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


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
