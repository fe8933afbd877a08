"""A session store of its own, on SQLite, whose answers a test can hold back.

It does what a store on a server does: requests and writes are answered in their order, later; rows that wait in the
queue get packet ids when they are saved; a session of a newer generation replaces everything of its client; a retained
message is replaced by a later one only; what waits is lost with the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct, field
from tests.support.stand_in_store import StandInStore

from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer
from embermq.adapters.sqlite.device_queue import SqliteDeviceQueue, SqliteQueueHistory
from embermq.adapters.sqlite.session_tables import apply_session_writes
from embermq.adapters.sqlite.sessions import SqliteSessionStore
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.model.parked_message import ParkedEnd
from embermq.model.session import RetainedRow
from embermq.model.session_writes import QueueRow, QueueState, RetainedWrite, SessionWrites
from embermq.model.tick_writes import TickWrites
from embermq.ports.device_queue import DeviceQueue, Rows, Sizes
from embermq.ports.sessions import SessionStore, StoredState
from embermq.ports.state_writer import StateWriter
from embermq.ports.tick_store import Stored

PACKET_IDS = 65_535


class _Tick(Struct, eq=False):
    """What waits to be stored: the sessions that it is about, and who waits for one of them."""

    generations: set[int]
    stored: Stored
    calls: list[Stored] = field(default_factory=list)


def generations_of(writes: SessionWrites) -> set[int]:
    """The sessions whose data this changes."""
    found = {*writes.deleted_sessions}
    found.update(row.generation for row in writes.sessions)
    found.update(row.generation for row in writes.queue_rows)
    found.update(mark.generation for mark in writes.queue_marks)
    found.update(generation for generation, *_ in writes.subscriptions)
    found.update(generation for generation, _ in writes.wills)
    found.update(generation for generation, *_ in writes.receiving)
    found.update(generation for generation, _ in (*writes.released, *writes.queue_dropped))
    return found


class HeldSessions(StateWriter, DeviceQueue, SessionStore):
    """See the module. `held`: nothing is answered until `release`."""

    def __init__(self, path: Path) -> None:
        self.connection = open_writer(path, synchronous="OFF")
        apply_broker_schema(self.connection)
        self.connection.execute(
            "CREATE TABLE IF NOT EXISTS receiving_upto (generation INTEGER PRIMARY KEY, upto INTEGER)"
        )
        self._tables = TickTables(self.connection)
        self.history = SqliteQueueHistory(self._tables)
        self._queue = SqliteDeviceQueue(self._tables)
        self.held = False
        self.numbers_rows = True
        self.waiting: deque[tuple[Callable[[], None], int]] = deque()
        """What is asked and not answered, with the bytes it holds."""
        self._ticks: list[_Tick] = []
        self.floors: list[int] = []
        self.beside: StandInStore | None = None
        """Where all goes that is no session data."""
        self.noted = (0, 0)
        self.ended: tuple[int, bool] | None = None
        self._packet_ids: dict[int, int] = {}

    # The test's part

    def release(self, count: int = 1) -> None:
        """Answer the next of what waits."""
        for _ in range(count):
            self.waiting.popleft()[0]()

    def answer(self) -> bool:
        """Answer everything, unless it is held; True when there was something."""
        worked = False
        while self.waiting and not self.held:
            self.release()
            worked = True
        return worked

    def crash(self) -> None:
        """The broker dies: nobody hears of what waits."""
        self.waiting.clear()
        self._ticks.clear()
        self.held = False

    # Writes

    def submit(self, writes: TickWrites, base: int, log_end: int, stored: Stored) -> None:
        session = writes.session
        size = sum(len(row.record) for row in session.queue_rows)
        size += sum(len(write.record) for write in session.retained)
        owners = generations_of(session)
        owners.update(mark.generation for mark in writes.application_marks)
        owners.update(
            write.generation if isinstance(write, ParkedEnd) else write.at.generation
            for write in writes.parked
        )
        owners.update(writes.application_positions)
        tick = _Tick(owners, stored)
        self._ticks.append(tick)
        self.waiting.append((partial(self._write, writes, base, log_end, tick), size))

    def when_stored(self, generation: int, call: Stored) -> None:
        for tick in reversed(self._ticks):
            if generation in tick.generations:
                tick.calls.append(call)
                return
        call()

    def _write(self, all_writes: TickWrites, base_offset: int, log_end: int, tick: _Tick) -> None:
        writes = all_writes.session
        if self.beside is not None:
            self.beside.apply_rest(all_writes, base_offset)
        run = self.connection.execute
        run("BEGIN")
        for row in writes.sessions:
            older = run(
                "SELECT generation FROM session WHERE client_id = ? AND generation < ?",
                (row.client_id, row.generation),
            ).fetchall()
            gone = SessionWrites(deleted_sessions=[generation for (generation,) in older])
            self._apply(gone, base_offset)
        found = msgspec.structs.replace(
            writes,
            queue_rows=[self._numbered(row) for row in writes.queue_rows],
            retained=[write for write in writes.retained if self._is_later(write, base_offset)],
        )
        self._apply(found, base_offset)
        for generation in {entry[0] for entry in (*writes.receiving, *writes.released)}:
            run("INSERT OR REPLACE INTO receiving_upto VALUES (?, ?)", (generation, log_end))
        run("COMMIT")
        self._ticks.remove(tick)
        tick.stored()
        for call in tick.calls:
            call()

    def _apply(self, writes: SessionWrites, base_offset: int) -> None:
        self._tables.device.gather(writes, self._floor)
        self._tables.device.write(self._floor)
        self._tables.received.gather(writes)
        self._tables.received.forget(writes.deleted_sessions)
        self._tables.received.write()
        apply_session_writes(self.connection, writes, base_offset)

    def _numbered(self, row: QueueRow) -> QueueRow:
        if row.state != QueueState.QUEUED or not self.numbers_rows:
            return row
        packet_id = self._packet_ids[row.generation] = (
            self._packet_ids.get(row.generation, 100) % PACKET_IDS + 1
        )
        return msgspec.structs.replace(row, packet_id=packet_id)

    def _is_later(self, write: RetainedWrite, base_offset: int) -> bool:
        held = self.connection.execute(
            'SELECT "offset" FROM retained WHERE topic = ?', (write.topic,)
        ).fetchone()
        return held is None or held[0] < base_offset + write.record_index

    @property
    def _floor(self) -> int:
        return self.floors[-1] if self.floors else 0

    def note_log(self, end: int, generations: int, now_ms: int, noted: Stored) -> None:
        self.noted = (end, generations)
        self.waiting.append((noted, 0))

    def note_end(self, end: int, *, in_order: bool) -> None:
        self.ended = (end, in_order)

    @property
    def floor(self) -> int:
        return self._floor

    def forget_below(self, floor: int) -> None:
        self.floors.append(floor)
        if self.beside is not None:
            self.beside.dispatcher_floor = floor
        self._tables.device.forget_done(floor)

    @property
    def waiting_bytes(self) -> int:
        return sum(size for _, size in self.waiting)

    def is_away(self, _client_id: str) -> bool:
        return self.held

    def is_queue_away(self, _name: str) -> bool:
        return self.held

    @property
    def failing(self) -> str:
        return "held by a test" if self.held else ""

    def close(self) -> None:
        self.connection.close()

    # Requests

    def in_flight(self, generation: int, then: Rows) -> None:
        self.waiting.append((partial(self._queue.in_flight, generation, then), 0))

    def page(
        self, generation: int, after_seq: int, limit: int, then: Rows, *, bytes_max: int | None = None
    ) -> None:
        read = partial(self._queue.page, generation, after_seq, limit, then, bytes_max=bytes_max)
        self.waiting.append((read, 0))

    def oldest(self, generation: int, after_seq: int, limit: int, then: Sizes) -> None:
        self.waiting.append((partial(self._queue.oldest, generation, after_seq, limit, then), 0))

    # At start

    def load(self) -> StoredState:
        upto = dict(self.connection.execute("SELECT generation, upto FROM receiving_upto").fetchall())
        state = SqliteSessionStore(self._tables).load()
        return msgspec.structs.replace(
            state,
            dispatcher_floor=self._floor,
            generation_reserved=max(1, self.noted[1]),
            replays=dict(self.beside.replays) if self.beside is not None else {},
            sessions=[
                msgspec.structs.replace(entry, receiving_upto=upto.get(entry.row.generation, 0))
                for entry in state.sessions
            ],
        )

    def load_retained(self) -> list[RetainedRow]:
        return SqliteSessionStore(self._tables).load_retained()

    def rows(self, generation: int) -> list[tuple[int, int, int]]:
        """(offset, state, packet id) of what is stored of a session's queue, in its order."""
        found: list[tuple[int, int, int]] = self.connection.execute(
            'SELECT "offset", state, packet_id FROM device_queue WHERE generation = ? ORDER BY seq',
            (generation,),
        ).fetchall()
        return found


def table(sessions: HeldSessions, name: str) -> list[tuple[object, ...]]:
    """All rows of a table."""
    found: list[tuple[object, ...]] = sessions.connection.execute(f"SELECT * FROM {name}").fetchall()
    return found
