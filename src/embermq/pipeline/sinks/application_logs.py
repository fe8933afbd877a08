"""applications.db: what each APPLICATION client is owed, and what could not be understood."""

import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from embermq.model.client_type import ClientType
from embermq.pipeline.places import Places
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.sources.log_file import BrokerFile, LogFile

READER = "dispatch"
_EVERYTHING = 1 << 62
_SESSIONS = f"""
SELECT generation, committed_offset FROM application_position
UNION ALL SELECT generation, 0 FROM session
WHERE client_type = {int(ClientType.APPLICATION)} AND generation NOT IN (SELECT generation FROM application_position)
UNION ALL SELECT -1, COALESCE((SELECT value FROM meta WHERE name = 'log_end'), 0)
"""
_LOG_END = -1
"""Stands in the place of a generation: broker.db knows every session that was there when the log ended so far."""


class ApplicationLogSink:
    """Writes a batch of dispatch in one transaction: entries, names, rejected records, progress."""

    def __init__(self, path: Path) -> None:
        self.file = SinkFile(
            path, READER, ("embermq.formats", "applications.sql"), (__package__ or "", "gone.sql")
        )

    def write(self, entries: DataFrame) -> int:
        """Take what `application_entries` gives; returns the number of log positions it covered."""
        return self.write_table(entries.toArrow())

    def write_table(self, table: pa.Table) -> int:
        """As `write`. Positions below the progress are skipped: they have had their effect."""
        done = self.file.position() or 0
        table = table.filter(pc.greater_equal(table["offset"], done))
        if not len(table):
            return 0
        good = table.filter(pc.is_valid(table["generation"]))
        broken = table.filter(pc.is_valid(table["error"]))
        end = pc.max(pc.add(table["offset"], table["span"])).as_py()
        begin = pc.min(table["offset"]).as_py()
        with self.file.transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO application_log VALUES (?, ?, ?, ?)",
                zip(
                    *(good[name].to_pylist() for name in ("generation", "offset", "flags", "identifiers")),
                    strict=True,
                ),
            )
            self._write_names(good)
            rejected, missing = self._write_rejected(broken)
            self.file.count(records=end - begin, entries=len(good), rejected=rejected, missing=missing)
            self.file.move_to(end)
        return int(end - begin)

    def _write_names(self, good: pa.Table) -> None:
        names = good.select(["generation", "log"]).group_by("generation").aggregate([("log", "max")])
        self.file.connection.executemany(
            "INSERT OR IGNORE INTO application_name VALUES (?, ?)",
            zip(names["generation"].to_pylist(), names["log_max"].to_pylist(), strict=True),
        )

    def _write_rejected(self, broken: pa.Table) -> tuple[int, int]:
        """(positions rejected, positions missing); a missing range is one row."""
        rejected = missing = 0
        now_ms = time.time_ns() // 1_000_000
        for row in broken.to_pylist():
            self.file.connection.execute(
                "INSERT OR IGNORE INTO rejected VALUES (?, ?, ?, ?)",
                (row["offset"], row["error"], row["body"] or b"", now_ms),
            )
            if row["body"]:
                rejected += row["span"]
            else:
                missing += row["span"]
        return rejected, missing

    def trim(self, places: Places, rows_max: int) -> int:
        """Delete at most `rows_max` entries that no application needs any more; returns how many.

        That is: below the floor of each application that broker.db knows, and everything of a generation that is
        gone, once this sink has passed the end of the log as it was when the generation was found gone, for
        stamping stops before a generation goes. Since broker.db is a little behind the log, a generation that it does
        not know may also be a new one: it is gone when broker.db has passed that end too.
        """
        names = self.file.connection.execute("SELECT generation FROM application_name").fetchall()
        sessions = _read_sessions(places.broker) if names else None
        if sessions is None:
            return 0
        left = rows_max
        for (generation,) in names:
            if left <= 0:
                break
            floor = sessions.get(generation)
            if floor is None:
                left -= self._drop_gone(generation, places.log, sessions[_LOG_END], left)
            else:
                left -= self._delete(generation, floor, left)
        return rows_max - left

    def _drop_gone(self, generation: int, log: Path, known_end: int, rows_max: int) -> int:
        connection = self.file.connection
        found = connection.execute(
            "SELECT passed_at FROM application_gone WHERE generation = ?", (generation,)
        ).fetchone()
        if found is None:
            with closing(LogFile(log)) as reader:
                end = reader.end() or 0
            connection.execute("INSERT INTO application_gone VALUES (?, ?)", (generation, end))
            return 0
        if min(self.file.position() or 0, known_end) < found[0]:
            return 0
        deleted = self._delete(generation, _EVERYTHING, rows_max)
        if deleted < rows_max:
            with self.file.transaction():
                connection.execute("DELETE FROM application_name WHERE generation = ?", (generation,))
                connection.execute("DELETE FROM application_gone WHERE generation = ?", (generation,))
        return deleted

    def _delete(self, generation: int, below: int, rows_max: int) -> int:
        """Entries of one log below an offset, the oldest first."""
        edge = self.file.connection.execute(
            'SELECT MAX("offset"), COUNT(*) FROM (SELECT "offset" FROM application_log'
            ' WHERE generation = ? AND "offset" < ? ORDER BY "offset" LIMIT ?)',
            (generation, below, rows_max),
        ).fetchone()
        if edge[1]:
            self.file.connection.execute(
                'DELETE FROM application_log WHERE generation = ? AND "offset" <= ?', (generation, edge[0])
            )
        return int(edge[1])


def _read_sessions(path: Path) -> dict[int, int] | None:
    """Generation -> floor of every session there is, 0 for one that has settled nothing, and of `_LOG_END` the end of
    the log that this belongs to; None without a broker.db."""
    broker = BrokerFile(path)
    try:
        rows = broker.query(_SESSIONS)
    finally:
        broker.close()
    return None if rows is None else {row[0]: row[1] for row in rows}
