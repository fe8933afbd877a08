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
from embermq.ports.known_log import KnownLog
from embermq.ports.log_state import LogState
from embermq.ports.tick_store import Logged, Receipt

MEMORY_COMMIT_S = 0.05
UNSYNCED_S = 1.0
CHECKPOINT_PAGES = 1_000
"""Pages of the journal with which a commit that waits for the disk, on its thread, copies it into the file."""
LOG_APART = "log_apart"
"""Of `meta`: the log is in a store of its own."""
LOG_CLOSED = "log_closed"
"""Of `meta`: 1 after a run that ended in order."""

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
        self._closed: tuple[int, bool] | None = None
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
        return KnownLog(
            is_any=is_log_apart(self._tables),
            identity=self._tables.text("log_identity"),
            end=self._log_end,
            ended_in_order=bool(self._tables.number(LOG_CLOSED, 0)),
        )

    def open_log(self, identity: str) -> None:
        noted = {LOG_APART: 1, "log_identity": identity, LOG_CLOSED: 0}
        run = self._connection.execute
        try:
            run("BEGIN IMMEDIATE")
            for name, value in noted.items():
                run("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
            run("COMMIT")
        except sqlite3.Error as error:
            raise to_store_error(error, "cannot write to broker.db") from error

    def close_log(self, end: int, *, in_order: bool) -> None:
        self._closed = (end, in_order)

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
        if self._closed is not None:
            end, in_order = self._closed
            with suppress(sqlite3.Error):  # a disk that is full: what was noted before is still true
                self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('log_end', ?)", (end,))
                self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (LOG_CLOSED, in_order))
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
        self._tables.apply(writes, base)
