"""Writes a log as the broker does: encoded records, one frame a tick."""

import sqlite3
import time
from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from google_crc32c import value as crc32c

from embermq.adapters.segments.writer import SegmentWriter
from embermq.adapters.sqlite.connection import SCHEMA, wall_ms
from embermq.formats.log_record import Origin, Stamp, encode_record, encode_stamps
from embermq.formats.segment_reader import SegmentReader
from embermq.formats.segments import FRAME_BYTES, FrameHead, LogEnd, encode_frame_head, segment_name
from embermq.model.message import Message
from embermq.mqtt.wire.properties import Properties
from embermq.pipeline.places import Places

IDENTITY = 4_711

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
    """The broker's side of log/ and broker.db, as far as the pipeline reads them. Each tick has a file of its own."""

    def __init__(self, data_dir: Path) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self.places = Places(data_dir)
        self.path = self.places.log
        self.connection = sqlite3.connect(self.places.broker, isolation_level=None, check_same_thread=False)
        self.connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
        self.connection.executescript(files("embermq.adapters.sqlite").joinpath("broker.sql").read_text())
        self.connection.execute("INSERT OR IGNORE INTO meta VALUES ('schema_version', ?)", (SCHEMA,))
        before = SegmentReader(self.path)
        end = before.end() or LogEnd(0, 0, 0, 0, IDENTITY)
        before.close()
        self._writer = SegmentWriter(self.path, end, wall_ms, synced=False, segment_bytes=1)

    @property
    def end(self) -> int:
        """Behind the last record."""
        return self._writer.end.offset

    def append(self, records: Sequence[bytes], *, count: int | None = None) -> int:
        """One tick; returns its first offset. `count` may lie, for torn frames."""
        base = self.end
        many = len(records) if count is None else count
        now_ms = time.time_ns() // 1_000_000
        head = FrameHead(sum(map(len, records)), 0, crc32c(b""), many, base, now_ms)
        parts = [encode_frame_head(head), *records]
        parts.append(bytes(head.size - sum(map(len, parts))))
        self._writer.make_room(head.size)
        self._writer.write(parts, head.size)
        self._writer.advance(head.size, many, head.body_bytes)
        end = self._writer.end
        self.connection.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [("log_end", end.offset), ("log_file", end.number), ("log_position", end.position)],
        )
        return base

    def trim_below(self, offset: int) -> None:
        """Drop the frames that end at or before `offset`, but for the file that is being written."""
        if offset >= self.end:
            self._writer.roll()
        reader = SegmentReader(self.path)
        for head, following in pairwise(reader.segments()):
            if following.base_offset <= offset:
                (self.path / segment_name(head.number)).unlink()
        reader.close()

    def damage(self, offset: int, body: bytes) -> None:
        """Put these bytes in the place of the records of the frame that holds `offset`."""
        reader = SegmentReader(self.path)
        frame = next(reader.frames(offset))
        reader.close()
        with (self.path / segment_name(frame.number)).open("r+b") as file:
            file.seek(frame.position + FRAME_BYTES)
            file.write(body[: frame.head.body_bytes])

    def set_floor(self, generation: int, floor: int) -> None:
        """What the application with this session generation has settled."""
        self.connection.execute(
            "INSERT OR REPLACE INTO application_position VALUES (?, 0, ?, 0)", (generation, floor)
        )

    def forget(self, generation: int) -> None:
        """The session is gone."""
        self.connection.execute("DELETE FROM application_position WHERE generation = ?", (generation,))

    def add_receipts(self, body: bytes) -> None:
        """One batch of latency samples."""
        self.connection.execute("INSERT INTO receipt_batch (written_ms, body) VALUES (?, ?)", (NOON_MS, body))

    def close(self) -> None:
        self._writer.close(cut=True)
        self.connection.close()
