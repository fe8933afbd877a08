"""The progress bar for people at a terminal; nothing for machines."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from embermq_bench.run import Stage


class StageBar:
    """One line for each stage, on standard error; silent when that is no terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:>9}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}"),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=4,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> StageBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, stage: Stage) -> None:
        """Move the stage's bar."""
        if self._progress.disable:
            return
        task = self._tasks.get(stage.name)
        if task is None:
            task = self._tasks[stage.name] = self._progress.add_task(stage.name, total=1.0, detail="")
        detail = f"{stage.published:,} published, {stage.delivered:,} delivered" if stage.published else ""
        self._progress.update(task, completed=stage.fraction, detail=detail)
