"""Kept sessions, and shared subscriptions, to which nothing more is dispatched because too much waits for the store.

What they are owed from then on is in the message log, which the dispatcher's floor holds; it is read from there when
the store answers again, in order, and what is accepted meanwhile comes behind it. The newest records are remembered, so
that the reader, which cannot be quicker than the log, need not catch up with it to the last record.

Whoever needs no store is not concerned: a client that acknowledges QoS 1 messages as they come is served on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from embermq.durability.recovery import Redispatch
from embermq.formats.log_record import is_addressed, split_batch
from embermq.model.message import Message
from embermq.ports.message_log import LogBatch
from embermq.routing.router import GroupTurn, MatchedGroup, Receiver
from embermq.routing.shared_choice import keeps
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted

if TYPE_CHECKING:
    from embermq.delivery.device.path import DevicePath

STEP_ROWS = 1_000
"""Deliveries made in one step: while it goes on nobody is served."""
STEP_RECORDS = 500
"""And records looked at."""
STEP_MS = 1_000
"""The next step does not wait longer than this for the store to have the one before: a part of it may be away."""
RECENT_RECORDS = 10_000
RECENT_BYTES = 4 * 1024 * 1024
"""Of the newest records that somebody behind may be owed, so much is remembered."""

Found = Callable[[list[LogBatch] | None], None]
ReadLog = Callable[[int, Found], None]
"""Reads the log from a position on, on another thread, and calls back on the broker's own: with None when it cannot."""
Frame = tuple[int, Message | None, bytes]
"""A record at its position; its message is decoded when it is needed."""


class _Lag(Struct):
    """A session that is owed every record from `at` on."""

    client_id: str
    at: int


class Behind(Redispatch):
    """See the module. True while somebody is behind."""

    def __init__(self, state: BrokerState, path: DevicePath) -> None:
        super().__init__(state)
        self._path = path
        self.read_log: ReadLog | None = None
        """None where nothing is ever behind: with sessions beside the log."""
        self._lags: dict[int, _Lag] = {}
        """By generation."""
        self._turns: list[GroupTurn] = []
        self.floor = 0
        """The first record that is owed to somebody here."""
        self._recent: deque[Frame] = deque()
        self._recent_from = 0
        """Every record from here on that may be owed is among the recent ones."""
        self._recent_bytes = 0
        self._ahead: deque[Frame] = deque()
        """Read, and not dispatched yet."""
        self._at = self._ahead_end = 0
        """Where the first and the last of it begin and end."""
        self._busy_until_ms = 0
        self._is_reading = False
        self._step = 0
        """Where the present step begins."""
        self._touched: set[int] = set()

    def __len__(self) -> int:
        """Sessions and shared subscriptions that are."""
        return len(self._lags) + len(self._turns)

    # Who is behind

    def takes(self, session: Session, delivery: Delivery) -> bool:
        """Whether it stays in the log: a delivery that would have to be stored. One without a position cannot; what
        comes by a shared subscription has been asked about before a member was chosen."""
        if delivery.offset < 0 or delivery.shared:
            return False
        generation = session.generation
        if generation not in self._lags:
            if not self._state.must_wait(session.client_id):
                return False
            self._begin(delivery.offset)
            self._lags[generation] = _Lag(session.client_id, delivery.offset)
        self._remember(delivery.offset, delivery.message, delivery.record)
        return True

    def begins(self, session: Session) -> bool:
        """The session is there, and what it has not acknowledged has to be stored: whether what comes from now on stays
        in the log."""
        if session.generation in self._lags or not self._state.must_wait(session.client_id):
            return False
        self._begin(self._state.log_end)
        self._lags[session.generation] = _Lag(session.client_id, self._state.log_end)
        return True

    def takes_group(self, group: MatchedGroup, accepted: Accepted) -> bool:
        """Whether it stays in the log: a message for a member who must wait, or for the group's queue when that must.
        The others wait with it, and are read into that queue."""
        turn, state = group.turn, self._state
        if turn.behind_from < 0:
            if not state.session_store_full:
                return False
            if not self._must_wait(group, accepted.message.topic):
                return False
            self._begin(accepted.offset)
            turn.behind_from = accepted.offset
            self._turns.append(turn)
        self._remember(accepted.offset, accepted.message, accepted.record)
        return True

    def _must_wait(self, group: MatchedGroup, topic: str) -> bool:
        """For the member that is there and has room, or where none is, for the queue of the group."""
        state = self._state
        chosen = state.groups.with_room(group, topic)
        if chosen is None:
            return state.groups.would_keep(group) and state.must_wait(group.turn.name)
        if not keeps(chosen):
            return False
        return self.holds(chosen.session) or state.must_wait(chosen.session.client_id)

    def holds(self, session: Session) -> bool:
        """Whether something in the log is owed to the session."""
        return session.generation in self._lags

    def forget(self, session: Session) -> None:
        """The session has ended."""
        if self._lags.pop(session.generation, None) is not None:
            self._look_at_floor()

    def _begin(self, offset: int) -> None:
        """Somebody is behind from here on. What others are owed begins earlier."""
        if not self:
            self.floor = self._recent_from = offset

    def _remember(self, offset: int, message: Message, record: bytes) -> None:
        recent = self._recent
        if recent and recent[-1][0] >= offset:
            return
        recent.append((offset, message, record))
        self._recent_bytes += len(record)
        while len(recent) > RECENT_RECORDS or self._recent_bytes > RECENT_BYTES:
            first, _, its_record = recent.popleft()
            self._recent_from = first + 1
            self._recent_bytes -= len(its_record)

    def _look_at_floor(self) -> None:
        if self:
            self.floor = min(
                min((lag.at for lag in self._lags.values()), default=self._state.log_end),
                min((turn.behind_from for turn in self._turns), default=self._state.log_end),
            )
        else:
            self._recent.clear()
            self._ahead.clear()
            self._recent_bytes = 0
            self._path.nobody_is_behind()

    # Reading on

    def read_on(self) -> None:
        """Take the next step for those whom the store answers again. To be called now and then."""
        while self and self.read_log is not None and not self._is_busy:
            start = self._start()
            if start is None:
                return
            if start >= self._recent_from:
                self._ahead.clear()
                recent = [frame for frame in self._recent if frame[0] >= start]
                self._take(start, recent, self._state.log_end)
            elif self._ahead and start == self._at:
                self._take(start, self._taken_ahead(), self._ahead_end)
            else:
                self._is_reading = True
                self.read_log(start, partial(self._found, start, self._state.log_end))

    @property
    def _is_busy(self) -> bool:
        return self._is_reading or self._state.tick.now_ms < self._busy_until_ms

    def _start(self) -> int | None:
        """The first record that can be handed on now; None when nobody can have any."""
        must_wait = self._state.must_wait
        starts = [lag.at for lag in self._lags.values() if not must_wait(lag.client_id)]
        if not self._state.session_store_full:
            starts += [turn.behind_from for turn in self._turns]
        return min(starts, default=None)

    def _found(self, start: int, end: int, batches: list[LogBatch] | None) -> None:
        """The log has answered; `end` is where it ended when it was asked."""
        self._state.tick.wake()
        self._is_reading = False
        if batches is None:
            return
        self._ahead.clear()
        self._at, self._ahead_end = start, end
        for batch in batches:
            self._ahead_end = min(end, batch.base_offset + batch.record_count)
            for offset, frame in enumerate(split_batch(batch.body, batch.record_count), batch.base_offset):
                if start <= offset < end:
                    self._ahead.append((offset, None, frame))
        if not self._ahead:  # nothing there can be read: it is passed over
            self._take(start, (), self._ahead_end)
        self.read_on()

    def _decoded(self, offset: int, frame: bytes) -> Message | None:
        """None for what nobody is owed by its topic."""
        record = self._state.damaged.decode(frame, f"offset {offset} of the message log")
        return record.message if record is not None and not is_addressed(record) else None

    def _taken_ahead(self) -> Iterator[Frame]:
        while self._ahead:
            yield self._ahead.popleft()

    def _take(self, start: int, frames: Iterable[Frame], end: int) -> None:
        """Hand on records from `start` on, to those for whom there are none before; `end` is behind the last one."""
        self._step = start
        self._touched = set()
        stored = 0
        at = end
        for looked, (offset, known, frame) in enumerate(frames, 1):
            message = known or self._decoded(offset, frame)
            if message is not None:
                stored += self.dispatch(offset, message, frame)
            if stored >= STEP_ROWS or looked >= STEP_RECORDS:
                at = offset + 1
                break
        self._at = at
        self._pass(start, at)
        if self._touched:
            self._busy_until_ms = self._state.tick.now_ms + STEP_MS
            self._state.tick.batch.when_all_stored(self._touched, self._stored)

    def _stored(self) -> None:
        self._busy_until_ms = 0
        self.read_on()

    def _pass(self, start: int, at: int) -> None:
        """Everything from `start` to `at` has been handed on; when that is all there is, they are behind no more. Whose
        turn is earlier may be asked again only since."""
        is_all = at >= self._state.log_end
        for generation, lag in tuple(self._lags.items()):
            if lag.at < start or self._state.must_wait(lag.client_id):
                continue
            lag.at = max(lag.at, at)
            if is_all:
                del self._lags[generation]
                session = self._state.sessions.get_loaded(lag.client_id)
                if session is not None and session.generation == generation:
                    self._path.caught_up(session)
        if not self._state.session_store_full:
            for turn in self._turns:
                if turn.behind_from >= start:
                    turn.behind_from = -1 if is_all else max(turn.behind_from, at)
            self._turns = [turn for turn in self._turns if turn.behind_from >= 0]
        self._look_at_floor()

    # What `dispatch` asks

    def _is_owed(self, receiver: Receiver, offset: int) -> bool:
        lag = self._lags.get(receiver.session.generation)
        return lag is not None and self._step <= lag.at <= offset and not self._state.must_wait(lag.client_id)

    def _is_owed_to_group(
        self, group: MatchedGroup, _keepers: list[Receiver], offset: int, _qos: int
    ) -> bool:
        return self._step <= group.turn.behind_from <= offset and not self._state.session_store_full

    def _store(self, receiver: Receiver, accepted: Accepted) -> None:
        self._touched.add(receiver.session.generation)
        self._path.deliver_late(receiver, accepted)
