"""Queries that the broker has paused, because they held back more of the log than they may: one small file for each.

The broker makes the file, the driver stops the query while it is there, and a person removes it
(`embermq pipeline resume`). It outlives all of them.
"""

from collections.abc import Iterable
from pathlib import Path

FOLDER = "paused"


def paused_queries(data_dir: Path) -> frozenset[str]:
    """Names of the queries that are paused."""
    try:
        return frozenset(path.name for path in (data_dir / FOLDER).iterdir())
    except FileNotFoundError:
        return frozenset()


def pause_queries(data_dir: Path, queries: Iterable[str]) -> None:
    """Pause them until somebody resumes them; no effect on those that are paused."""
    for query in queries:
        path = data_dir / FOLDER / query
        path.parent.mkdir(exist_ok=True)
        path.touch()


def resume_query(data_dir: Path, query: str) -> bool:
    """Let it go on; False when it was not paused, or is no name of a query."""
    if query not in paused_queries(data_dir):
        return False
    (data_dir / FOLDER / query).unlink(missing_ok=True)
    return True
