"""rules.db: what rules could not use, and why. Written by the driver; no Spark in here."""

import time
from contextlib import closing
from pathlib import Path
from typing import Literal

from embermq.pipeline.rules.settings import SetAsideMessage, query_of_rule
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.sources.log_file import connect_readonly

What = Literal["failed", "refused"]
ROWS_MAX = 1 << 16
"""Of one message; the number of a row is the offset of its message times this, and which of its rows it is."""
KEPT = 1_000
"""Of each rule, the newest ones; all are counted."""
REASON_CHARACTERS_MAX = 500
_TABLE = "messages_set_aside"
_NEWEST = (
    f'SELECT "partition", number, what, reason, at_ms FROM {_TABLE} WHERE rule = ?'
    ' ORDER BY at_ms DESC, "partition" DESC, number DESC LIMIT ?'
)
_PRUNE = f"""
DELETE FROM {_TABLE} WHERE rule = ?1 AND at_ms < (
    SELECT MIN(at_ms) FROM (SELECT at_ms FROM {_TABLE} WHERE rule = ?1 ORDER BY at_ms DESC LIMIT ?2)
)
"""


class SetAside:
    """Of one rule. Each number is counted once, also when a batch is done again."""

    def __init__(self, path: Path, rule: str) -> None:
        self._file = SinkFile(path, query_of_rule(rule), (__package__ or "", "set_aside.sql"))
        self._rule = rule
        self.totals = self._file.counts()

    def add(self, what: What, partition: int, number: int, reason: str) -> None:
        """Durable when it returns."""
        now_ms = time.time_ns() // 1_000_000
        row = (self._rule, what, partition, number, reason[:REASON_CHARACTERS_MAX], now_ms)
        with self._file.transaction() as connection:
            insert = f"INSERT OR IGNORE INTO {_TABLE} VALUES (?, ?, ?, ?, ?, ?)"
            added = connection.execute(insert, row).rowcount
            if added > 0:
                self._file.count(**{what: 1})
                connection.execute(_PRUNE, (self._rule, KEPT))
        self.totals = self._file.counts()

    def close(self) -> None:
        self._file.close()


def set_aside_of(path: Path, rule: str, limit: int) -> list[SetAsideMessage]:
    """The newest first."""
    connection = connect_readonly(path)
    if connection is None:
        return []
    with closing(connection):
        is_there = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (_TABLE,)).fetchone()
        rows = connection.execute(_NEWEST, (rule, limit)).fetchall() if is_there else []
    return [
        SetAsideMessage(
            partition=partition,
            offset=number // ROWS_MAX,
            row=number % ROWS_MAX,
            what=what,
            reason=reason,
            at_ms=at_ms,
        )
        for partition, number, what, reason, at_ms in rows
    ]
