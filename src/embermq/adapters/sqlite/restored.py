"""What is changed in a broker.db that takes the place of a newer one.

The newer one has numbered messages of durable queues that the older one knows nothing of, and consumers may remember
their ids.
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

_IS_THERE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'queue'"
_QUEUES = "UPDATE queue SET sequences_reserved = MAX(sequences_reserved + ?1, ?2)"
_GENERATION = """
INSERT INTO meta VALUES ('queue_generation', MAX(1 + ?1, ?2))
ON CONFLICT DO UPDATE SET value = MAX(value + ?1, ?2)
"""


def skip_message_ids(path: Path) -> None:
    """No id that was given since the backup is given again, nor one that another restored broker has given: numbers go
    on at the time of this restore, in microseconds, and no queue has as many messages. Raises StoreError."""
    now_us = time.time_ns() // 1_000
    try:
        with closing(sqlite3.connect(path)) as connection, connection:
            if connection.execute(_IS_THERE).fetchone() is not None:
                connection.execute(_QUEUES, (SEQUENCES_SKIPPED, now_us))
                connection.execute(_GENERATION, (GENERATIONS_SKIPPED, now_us // 1_000))
    except sqlite3.Error as error:
        raise to_store_error(error, f"cannot restore {path}") from error
