"""How far sessions have consumed the log, as the log is told.

Whoever has nothing stored has consumed everything below the dispatcher's floor, and nothing is written about it: what
is acknowledged within the linger costs nothing here. A session with stored deliveries is followed; its cursor is
written with the floor that passes it, when it has moved, and when all is done. It never moves at send [repositories 3].
"""

from msgspec import Struct

from embermq.model.session_cursor import NOTHING_QUEUED, SessionCursor, cursor_of, entry_of
from embermq.model.session_writes import QueueState
from embermq.model.tick_writes import TickWrites
from embermq.sessions.session import Session

WRITE_MS = 500
"""Cursors that have moved are written at least this often while the floor stands still."""


class _Progress(Struct):
    """The progress of one session with stored deliveries. `queued_from`: what is queued and not read has no lower
    offset. `newest`: the offset last stored. `held` is what was in flight when its client went, None while it is
    connected."""

    queued_from: int
    newest: int = -1
    held: tuple[int, ...] | None = ()
    written: SessionCursor | None = None
    strays_from: int = NOTHING_QUEUED
    """What was stored later than what followed it in the log, as a handed over message of a shared subscription is, has
    no lower offset: the cursor waits there until all is done."""


class Cursors:
    """Follows the sessions with stored deliveries."""

    def __init__(self) -> None:
        self._following: dict[int, _Progress] = {}
        self._moved: dict[int, Session] = {}
        self._gone: list[int] = []
        self._written_ms = 0

    def __len__(self) -> int:
        return len(self._following)

    def restore(self, sessions: list[Session], cursors: dict[int, SessionCursor], floor: int) -> None:
        """Begin with what was written before the start, for sessions as they were read. What they have had stored since
        the floor was written last is among what is queued, as far as a cursor can tell."""
        for session in sessions:
            if session.queued:
                written = cursors.get(session.generation) or SessionCursor(floor)
                progress = _Progress(min(written.queued_from, floor), held=written.open)
                progress.written = cursors.get(session.generation)
                self._following[session.generation] = progress
                self._moved[session.generation] = session
        self._gone = [generation for generation in cursors if generation not in self._following]

    def stored(self, session: Session, offset: int, state: int) -> None:
        """A row was added, before `session.backlog` says so; one that is not QUEUED is in the session's window."""
        if offset < 0:
            return
        progress = self._following.get(session.generation)
        if progress is None:
            progress = _Progress(NOTHING_QUEUED, held=() if session.link is None else None)
            self._following[session.generation] = progress
        if state == QueueState.QUEUED:
            if progress.newest < offset > progress.queued_from:
                progress.newest = offset  # one more behind others, as for a client that is away
                return
            if offset < progress.newest:
                progress.strays_from = min(progress.strays_from, offset)
            progress.queued_from = min(progress.queued_from, offset)
        progress.newest = max(progress.newest, offset)
        self._moved[session.generation] = session

    def moved(self, session: Session) -> None:
        """A stored delivery is done."""
        self._moved[session.generation] = session

    def read_to(self, session: Session, offset: int) -> None:
        """Queued deliveries up to this one are in the window now, or dropped."""
        progress = self._following.get(session.generation)
        if progress is not None and offset >= 0:
            progress.queued_from = offset + 1
            self._moved[session.generation] = session

    def read_all(self, session: Session) -> None:
        """Nothing is queued but what is in the window."""
        progress = self._following.get(session.generation)
        if progress is not None:
            progress.queued_from = NOTHING_QUEUED
            self._moved[session.generation] = session

    def comes(self, session: Session) -> None:
        """The client is back, what was in flight is in `session.resend`."""
        progress = self._following.get(session.generation)
        if progress is not None:
            progress.held = None
            if not session.backlog:
                progress.queued_from = NOTHING_QUEUED

    def leaves(self, session: Session) -> None:
        """The client is gone: its window is about to be forgotten."""
        progress = self._following.get(session.generation)
        if progress is not None:
            progress.held = tuple({*(progress.held or ()), *_in_flight(session)})
            self._moved[session.generation] = session

    def forget(self, session: Session) -> None:
        """The session has ended."""
        progress = self._following.pop(session.generation, None)
        if progress is not None and progress.written is not None:
            self._gone.append(session.generation)

    @property
    def next_ms(self) -> int:
        """When `write` is wanted, floor or not; 0 for never."""
        return self._written_ms + WRITE_MS if self._moved or self._gone else 0

    def write(self, writes: TickWrites, now_ms: int) -> None:
        """Put what has moved into the tick that moves the floor."""
        self._written_ms = now_ms
        for generation in self._gone:
            writes.cursors[generation] = None
        self._gone = []
        moved, self._moved = self._moved, {}
        for session in moved.values():  # some of them had nothing left at the start, and have something again
            self._write_one(session, writes)

    def _write_one(self, session: Session, writes: TickWrites) -> None:
        generation = session.generation
        progress = self._following.get(generation)
        if progress is None:
            return
        cursor = _cursor(session, progress)
        if not session.queued or cursor.next_offset == NOTHING_QUEUED:
            del self._following[generation]
            if progress.written is not None:
                writes.cursors[generation] = None
        elif cursor != progress.written:
            progress.written = writes.cursors[generation] = cursor


def _cursor(session: Session, progress: _Progress) -> SessionCursor:
    in_flight = _in_flight(session) if progress.held is None else list(progress.held)
    return cursor_of(min(progress.queued_from, progress.strays_from), in_flight)


def _in_flight(session: Session) -> list[int]:
    """Of what is stored: entries of a cursor."""
    return [
        entry_of(delivery.offset, shared=delivery.shared > 0)
        for deliveries in (session.window.values(), session.resend or ())
        for delivery in deliveries
        if delivery.seq
        and delivery.offset >= 0
        and not delivery.application
        and (delivery.shared_queue is None or session.is_group)
    ]
