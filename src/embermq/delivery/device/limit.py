"""The limit of a session's stored queue: past it the oldest go first, but never one that is in flight."""

from functools import partial

from embermq.delivery.device.requests import Requests
from embermq.delivery.device.settings import DeviceSettings
from embermq.sessions.link import Link
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState

OLDEST_ROWS = 64
"""Stored deliveries looked at together when there are too many bytes of them."""


class QueueLimit:
    """Looks at sessions whose rows have become durable.

    The store is asked which are the oldest, and may answer later. What it names has to be queued still: it is what the
    present connection has not read, or there has been none since. While one is about to be made nothing is dropped, for
    what is sent on it is being read.
    """

    def __init__(self, state: BrokerState, requests: Requests, settings: DeviceSettings) -> None:
        self._state = state
        self._requests = requests
        self._settings = settings
        self._over: set[Session] = set()
        self._asked: dict[Session, bool] = {}
        """Whose oldest rows the store is looking for, and whether more have become durable since it was asked."""

    def note(self, session: Session) -> None:
        """A row was added."""
        if self._excess(session):
            self._over.add(session)

    def forget(self, session: Session) -> None:
        """The session has ended."""
        self._over.discard(session)
        self._asked.pop(session, None)

    def enforce(self, session: Session) -> None:
        """Nothing of the session is in the way: rows are durable, or its client has been let in."""
        if session in self._asked:
            self._asked[session] = True
        elif session in self._over and session.claimant is None:
            self._over.discard(session)
            self._look(session, self._excess(session))

    def _excess(self, session: Session) -> int:
        """How many of the oldest to look at for dropping; 0 within the limits."""
        excess = session.queued - self._settings.queue_limit
        if session.queued_bytes > self._settings.queue_bytes_max:
            return max(excess, OLDEST_ROWS)
        return max(excess, 0)

    def _look(self, session: Session, limit: int) -> None:
        if limit and not session.dead:
            after_seq = _queued_after(session)
            drop = partial(self._drop, session, session.link, session.epoch, limit)
            self._asked[session] = False
            self._requests.oldest(session.generation, after_seq, limit, drop)

    def _drop(
        self, session: Session, link: Link | None, epoch: int, limit: int, oldest: list[tuple[int, int]]
    ) -> None:
        if session.dead:
            return
        more = self._asked.pop(session, False)
        if session.link is not link or session.epoch != epoch:  # what was queued may be in flight now
            self._over.add(session)
            self.enforce(session)
            return
        dropped = list[int]()
        for seq, record_bytes in oldest:
            if not self._excess(session):
                break
            if _is_spoken_for(session, seq):
                continue  # it has been read, or dropped, while the store was asked
            self._state.tick.session_writes.queue_dropped.append((session.generation, seq))
            dropped.append(seq)
            session.forget_stored(record_bytes)
            if session.group is not None:
                session.group.leaving.add(seq)
            else:
                session.queue_dropped_seq = seq
            if link is not None or session.group is not None:
                session.queue_read_seq = max(session.queue_read_seq, seq)
        if dropped:
            self._state.tick.batch.when_stored(session.generation, partial(self._count, session, dropped))
        if not self._excess(session):
            return
        # All that the store has of a group may be on its way to members.
        is_stuck = session.group is not None and not dropped and len(oldest) < limit
        if oldest and not is_stuck:
            self._look(session, 2 * limit)
        elif more:
            self._look(session, limit)
        else:
            self._over.add(session)  # they are not durable yet

    def _count(self, session: Session, dropped: list[int]) -> None:
        """They are gone from the store: until then a crash brings them back, and they are delivered."""
        if session.group is not None:
            session.group.leaving.difference_update(dropped)
        self._state.counters.dropped_offline_limit += len(dropped)


def _is_spoken_for(session: Session, seq: int) -> bool:
    """Whether it is on its way to somebody, or is being dropped."""
    if session.group is not None:
        return seq in session.group.leaving
    return seq <= _queued_after(session)


def _queued_after(session: Session) -> int:
    """Behind it the store's queued rows are nobody's yet. In the queue of a group that is so for each by itself: what
    has been read there may have been passed over."""
    if session.group is not None:
        return 0
    if session.link is None:
        return session.queue_dropped_seq
    return max(session.queue_read_seq, session.queue_dropped_seq)
