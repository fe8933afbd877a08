"""All sessions by client id: loaded ones, and those of absent clients as small as they can be kept.

A session is loaded when it is needed: its client connects, a message matches its subscriptions, an operator asks for
it, its end is near. Once its client is away and nothing is owed it is put away again, unless somebody still holds it: a
tick that is being committed, a remembered match, a question to the store. So there is one `Session` of a session at any
time, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import chain, islice
from sys import getrefcount
from typing import TYPE_CHECKING

from embermq.sessions.absent_session import AbsentSession, is_idle, put_away, take_out

if TYPE_CHECKING:
    from embermq.access.authorization.rule_set import Permissions
    from embermq.access.authorization.rules import Principal
    from embermq.sessions.session import Session
    from embermq.sessions.tick import Tick
    from embermq.sessions.timers import Timer, Timers

MINUTE_MS = 60_000
"""Absent sessions are loaded up to this long before their end."""
IDLE_MS = 1_000
"""Idle sessions are looked at this much later."""
HELD_MS = 5_000
"""And those that somebody held then, once more: remembered matches hold tens of thousands as long as they are
remembered."""
STEP = 1_000
STEP_MS = 1
"""So many sessions are looked at in one tick; the next come this much later."""
NOTED_SPARED = 1_000


def _counted() -> int:
    alone = object()
    return getrefcount(alone)


HELD_BY_ONE = _counted()
"""What is counted of an object that one name of one function holds."""


class SessionTable:
    """`permissions` tells what a client may do. Not thread-safe."""

    def __init__(
        self, tick: Tick, timers: Timers, permissions: Callable[[Principal], Permissions | None]
    ) -> None:
        self._tick = tick
        self._timers = timers
        self._permissions = permissions
        self._loaded: dict[str, Session] = {}
        self._absent: dict[str, AbsentSession] = {}
        self._idle: dict[str, None] = {}
        """Client ids of loaded sessions that may be put away, oldest first."""
        self._held: dict[str, None] = {}
        """Likewise, of those that somebody held when they were looked at."""
        self._next_look: Timer | None = None
        self._next_round: Timer | None = None
        self._ends: dict[int, list[str]] = {}
        """Client ids of absent sessions by the minute in which they end. Who has come back may still stand here."""
        self._noted = 0
        """How many stand there."""
        self.on_load: Callable[[Session], None] = _nothing
        """Told of a session that is loaded: its end is to be watched."""

    def __len__(self) -> int:
        return len(self._loaded) + len(self._absent)

    def __iter__(self) -> Iterator[str]:
        return chain(self._loaded, self._absent)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._loaded or client_id in self._absent

    def __getitem__(self, client_id: str) -> Session:
        session = self.get(client_id)
        if session is None:
            raise KeyError(client_id)
        return session

    def get(self, client_id: str) -> Session | None:
        """The session of a client, loaded; None when it has none."""
        session = self._loaded.get(client_id)
        if session is None and client_id in self._absent:
            return self.load(self._absent[client_id])
        return session

    def get_loaded(self, client_id: str) -> Session | None:
        """The same, where it is loaded."""
        return self._loaded.get(client_id)

    def get_absent(self, client_id: str) -> AbsentSession | None:
        """What stands for it, where it is put away."""
        return self._absent.get(client_id)

    @property
    def loaded(self) -> Collection[Session]:
        """Those that are. All others are of absent DEVICE clients to whom nothing is owed."""
        return self._loaded.values()

    @property
    def absent(self) -> Collection[AbsentSession]:
        """All others, in the short form that they are kept in."""
        return self._absent.values()

    def of(self, generations: Collection[int]) -> list[Session]:
        """Those with these generations, loaded. Looks at all sessions."""
        if not generations:
            return []
        absent = [one for one in self._absent.values() if one.generation in generations]
        found = [session for session in self._loaded.values() if session.generation in generations]
        return found + [self.load(one) for one in absent]

    def add(self, session: Session) -> None:
        """A new session, in place of the one that its client had."""
        self._loaded[session.client_id] = session

    def remove(self, session: Session) -> None:
        """It has ended; nothing happens when its client has another one already."""
        self._timers.cancel(session.timer)
        if self._loaded.get(session.client_id) is session:
            del self._loaded[session.client_id]

    # Loading and putting away

    def session_of(self, holder: Session | AbsentSession) -> Session:
        """Of a subscription, loaded."""
        return self.load(holder) if isinstance(holder, AbsentSession) else holder

    def load(self, absent: AbsentSession) -> Session:
        """The session for which it stands."""
        client_id = absent.client_id
        del self._absent[client_id]
        session = self._loaded[client_id] = take_out(absent)
        session.permissions = self._permissions(session.principal)
        self.stay(client_id)
        return session

    def stay(self, client_id: str) -> None:
        """Have the end of a loaded session watched, until it is put away."""
        session = self._loaded[client_id]
        self.on_load(session)
        self.rest(session)

    def rest(self, session: Session) -> None:
        """Put it away as soon as nobody holds it and nothing is owed; call this when its client has gone."""
        self._idle[session.client_id] = None
        if self._next_look is None:
            self._next_look = self._timers.at(self._tick.now_ms + IDLE_MS, self._look)

    def put_away(self, client_id: str) -> bool:
        """Keep only what stands for an idle session. False when somebody holds it: the caller may not."""
        session = self._loaded.pop(client_id)
        absent = self._absent[client_id] = put_away(session)
        if getrefcount(session) > HELD_BY_ONE:
            # Else it would be there twice once it is loaded: what one has been told the other would not know.
            del self._absent[client_id]
            self._loaded[client_id] = session
            for subscriber in absent.subscriptions:
                subscriber.holder = session
            return False
        self._timers.cancel(session.timer)
        if absent.expires_ms:
            self._note_end(client_id, absent.expires_ms // MINUTE_MS)
        return True

    def _look(self) -> None:
        """At some idle sessions."""
        for client_id in list(islice(self._idle, STEP)):
            del self._idle[client_id]
            if not self._may_go(client_id):
                continue  # it rests again when its client goes
            if self._loaded[client_id].uncommitted or not self.put_away(client_id):
                self._held[client_id] = None
        now_ms = self._tick.now_ms
        self._next_look = self._timers.at(now_ms + STEP_MS, self._look) if self._idle else None
        if self._held and self._next_round is None:
            self._next_round = self._timers.at(now_ms + HELD_MS, self._look_again)

    def _look_again(self) -> None:
        """At those that somebody held."""
        self._next_round = None
        self._idle.update(self._held)
        self._held.clear()
        if self._next_look is None:
            self._look()

    def _may_go(self, client_id: str) -> bool:
        session = self._loaded.get(client_id)
        if session is None or not is_idle(session):
            return False
        return not session.expires_ms or session.expires_ms >= self._tick.now_ms + 2 * MINUTE_MS

    # The end

    def _note_end(self, client_id: str, minute: int) -> None:
        names = self._ends.get(minute)
        if names is None:
            names = self._ends[minute] = []
            self._timers.at(minute * MINUTE_MS, partial(self._load_ending, minute))
        names.append(client_id)
        self._noted += 1
        if self._noted > 2 * len(self._absent) + NOTED_SPARED:
            self._forget_returned()

    def _load_ending(self, minute: int) -> None:
        """The minute in which they end begins: some of them, then the others."""
        names = self._ends[minute]
        for client_id in names[-STEP:]:
            if self._ends_in(client_id, minute):
                self.load(self._absent[client_id])
        self._noted -= len(names[-STEP:])
        del names[-STEP:]
        if names:
            self._timers.at(self._tick.now_ms + STEP_MS, partial(self._load_ending, minute))
        else:
            del self._ends[minute]

    def _ends_in(self, client_id: str, minute: int) -> bool:
        absent = self._absent.get(client_id)
        return absent is not None and absent.expires_ms // MINUTE_MS == minute

    def _forget_returned(self) -> None:
        """Note each absent session once."""
        self._noted = 0
        for minute, names in self._ends.items():
            names[:] = dict.fromkeys(name for name in names if self._ends_in(name, minute))
            self._noted += len(names)


def _nothing(_session: Session) -> None:
    return
