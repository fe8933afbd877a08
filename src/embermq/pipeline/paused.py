"""Queries that are paused: one small file for each, with the reason.

The broker makes the file of a query that holds back more of the log than it may, the driver that of a rule that Spark
cannot end. The query stands still while it is there, and a person removes it (`embermq pipeline resume`). It outlives
all of them.
"""

from collections.abc import Iterable
from pathlib import Path

FOLDER = "paused"
TOO_FAR = "it was too far behind"


def paused_queries(data_dir: Path) -> frozenset[str]:
    """Names of the queries that are paused."""
    try:
        return frozenset(path.name for path in (data_dir / FOLDER).iterdir())
    except FileNotFoundError:
        return frozenset()


def pause_reason(data_dir: Path, query: str) -> str:
    """Why it is paused; also of a file that an earlier version made, which is empty."""
    try:
        return (data_dir / FOLDER / query).read_text(errors="replace") or TOO_FAR
    except OSError:
        return TOO_FAR


def pause_queries(data_dir: Path, queries: Iterable[str], reason: str = TOO_FAR) -> None:
    """Pause them until somebody resumes them; no effect on those that are paused."""
    for query in queries:
        path = data_dir / FOLDER / query
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_text(reason)


def resume_query(data_dir: Path, query: str) -> bool:
    """Let it go on; False when it was not paused, or is no name of a query."""
    if query not in paused_queries(data_dir):
        return False
    (data_dir / FOLDER / query).unlink(missing_ok=True)
    return True
