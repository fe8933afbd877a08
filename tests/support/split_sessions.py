"""A session store that has each session on a server of its own: what a tick wants of one is stored in its order, of two
in any. What is handed on goes from one session when the other one has it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from msgspec import Struct
from msgspec.structs import replace
from tests.support.held_sessions import HeldSessions, generations_of

from embermq.model.session_writes import SessionWrites
from embermq.model.tick_writes import TickWrites
from embermq.ports.device_queue import Rows, Sizes
from embermq.ports.tick_store import Stored


class _Tick(Struct, eq=False):
    """`left` are the sessions of which it is not stored."""

    left: set[int]
    stored: Stored
    calls: dict[int, list[Stored]]


class _Operation(Struct, eq=False):
    """`behind` are sessions that have to have their part of the tick before."""

    do: Callable[[], None]
    tick: _Tick | None = None
    behind: frozenset[int] = frozenset()

    @property
    def is_ready(self) -> bool:
        return self.tick is None or not self.behind & self.tick.left


class SplitSessions(HeldSessions):
    """See the module; `step` lets a server that is chosen at random do the next thing."""

    def __init__(self, path: Path, random: Random) -> None:
        super().__init__(path)
        self._random = random
        self._servers: defaultdict[int, deque[_Operation]] = defaultdict(deque)
        self._under_way: list[_Tick] = []

    def submit(self, writes: TickWrites, base: int, log_end: int, stored: Stored) -> None:
        session = writes.session
        owners = generations_of(session) or {0}
        tick = _Tick(set(owners), stored, {})
        self._under_way.append(tick)
        if self.beside is not None:
            self.beside.apply_rest(writes, base)
        for owner in sorted(owners):
            behind = frozenset(keeper for leaving, keeper in session.handed_on if leaving == owner)
            do = partial(self._write_part, _part(session, owner), base, log_end, tick, owner)
            self._servers[owner].append(_Operation(do, tick, behind))

    def _write_part(self, part: SessionWrites, base: int, log_end: int, tick: _Tick, owner: int) -> None:
        run = self.connection.execute
        run("BEGIN")
        self._apply(replace(part, queue_rows=[self._numbered(row) for row in part.queue_rows]), base)
        if part.receiving or part.released:
            run("INSERT OR REPLACE INTO receiving_upto VALUES (?, ?)", (owner, log_end))
        run("COMMIT")
        tick.left.discard(owner)
        for call in tick.calls.pop(owner, ()):
            call()
        while self._under_way and not self._under_way[0].left:
            self._under_way.pop(0).stored()

    def when_stored(self, generation: int, call: Stored) -> None:
        for tick in reversed(self._under_way):
            if generation in tick.left:
                tick.calls.setdefault(generation, []).append(call)
                return
        call()

    def step(self) -> bool:
        """Returns whether there was anything to do."""
        ready = [server for server in self._servers.values() if server and server[0].is_ready]
        if self.waiting and not self._random.randrange(len(ready) + 1):
            self.release()
        elif ready:
            self._random.choice(ready).popleft().do()
        return bool(ready or self.waiting)

    def step_of(self, owner: int) -> bool:
        """The same of the server that has this session."""
        server = self._servers[owner]
        is_ready = bool(server) and server[0].is_ready
        if is_ready:
            server.popleft().do()
        return is_ready

    def answer(self) -> bool:
        worked = False
        while not self.held and self.step():
            worked = True
        return worked

    def crash(self) -> None:
        super().crash()
        self._servers.clear()
        self._under_way.clear()

    def in_flight(self, generation: int, then: Rows) -> None:
        self._servers[generation].append(_Operation(partial(self._queue.in_flight, generation, then)))

    def page(
        self, generation: int, after_seq: int, limit: int, then: Rows, *, bytes_max: int | None = None
    ) -> None:
        read = partial(self._queue.page, generation, after_seq, limit, then, bytes_max=bytes_max)
        self._servers[generation].append(_Operation(read))

    def oldest(self, generation: int, after_seq: int, limit: int, then: Sizes) -> None:
        read = partial(self._queue.oldest, generation, after_seq, limit, then)
        self._servers[generation].append(_Operation(read))


def _part(writes: SessionWrites, owner: int) -> SessionWrites:
    """What it says of one session."""
    return SessionWrites(
        sessions=[row for row in writes.sessions if row.generation == owner],
        subscriptions=[entry for entry in writes.subscriptions if entry[0] == owner],
        wills=[entry for entry in writes.wills if entry[0] == owner],
        receiving=[entry for entry in writes.receiving if entry[0] == owner],
        released=[entry for entry in writes.released if entry[0] == owner],
        queue_rows=[row for row in writes.queue_rows if row.generation == owner],
        queue_marks=[mark for mark in writes.queue_marks if mark.generation == owner],
        queue_dropped=[entry for entry in writes.queue_dropped if entry[0] == owner],
        deleted_sessions=[generation for generation in writes.deleted_sessions if generation == owner],
    )
