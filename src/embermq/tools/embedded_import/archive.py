"""Archived messages in files: those of the embedded log are those of partition 0 of the new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from embermq.adapters.sqlite.log_readers import SqliteLogReaders
from embermq.formats.message_table import ARCHIVE, COLUMNS
from embermq.pipeline.places import Places
from embermq.pipeline.sinks.sink_file import SinkFile

ROWS = 5_000
"""In a transaction."""
_NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
_NEXT = f"""
SELECT MAX("offset") FROM (SELECT "offset" FROM old.message WHERE "offset" > ? ORDER BY "offset" LIMIT {ROWS})
"""
_COPY = f"""
INSERT OR IGNORE INTO kafka_message ({_NAMES})
SELECT {_NAMES} FROM old.message WHERE "offset" > ? AND "offset" <= ?
"""
_THERE = """
SELECT COUNT(*) FROM kafka_message AS copied
WHERE "partition" = 0 AND EXISTS (SELECT 1 FROM old.message WHERE "offset" = copied."offset")
"""


def archived(data_dir: Path) -> int:
    """How many messages the message store in a data directory has."""
    path = Places(data_dir).messages
    if not path.is_file():
        return 0
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'message'").fetchone() is None:
            return 0
        return int(connection.execute("SELECT COUNT(*) FROM message").fetchone()[0])


def behind(data_dir: Path, log_end: int) -> int:
    """How many records of the log it has not seen yet."""
    done = [one.next_offset for one in SqliteLogReaders(data_dir).positions() if one.name == ARCHIVE]
    return log_end - min([*done, log_end])


def carry_archive(source_dir: Path, target_dir: Path, told: Callable[[int], None]) -> int:
    """Copy what is not there yet; returns how many of them are there. What was copied before stays, if the old archive
    has let go of it since. `told` gets how many came in each step."""
    target = Places(target_dir).messages
    with closing(SinkFile(target, f"{ARCHIVE};0", ("embermq.formats", "kafka_messages.sql"))) as file:
        file.connection.execute("ATTACH DATABASE ? AS old", (str(Places(source_dir).messages),))
        after = -1
        while (last := file.connection.execute(_NEXT, (after,)).fetchone()[0]) is not None:
            with file.transaction() as connection:
                copied = connection.execute(_COPY, (after, last)).rowcount
                file.count(records=copied, entries=copied)
            told(copied)
            after = last
        return int(file.connection.execute(_THERE).fetchone()[0])
