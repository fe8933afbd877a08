"""migration.db: which pieces of a migration are done, what was counted, and which rows were not taken."""

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import msgspec
from msgspec import Struct, field

from embermq.formats.stored_version import PIPELINE_FILES, newer_file
from embermq_migrate.errors import MigrationError
from embermq_migrate.old_tables import Piece

BUSY_TIMEOUT_MS = 60_000
"""Tasks write one after the other."""
WRITERS_S = 20.0
LOOK_S = 0.1
TEXT_SHOWN = 1_000
"""Characters kept of a client id or topic that was rejected."""


class Counts(Struct):
    """Of one piece, or of a run: what became of clients and of messages. Each message read counts once more, as one of
    `written`, `there`, `taken_over`, `expired`, `over_limit` or `rejected`."""

    clients: int = 0
    clients_written: int = 0
    clients_there: int = 0
    clients_taken_over: int = 0
    """Migrated before, and connected since: left as they are."""
    read: int = 0
    written: int = 0
    there: int = 0
    taken_over: int = 0
    expired: int = 0
    over_limit: int = 0
    rejected: int = 0
    renumbered: int = 0
    """Of those written: their packet id was another message's of the same client."""
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Counts") -> None:
        """Sum up."""
        for name in self.__struct_fields__:
            if name != "reasons":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count


class Rejected(Struct, frozen=True):
    """One row that was not taken."""

    client_id: str | None
    serial_number: int | None
    packet_id: int | None
    topic: str | None
    reason: str
    detail: str


_decode_counts = msgspec.json.Decoder(Counts).decode


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around what a task writes: a driver that was killed leaves tasks behind for a moment, and the next one waits."""
    descriptor = _lock_file(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def wait_for_writers(path: Path, deadline_s: float = WRITERS_S) -> None:
    """Until no task of an earlier driver is left. Raises MigrationError."""
    descriptor = _lock_file(path)
    ends_s = time.monotonic() + deadline_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > ends_s:
                    raise MigrationError(
                        f"a migration that was killed is still writing after {deadline_s:g} s: end its processes"
                    ) from None
                time.sleep(LOOK_S)
            else:
                return
    finally:
        os.close(descriptor)


def _lock_file(path: Path) -> int:
    return os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class MigrationFile:
    """Opened by the driver and by every task. Raises MigrationError for a file of a newer EmberMQ."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        run = self._connection.executescript
        problem = newer_file(self.path.name, self._connection.execute("PRAGMA user_version").fetchone()[0])
        if problem:
            raise MigrationError(problem)
        run(
            f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
        )
        run(files(__package__ or "").joinpath("migration.sql").read_text())
        self._connection.execute(f"PRAGMA user_version = {PIPELINE_FILES}")

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    # The driver

    def unfinished(self, source: str, target: str, terms: str) -> int | None:
        """The newest run, when it is one of these and was not finished. `terms` are the options that a run keeps to."""
        row = self._connection.execute(
            "SELECT id, source, target, terms, finished_ms FROM run ORDER BY id DESC LIMIT 1"
        ).fetchone()
        return row[0] if row is not None and row[1:] == (source, target, terms, 0) else None

    def is_half_done(self) -> bool:
        """Whether the newest run was not finished, whatever was asked of it."""
        row = self._connection.execute("SELECT finished_ms FROM run ORDER BY id DESC LIMIT 1").fetchone()
        return row is not None and row[0] == 0

    def begin(self, source: str, target: str, terms: str, pieces: Iterator[Piece]) -> int:
        """A new run with its pieces; what earlier ones rejected is forgotten."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM rejected")
            connection.execute("DELETE FROM piece")
            run = connection.execute(
                "INSERT INTO run (source, target, terms, started_ms) VALUES (?, ?, ?, ?)",
                (source, target, terms, _now_ms()),
            ).lastrowid
            assert run is not None
            connection.executemany(
                "INSERT INTO piece VALUES (?, ?, ?, ?, ?, ?, NULL)",
                (
                    (run, piece.number, piece.first, piece.last, piece.clients, piece.messages)
                    for piece in pieces
                ),
            )
        return run

    def pieces(self, run: int) -> list[Piece]:
        """All of them, by number."""
        rows = self._connection.execute(
            "SELECT number, first, last, clients, messages FROM piece WHERE run = ? ORDER BY number", (run,)
        )
        return [Piece(*row) for row in rows]

    def done(self, run: int) -> dict[int, Counts]:
        """Number -> counts, of the pieces that are done."""
        rows = self._connection.execute(
            "SELECT number, counts FROM piece WHERE run = ? AND counts IS NOT NULL", (run,)
        )
        return {number: _decode_counts(counts) for number, counts in rows}

    def reserve(self, first: int, end: int) -> None:
        """Remember generations that sessions may get."""
        self._connection.execute("INSERT OR REPLACE INTO reserved VALUES (?, ?)", (first, end))

    def finish(self, run: int) -> None:
        """Every piece is done."""
        self._connection.execute("UPDATE run SET finished_ms = ? WHERE id = ?", (_now_ms(), run))

    def rejects(self) -> Iterator[Rejected]:
        """What the newest run did not take, by client and serial number."""
        rows = self._connection.execute(
            "SELECT client_id, serial_number, packet_id, topic, reason, detail FROM rejected"
            " ORDER BY client_id, serial_number"
        )
        for row in rows:
            yield Rejected(*row)

    # Tasks

    def is_ours(self, generation: int) -> bool:
        """Whether a session's generation was given by a migration."""
        row = self._connection.execute(
            'SELECT 1 FROM reserved WHERE ? >= first AND ? < "end"', (generation, generation)
        ).fetchone()
        return row is not None

    def complete(self, run: int, number: int, counts: Counts, rejects: list[Rejected]) -> None:
        """A piece is done: its counts and what it rejected, together."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM rejected WHERE piece = ?", (number,))
            self._keep(connection, number, rejects)
            connection.execute(
                "UPDATE piece SET counts = ? WHERE run = ? AND number = ?",
                (msgspec.json.encode(counts).decode(), run, number),
            )

    def _keep(self, connection: sqlite3.Connection, number: int, rejects: list[Rejected]) -> None:
        connection.executemany(
            "INSERT INTO rejected VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    number,
                    row.client_id and row.client_id[:TEXT_SHOWN],
                    row.serial_number,
                    row.packet_id,
                    row.topic and row.topic[:TEXT_SHOWN],
                    row.reason,
                    row.detail,
                )
                for row in rejects
            ),
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
