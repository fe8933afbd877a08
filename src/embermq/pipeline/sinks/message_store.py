"""messages.db: every QoS 1 and 2 message by position, until it is too old."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from embermq.pipeline.sinks.sink_file import SinkFile

READER = "archive"

_COLUMNS = (
    "offset",
    "partition",
    "topic",
    "accepted_ms",
    "qos",
    "retain",
    "publisher",
    "version",
    "expires_ms",
    "properties",
    "payload",
)
_INSERT = f"INSERT OR IGNORE INTO message VALUES ({', '.join('?' for _ in _COLUMNS)})"
_PRUNE = """
DELETE FROM message WHERE "offset" IN (
    SELECT "offset" FROM (SELECT "offset", accepted_ms FROM message ORDER BY "offset" LIMIT ?)
    WHERE accepted_ms < ?
)
"""
_ROWS_PER_INSERT = 5_000


class MessageStoreSink:
    """Writes a batch of the archive in one transaction."""

    def __init__(self, path: Path) -> None:
        self.file = SinkFile(path, READER, ("embermq.model", "messages.sql"))

    def write(self, messages: DataFrame) -> int:
        """Take what `stored_messages` gives; returns the number of log positions it covered."""
        return self.write_table(messages.toArrow())

    def write_table(self, table: pa.Table) -> int:
        """As `write`. Positions below the progress are skipped."""
        done = self.file.position() or 0
        table = table.filter(pc.greater_equal(table["offset"], done))
        if not len(table):
            return 0
        end = pc.max(pc.add(table["offset"], table["span"])).as_py()
        begin = pc.min(table["offset"]).as_py()
        good = table.filter(pc.is_null(table["error"])).select(_COLUMNS)
        with self.file.transaction() as connection:
            for batch in good.to_batches(max_chunksize=_ROWS_PER_INSERT):
                connection.executemany(
                    _INSERT, zip(*(column.to_pylist() for column in batch.columns), strict=True)
                )
            self.file.count(records=end - begin, entries=len(good), rejected=end - begin - len(good))
            self.file.move_to(end)
        return int(end - begin)

    def prune(self, older_than_ms: int, rows_max: int) -> int:
        """Delete from the oldest position on what was accepted before that time, at most `rows_max` rows."""
        with self.file.transaction() as connection:
            return connection.execute(_PRUNE, (rows_max, older_than_ms)).rowcount
