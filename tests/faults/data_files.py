"""Looking into a data directory without the broker."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def log_extent(data_dir: Path) -> tuple[int, int]:
    """(first offset, offset after the last one) of the message log. Fails when there is a hole in it."""
    with closing(sqlite3.connect(f"file:{data_dir / 'broker.db'}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT base_offset, record_count FROM log_batch ORDER BY base_offset")
        start = end = -1
        for base, count in rows:
            assert end in (-1, base), f"after offset {end} the log goes on at {base}"
            start = base if start < 0 else start
            end = base + count
    return max(start, 0), max(end, 0)
