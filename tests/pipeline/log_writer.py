"""Writes a broker.db as the broker does: encoded records, one row of log_batch a tick."""

import sqlite3
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from embermq.model.log_record import Origin, Stamp, encode_record, encode_stamps
from embermq.model.message import Message
from embermq.protocol.properties import Properties

NOON_MS = 1_750_000_000_000


def record(
    topic: str = "cars/1/speed",
    payload: bytes = b'{"speed": 80}',
    *,
    stamps: tuple[Stamp, ...] = (),
    accepted_ms: int = NOON_MS,
    qos: int = 1,
    properties: Properties | None = None,
    expires_ms: int = 0,
    origin: Origin | None = None,
    unknown_fields: tuple[tuple[int, bytes], ...] = (),
) -> bytes:
    """One encoded record with defaults that suit a test."""
    version = 5 if properties else 4
    message = Message(topic, payload, qos, False, "car-1", version, accepted_ms, expires_ms, properties)
    return encode_record(message, encode_stamps(stamps), origin, unknown_fields)


class LogWriter:
    """The broker's side of broker.db, in so far as the pipeline reads it."""

    def __init__(self, data_dir: Path) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self.path = data_dir / "broker.db"
        self.connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self.connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
        self.connection.executescript(files("embermq.adapters.sqlite").joinpath("broker.sql").read_text())
        row = self.connection.execute("SELECT value FROM meta WHERE name = 'log_end'").fetchone()
        self.end = int(row[0]) if row else 0

    def append(self, records: Sequence[bytes], *, count: int | None = None) -> int:
        """One tick; returns its first offset. `count` may lie, for torn batches."""
        base = self.end
        body = b"".join(records)
        self.end += len(records) if count is None else count
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute(
            "INSERT INTO log_batch VALUES (?, ?, ?, ?, ?)",
            (base, self.end - base, time.time_ns() // 1_000_000, len(body), body),
        )
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES ('log_end', ?)", (self.end,))
        self.connection.execute("COMMIT")
        return base

    def trim_below(self, offset: int) -> None:
        """Drop the batches that end at or before `offset`."""
        self.connection.execute("DELETE FROM log_batch WHERE base_offset + record_count <= ?", (offset,))

    def set_floor(self, generation: int, floor: int) -> None:
        """What the application with this session generation has settled."""
        self.connection.execute(
            "INSERT OR REPLACE INTO application_context VALUES (?, ?, ?)",
            (generation, f"app-{generation}", floor),
        )

    def forget(self, generation: int) -> None:
        """The session is gone."""
        self.connection.execute("DELETE FROM application_context WHERE generation = ?", (generation,))

    def add_receipts(self, body: bytes) -> None:
        """One batch of latency samples."""
        self.connection.execute("INSERT INTO receipt_batch (written_ms, body) VALUES (?, ?)", (NOON_MS, body))

    def close(self) -> None:
        self.connection.close()
