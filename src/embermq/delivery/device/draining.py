"""Sessions whose client comes back while the store takes nothing, because the disk is full.

It reads what is stored and acknowledges it; what that changes waits in memory, and is stored when there is room. QoS 1
messages may go like that: a crash only brings them again. A QoS 2 message may not, since its packet id has to be in
store before the client knows it; so the reading stops in front of one, and goes on when the store works again. A client
that returns a second time is shown the store as it will be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from msgspec.structs import replace

from embermq.delivery.device.requests import Requests
from embermq.model.session_writes import QueueRow, QueueState, SessionWrites
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState

UNSTORED_MAX = 10_000
"""Changes of stored deliveries that may wait in memory; then nothing more is read. Each attempt of the store goes
through all of them."""
Recalled = Callable[[list[QueueRow]], None]


def unstored_writes(state: BrokerState, session: Session) -> SessionWrites:
    """What ticks that the store has not been shown yet want of the session's queue."""
    found = SessionWrites()
    generation = session.generation
    for writes in (tick.session for tick in state.tick.unstored()):
        found.queue_rows += [row for row in writes.queue_rows if row.generation == generation]
        found.queue_marks += [mark for mark in writes.queue_marks if mark.generation == generation]
        found.queue_dropped += [entry for entry in writes.queue_dropped if entry[0] == generation]
    return found


class Draining:
    """Asked only while `BrokerState.drains`, but for `resume` and `forget`."""

    def __init__(self, state: BrokerState, requests: Requests) -> None:
        self._state = state
        self._requests = requests
        self._stopped: set[Session] = set()
        """Whose next stored delivery cannot be sent before the store works."""

    def may_return(self, session: Session) -> bool:
        """Whether all that the session has under way may be told again. A QoS 2 message whose packet id is on its way
        to the store may not: nobody knows any more whether it was sent."""
        unstored = unstored_writes(self._state, session)
        sent = QueueState.SENT
        return not (
            any(row.state == sent and row.flags & 3 == 2 for row in unstored.queue_rows)
            or any(mark.state == sent and mark.qos == 2 for mark in unstored.queue_marks)
        )

    def recall(self, session: Session, then: Recalled) -> None:
        """What is in flight, with what was sent and settled since the store has stopped. A commit of which the broker
        has not heard may end at any moment, and what it marks moves from the page to what is in flight: so the page is
        asked for first."""
        changes = _StoredChanges(unstored_writes(self._state, session))
        marked = changes.sent.keys() - {row.seq for row in changes.rows}
        if not marked:
            self._add_in_flight(session, changes, then, [])
            return
        first = min(marked)
        limit = len(marked) + sum(seq > first for seq in changes.done)
        self._requests.page(
            session.generation, first - 1, limit, partial(self._add_in_flight, session, changes, then)
        )

    def _add_in_flight(
        self, session: Session, changes: _StoredChanges, then: Recalled, page: list[QueueRow]
    ) -> None:
        sent = [row for row in (*changes.rows, *page) if row.seq in changes.sent]
        self._requests.in_flight(session.generation, partial(_joined, changes, sent, then))

    def sendable(self, session: Session, rows: list[QueueRow]) -> list[QueueRow]:
        """Those of a page that may be sent now, up to the first that may not. What is over or under way since the
        store has stopped counts as read."""
        changes = _StoredChanges(unstored_writes(self._state, session))
        waiting = sum(len(writes.session.queue_marks) for writes in self._state.tick.unstored())
        found: list[QueueRow] = []
        for row in rows:
            if row.seq in changes.sent or row.seq in changes.done:
                if not found:
                    session.queue_read_seq = row.seq
            elif row.flags & 3 == 2 or waiting + len(found) >= UNSTORED_MAX:
                self._stopped.add(session)
                break
            else:
                found.append(row)
        return found

    def unstored_rows(self, session: Session) -> list[QueueRow]:
        """What is to be read behind all that is stored: queued since the store has stopped, from records that the log
        has."""
        unread = [
            row
            for row in unstored_writes(self._state, session).queue_rows
            if row.state == QueueState.QUEUED and row.seq > session.queue_read_seq
        ]
        return sorted(unread, key=_place)

    def is_stopped(self, session: Session) -> bool:
        """Whether its next stored delivery waits for the store."""
        return session in self._stopped

    def resume(self) -> list[Session]:
        """The store works again: whose pages are to be read."""
        stopped, self._stopped = self._stopped, set()
        return [session for session in stopped if session.backlog and not session.paging and not session.dead]

    def forget(self, session: Session) -> None:
        """Its connection or the session is over."""
        self._stopped.discard(session)


class _StoredChanges:
    """Of deliveries that the store still has as they were, or not yet: `sent` has the packet ids of those that were
    sent, `done` which are over, `rows` are those that the store does not have."""

    def __init__(self, unstored: SessionWrites) -> None:
        self.rows = unstored.queue_rows
        self.done = {seq for _, seq in unstored.queue_dropped}
        sent = {row.seq: row.packet_id for row in self.rows if row.state == QueueState.SENT}
        for mark in unstored.queue_marks:
            if mark.state == QueueState.SENT:
                sent[mark.seq] = mark.packet_id
            elif mark.state == QueueState.DONE:
                self.done.add(mark.seq)
        self.sent = {seq: packet_id for seq, packet_id in sent.items() if seq not in self.done}

    def in_order(self, rows: Iterable[QueueRow]) -> list[QueueRow]:
        """The rows as they will be stored."""
        found = [
            replace(row, state=QueueState.SENT, packet_id=self.sent[row.seq])
            if row.state == QueueState.QUEUED and row.seq in self.sent
            else row
            for row in rows
        ]
        return sorted(found, key=_place)


def _joined(changes: _StoredChanges, sent: list[QueueRow], then: Recalled, in_flight: list[QueueRow]) -> None:
    rows = {row.seq: row for row in (*sent, *in_flight) if row.seq not in changes.done}
    then(changes.in_order(rows.values()))


def _place(row: QueueRow) -> int:
    return row.seq
