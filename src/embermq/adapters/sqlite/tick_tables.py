"""What a tick changes in broker.db, inside the caller's transaction.

Stored deliveries, packet ids of incoming PUBLISHes and entries of queues, which come and go fast, gather first, and are
written together: before a commit, and before somebody reads them with this connection. So do receipts, which are read
with others alone.
"""

import sqlite3

from embermq.adapters.sqlite.connection import Now, wall_ms
from embermq.adapters.sqlite.device_rows import DeviceRows
from embermq.adapters.sqlite.parked_messages import apply_parked
from embermq.adapters.sqlite.queue_tables import QueueTables
from embermq.adapters.sqlite.session_tables import ReceivedIds, apply_session_writes, apply_to_applications
from embermq.model.tick_writes import TickWrites

RECEIPTS_KEPT_MS = 600_000
RECEIPT_BATCHES_MAX = 64
"""Batches of receipts looked at in one commit: looking at all that are kept would be most of its work."""
REPLAY_PREFIX = "replay:"
"""Before the id of a replay, in `meta`."""
_FORGET_RECEIPTS = """
DELETE FROM receipt_batch WHERE id <= (
    SELECT MAX(id) FROM (SELECT id, written_ms FROM receipt_batch ORDER BY id LIMIT ?) WHERE written_ms < ?
)
"""


class TickTables:
    """See the module."""

    def __init__(self, connection: sqlite3.Connection, now_ms: Now = wall_ms) -> None:
        self.connection = connection
        self.now_ms = now_ms
        self.queues = QueueTables(connection, now_ms)
        self.device = DeviceRows(connection)
        self._receipts: list[bytes] = []
        self.received = ReceivedIds(connection)
        self.floor = self._floor_written = self.number("dispatcher_floor", 0)

    def read_again(self) -> None:
        """A transaction was taken back: nothing of it counts."""
        self.device.clear()
        self.received.clear()
        self.queues.clear()
        self._receipts.clear()
        self.floor = self._floor_written = self.number("dispatcher_floor", 0)
        self.queues.is_sweeping = True  # a sweep that was over is not

    def apply(self, writes: TickWrites, base: int) -> None:
        """Of a tick whose records begin at offset `base`."""
        session = writes.session
        if not session.is_empty():
            self.device.gather(session, self.floor)
            self.received.gather(session)
            if session.deleted_sessions:
                self.received.forget(session.deleted_sessions)
            apply_session_writes(self.connection, session, base)
        if writes.parked:
            apply_parked(self.connection, writes.parked)
        apply_to_applications(self.connection, writes, self.now_ms)
        if not writes.queues.is_empty():
            self.queues.apply(writes.queues, base)
        if self.queues.is_sweeping:
            self.queues.sweep()
        self._receipts += writes.receipts
        for replay, number in writes.replays.items():
            self.put(REPLAY_PREFIX + replay, number)
        if writes.dispatcher_floor >= 0:
            self.floor = writes.dispatcher_floor
        if writes.generation_reserved >= 0:
            self.put("generation_reserved", writes.generation_reserved)

    def write(self) -> None:
        """Have the tables hold all that was applied."""
        self.queues.write()
        self.device.write(self.floor)
        self.received.write()
        if self._receipts:
            self._write_receipts()
        if self.floor != self._floor_written:
            self._floor_written = self.floor
            self.put("dispatcher_floor", self.floor)
            self.device.forget_done(self.floor)

    def _write_receipts(self) -> None:
        run, now_ms = self.connection.execute, self.now_ms()
        body = b"".join(self._receipts)
        run("INSERT INTO receipt_batch (written_ms, body) VALUES (?, ?)", (now_ms, body))
        run(_FORGET_RECEIPTS, (RECEIPT_BATCHES_MAX, now_ms - RECEIPTS_KEPT_MS))
        self._receipts.clear()

    def show_rows(self, generation: int, after_seq: int = -1) -> None:
        """Have the table of stored deliveries hold what a session has behind `after_seq`."""
        self.device.show(generation, after_seq, self.floor)

    def put(self, name: str, value: int) -> None:
        """Store one value of `meta`."""
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def number(self, name: str, default: int) -> int:
        """Read one value of `meta`; `default` when it is not there."""
        row = self.connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else default
