"""What is changed in files that take the place of newer ones.

The newer broker.db has numbered messages of durable queues that the older one knows nothing of, and consumers may
remember their ids. A lake in another place has commits that the older lake.db knows nothing of.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from embermq.adapters.sqlite.connection import to_store_error

SEQUENCES_SKIPPED = 1_000_000_000
"""Messages that a queue may have had since the backup: at 1,000 a second eleven days without a pause."""
GENERATIONS_SKIPPED = 1_000_000
"""Queues that may have been made since."""

_BOOTS = ("lake_version", "rule_tables")
"""Which commit of a Delta Lake table was synced last, and the boot of the machine then."""
_MARK = "restored_us"
"""Of `meta`: when it was restored, Unix microseconds; until the next start."""
_IS_THERE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'queue'"
_QUEUES = "UPDATE queue SET sequences_reserved = MAX(sequences_reserved + ?1, ?2)"
_GENERATION = """
INSERT INTO meta VALUES ('queue_generation', MAX(1 + ?1, ?2))
ON CONFLICT DO UPDATE SET value = MAX(value + ?1, ?2)
"""


def mark_restored(path: Path) -> None:
    """broker.db takes the place of a newer one from now on: its next start skips message ids. Raises StoreError."""
    try:
        with closing(sqlite3.connect(path)) as connection, connection:
            if connection.execute(_IS_THERE).fetchone() is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO meta VALUES (?, ?)", (_MARK, time.time_ns() // 1_000)
                )
    except sqlite3.Error as error:
        raise to_store_error(error, f"cannot restore {path}") from error


def forget_boot(path: Path) -> None:
    """lake.db, or rules.db, may be older than its Delta Lake tables from now on: commits behind what it knows are no
    trace of a loss of power. Raises StoreError."""
    try:
        with closing(sqlite3.connect(path)) as connection, connection:
            for table in _BOOTS:
                if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone():
                    connection.execute(f"UPDATE {table} SET boot = ''")
    except sqlite3.Error as error:
        raise to_store_error(error, f"cannot restore {path}") from error


def skip_message_ids(connection: sqlite3.Connection) -> None:
    """After a restore: no id that was given since the backup is given again, nor one that another restored broker has
    given. Numbers go on at the time of the restore, in microseconds, and no queue has as many messages. Called when
    everything that the log says of queues is applied. Raises StoreError."""
    try:
        row = connection.execute("SELECT value FROM meta WHERE name = ?", (_MARK,)).fetchone()
        if row is None:
            return
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_QUEUES, (SEQUENCES_SKIPPED, row[0]))
        connection.execute(_GENERATION, (GENERATIONS_SKIPPED, row[0] // 1_000))
        connection.execute("DELETE FROM meta WHERE name = ?", (_MARK,))
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise to_store_error(error, "cannot skip message ids in broker.db") from error
