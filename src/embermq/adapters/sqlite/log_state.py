"""What belongs to a message log in a store of its own: one transaction a tick on broker.db.

Levels: `fsync` commits with synchronous=FULL on a thread of its own, so that the event loop goes on while the
disk syncs; `os` hands the pages to the kernel at each tick; `memory` answers at once and commits every
`MEMORY_COMMIT_S`. Statements run on the caller's thread; only COMMIT, which waits for the disk, moves.

What a loss of power may take is handed to the kernel, at once and on the caller's thread, and synced once a second: a
sync for each tick would be what most deliveries wait for, and so would the way to another thread and back.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Literal

from embermq.adapters.sqlite.connection import to_store_error
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError
from embermq.ports.log_state import Filled, KnownLog, LogEnds, LogState
from embermq.ports.tick_store import Logged, Receipt

MEMORY_COMMIT_S = 0.05
UNSYNCED_S = 1.0
CHECKPOINT_PAGES = 1_000
"""Pages of the journal with which a commit that waits for the disk, on its thread, copies it into the file."""
NOTED_RECORDS = 1_000
NOTED_S = 1.0
"""After so many records, or so long, the offsets of the log are noted with its end."""
LOG_APART = "log_apart"
"""Of `meta`: the log is in a store of its own."""

Durability = Literal["fsync", "os", "memory"]
Post = Callable[[Callable[[], None]], object]
"""Runs a callable soon on the broker's thread; may be called from any thread."""


def is_log_apart(tables: TickTables) -> bool:
    """Whether a log in a store of its own was ever opened with this broker.db."""
    return bool(tables.number(LOG_APART, 0))


class SqliteLogState(LogState):
    """See the module. `post` brings results back to the broker's thread."""

    def __init__(self, tables: TickTables, *, durability: Durability, post: Post) -> None:
        self._tables = tables
        self._connection = tables.connection
        self._durability = durability
        self._post = post
        self._busy = False
        self._syncs = True
        self._synced_at_s = 0.0
        self._open_since_s = 0.0
        self._log_end = self._tables.number("log_end", 0)
        self._open_ticks: list[tuple[TickWrites, int, int]] = []
        self._closed_end = -1
        self._ends: LogEnds | None = None
        self._noted_number = 0
        self._noted_s = 0.0
        self._work: SimpleQueue[tuple[int, int, Logged] | None] = SimpleQueue()
        self._thread: Thread | None = None
        if durability == "fsync":
            self._thread = Thread(target=self._commit_forever, name="broker.db commit", daemon=True)
            self._thread.start()

    @property
    def log_end(self) -> int:
        """The offset that the next committed record gets."""
        return self._log_end

    @property
    def dispatcher_floor(self) -> int:
        """Every record below it is delivered, stored or owed to nobody, and that is handed to the store."""
        return self._tables.floor

    def keep(self, writes: TickWrites, base: int, count: int, kept: Logged) -> None:
        self._commit(writes, base, count, kept, synced=not writes.may_be_lost_with_power())

    def _set_syncs(self, wanted: bool) -> None:
        """Of the next transaction; those before it are on the disk when it is."""
        now_s = time.monotonic()
        wanted = wanted or now_s - self._synced_at_s >= UNSYNCED_S
        if wanted:
            self._synced_at_s = now_s
        if wanted != self._syncs:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES if wanted else 0}")
            self._syncs = wanted

    def known_log(self) -> KnownLog:
        left_out_from, left_out_to = self._tables.number("log_found", 0), self._tables.number("log_begun", 0)
        noted, _, offsets = self._tables.text("log_offsets").partition(":")
        filled = [one.partition("-") for one in self._tables.text("log_filled").split(",") if one]
        return KnownLog(
            is_any=is_log_apart(self._tables),
            identity=self._tables.text("log_identity"),
            end=self._log_end,
            records_end=left_out_from if 0 < self._log_end <= left_out_to else self._log_end,
            closed_end=self._tables.number("log_closed", -1),
            noted_number=int(noted or 0),
            noted_offsets=tuple(map(int, offsets.split(","))) if offsets else (),
            filled=tuple((int(first), int(last)) for first, _, last in filled),
            since=self._tables.number("log_since", 0),
        )

    def open_log(
        self,
        identity: str,
        records_end: int,
        end: int,
        ends: LogEnds | None = None,
        *,
        filled: Filled = (),
    ) -> None:
        self._ends = ends
        run = self._connection.execute
        before = self._tables.text("log_identity")
        found = {LOG_APART: 1, "log_identity": identity, "log_found": records_end, "log_begun": end}
        found["log_filled"] = ",".join(f"{first}-{last}" for first, last in filled)
        try:
            run("BEGIN IMMEDIATE")
            if before not in ("", identity):
                found["log_since"] = end
                # They speak of positions in the one before.
                run("UPDATE shared_position SET floors = x''")
                run("UPDATE application_inflight SET source_partition = -1, source_offset = -1, number = -1")
            for name, value in found.items():
                run("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
            run("DELETE FROM meta WHERE name = 'log_closed'")
            self._note_offsets()
            run("COMMIT")
        except sqlite3.Error as error:
            raise to_store_error(error, "cannot write to broker.db") from error

    def _note_offsets(self) -> None:
        if self._ends is None:
            return
        number, offsets = self._ends()
        self._noted_number, self._noted_s = number, time.monotonic()
        noted = f"{number}:{','.join(map(str, offsets))}"
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('log_offsets', ?)", (noted,))

    def close_log(self, end: int) -> None:
        self._closed_end = end

    def _commit(
        self, writes: TickWrites, base: int, count: int, logged: Logged, *, synced: bool = True
    ) -> None:
        if self._busy:
            raise RuntimeError("a tick is already being committed")
        self._busy = True
        try:
            if not self._connection.in_transaction:
                if self._durability == "fsync":
                    self._set_syncs(synced)
                self._connection.execute("BEGIN IMMEDIATE")
                self._open_since_s = time.monotonic()
            self._apply(writes, base + count, base)
        except sqlite3.Error as error:
            self._fail(error, logged)
            return
        if self._durability == "fsync" and self._syncs:
            self._work.put((base, count, logged))
            return
        if self._durability != "memory" or time.monotonic() - self._open_since_s >= MEMORY_COMMIT_S:
            try:
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._fail(error, logged)
                return
            self._open_ticks.clear()
        else:
            self._open_ticks.append((writes, base, count))
        self._succeed(base, count, logged)

    def settle(self) -> None:
        if not self._open_ticks or time.monotonic() - self._open_since_s < MEMORY_COMMIT_S:
            return
        try:
            self._connection.execute("COMMIT")
            self._open_ticks.clear()
        except sqlite3.Error:
            if not self._connection.in_transaction:
                self._apply_again()  # else it stays open: the next tick tries again and reports

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        with suppress(sqlite3.Error):  # a disk that is full: an older note is still true
            self._note_offsets()
        if self._closed_end >= 0:
            self._connection.execute(
                "INSERT OR REPLACE INTO meta VALUES ('log_closed', ?)", (self._closed_end,)
            )
        self._connection.close()

    def _commit_forever(self) -> None:
        while (work := self._work.get()) is not None:
            base, count, logged = work
            try:
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._fail(error, logged)
            else:
                self._succeed(base, count, logged)

    def _succeed(self, base: int, count: int, logged: Logged) -> None:
        receipt = Receipt(base, count)

        def finish() -> None:
            self._log_end = base + count
            self._busy = False
            logged(receipt)

        self._post(finish)

    def _fail(self, error: sqlite3.Error, logged: Logged) -> None:
        failure: StoreError = to_store_error(error, "cannot commit a tick to broker.db")
        self._noted_number, self._noted_s = 0, 0.0  # what was noted may have gone with it
        with suppress(sqlite3.Error):  # it may have been rolled back already
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self._apply_again()

        def finish() -> None:
            self._busy = False
            logged(failure)

        self._post(finish)

    def _apply_again(self) -> None:
        """Of the level `memory`: ticks that were answered for and shared the transaction with the one that failed."""
        ticks, self._open_ticks = self._open_ticks, []
        if not ticks:
            return
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for writes, base, count in ticks:
                self._apply(writes, base + count, base)
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _apply(self, writes: TickWrites, end: int, base: int) -> None:
        if end > self._log_end:
            self._tables.put("log_end", end)
            many = end - self._noted_number >= NOTED_RECORDS
            if many or time.monotonic() - self._noted_s >= NOTED_S:
                self._note_offsets()
        self._tables.apply(writes, base)
