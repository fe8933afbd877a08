"""What the pipeline's sinks have confirmed, read from the files that they write."""

import sqlite3
from pathlib import Path

from embermq.adapters.sqlite.connection import open_reader
from embermq.ports.errors import StoreError
from embermq.ports.log_readers import LogReader, LogReaders

PIPELINE_FILES = ("applications.db", "messages.db", "archive.db", "lake.db", "traffic.db")
"""messages.db before archive.db, which is there when the messages are on a server, and then speaks for the archive."""


# Those with a semicolon are of partitions of a log in Kafka, of another time.
_POSITIONS = "SELECT reader, next_offset, updated_ms FROM progress WHERE reader NOT GLOB '*;*'"


class SqliteLogReaders(LogReaders):
    """Opens each file for the moment of one read: the pipeline may replace it at any time."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def positions(self) -> list[LogReader]:
        found: dict[str, LogReader] = {}
        for name in PIPELINE_FILES:
            path = self._data_dir / name
            if path.exists():
                found.update((reader.name, reader) for reader in _positions(path))
        return list(found.values())


def _positions(path: Path) -> list[LogReader]:
    try:
        connection = open_reader(path)
    except StoreError:
        return []
    try:
        rows = connection.execute(_POSITIONS).fetchall()
    except sqlite3.Error:
        return []  # its tables are just being made, or it is damaged: then its readers have confirmed nothing
    finally:
        connection.close()
    return [LogReader(*row) for row in rows]
