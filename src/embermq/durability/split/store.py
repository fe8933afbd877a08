"""Ticks on two stores: the message log first, then the session data, in the order of the ticks.

The log's answer is the receipt; the session data of several ticks may wait while the log goes on. What waits for the
data of one session is told when that is stored: sessions do not wait for one another. Three things reach
the log only when the session data of their tick, and of all before, is stored: the dispatcher's floor, because the log
has to say again what the session store has not heard; the cursors that come with it; and the end of an application's
log, which its session outlives otherwise.

A session store may lose what it has confirmed a moment ago. So these three stay behind by `settle_ms` as well: what it
loses when it dies together with the broker is read from the log again.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from msgspec import Struct, field

from embermq.durability.settings import SessionStoreSettings
from embermq.model.session_cursor import SessionCursor
from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError
from embermq.ports.state_writer import StateWriter
from embermq.ports.tick_store import Logged, Receipt, Stored, TickStore
from embermq.sessions.state import BrokerState

Post = Callable[[Callable[[], None]], object]
"""Runs a callable soon on the broker's thread."""


class _Waiting(Struct):
    """A tick whose session data is not known to be durable, with those behind it that have none."""

    floor: int = -1
    cursors: dict[int, SessionCursor | None] = field(default_factory=dict)
    ended_applications: list[int] = field(default_factory=list)
    calls: list[Stored] = field(default_factory=list)
    """Of those who wait for all sessions."""
    is_stored: bool = False

    def add(self, writes: TickWrites) -> None:
        """What this tick wants of the log takes the same turn."""
        self.floor = max(self.floor, writes.dispatcher_floor)
        self.cursors |= writes.cursors
        self.ended_applications += writes.ended_applications


class _Settling(Struct):
    """What the log is told when its time has come; 0: it begins with the next look at the clock, since the session
    store's answer may come long after the last one."""

    due_ms: int
    floor: int
    cursors: dict[int, SessionCursor | None]
    ended_applications: list[int]


class SplitStore(TickStore):
    """See the module. `log` is handed ticks without session data."""

    def __init__(
        self,
        log: TickStore,
        writer: StateWriter,
        state: BrokerState,
        settings: SessionStoreSettings,
        post: Post,
        *,
        settle_ms: int = 0,
    ) -> None:
        self._log = log
        self._writer = writer
        self._state = state
        self._limit_bytes = settings.waiting_bytes_max
        self._post = post
        self._answering = False
        self._waiting: deque[_Waiting] = deque()
        self._floor_due = -1
        self._cursors_due: dict[int, SessionCursor | None] = {}
        self._ended_due: list[int] = []
        self._settle_ms = settle_ms
        self._settling: deque[_Settling] = deque()

    @property
    def busy(self) -> bool:
        return self._answering or self._log.busy

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    @property
    def owes(self) -> bool:
        return self._floor_due >= 0 or bool(self._cursors_due) or bool(self._ended_due)

    def when_stored(self, generation: int, call: Stored) -> None:
        if generation:
            self._writer.when_stored(generation, call)
        elif self._waiting:
            self._waiting[-1].calls.append(call)
        else:
            call()

    def submit(self, writes: TickWrites, logged: Logged) -> None:
        if self.busy:
            raise RuntimeError("a tick is already being committed")
        self._ripen()
        ended, self._ended_due = self._ended_due, []
        floor, self._floor_due = self._floor_due, -1
        cursors, self._cursors_due = self._cursors_due, {}
        log_part = TickWrites(
            records=writes.records,
            application_marks=writes.application_marks,
            restarted_applications=writes.restarted_applications,
            application_positions=writes.application_positions,
            application_synced=writes.application_synced,
            parked=writes.parked,
            ended_applications=ended,
            shared=writes.shared,
            queues=writes.queues,
            receipts=writes.receipts,
            cursors=cursors,
            dispatcher_floor=floor,
            generation_reserved=writes.generation_reserved,
        )
        if log_part.is_empty():
            self._answering = True
            self._post(partial(self._answer, writes, logged))
        else:
            self._log.submit(log_part, partial(self._logged, log_part, writes, logged))

    def _answer(self, writes: TickWrites, logged: Logged) -> None:
        """The log has nothing to do with this tick."""
        self._answering = False
        self._go_on(writes, Receipt(self._state.log_end, 0), logged)

    def _logged(
        self, log_part: TickWrites, writes: TickWrites, logged: Logged, result: Receipt | StoreError
    ) -> None:
        if not isinstance(result, Receipt):
            self._floor_due = max(self._floor_due, log_part.dispatcher_floor)
            self._cursors_due = log_part.cursors | self._cursors_due
            self._ended_due[:0] = log_part.ended_applications
            logged(result)
            return
        if log_part.dispatcher_floor >= 0:
            self._writer.forget_below(log_part.dispatcher_floor)
        self._go_on(writes, result, logged)

    def _go_on(self, writes: TickWrites, receipt: Receipt, logged: Logged) -> None:
        session, waiting = writes.session, self._waiting
        if not session.is_empty():
            waiting.append(_Waiting())
            waiting[-1].add(writes)
            log_end = receipt.base_offset + receipt.record_count
            state_part = TickWrites(records=writes.records, session=session)
            self._writer.submit(state_part, receipt.base_offset, log_end, partial(self._stored, waiting[-1]))
            self._look_at_limit()
        elif waiting:
            waiting[-1].add(writes)
        else:
            alone = _Waiting()
            alone.add(writes)
            self._let_go(alone)
            logged(receipt)
            return
        logged(Receipt(receipt.base_offset, receipt.record_count, whole=False))

    def _stored(self, stored: _Waiting) -> None:
        """The session store has answered."""
        stored.is_stored = True
        waiting = self._waiting
        while waiting and waiting[0].is_stored:
            first = waiting.popleft()
            self._let_go(first)
            for call in first.calls:
                call()
        self._look_at_limit()

    def _let_go(self, tick: _Waiting) -> None:
        if tick.floor >= 0 or tick.cursors or tick.ended_applications:
            self._settling.append(_Settling(0, tick.floor, tick.cursors, tick.ended_applications))
            if not self._settle_ms:
                self._ripen()

    def _ripen(self) -> None:
        """The clock has just been looked at."""
        settling, now_ms = self._settling, self._state.tick.now_ms
        for entry in reversed(settling):
            if entry.due_ms:
                break
            entry.due_ms = now_ms + self._settle_ms
        while settling and (settling[0].due_ms <= now_ms or not self._settle_ms):
            ripe = settling.popleft()
            self._floor_due = max(self._floor_due, ripe.floor)
            self._cursors_due |= ripe.cursors
            self._ended_due += ripe.ended_applications

    def _look_at_limit(self) -> None:
        state, waiting_bytes = self._state, self._writer.waiting_bytes
        if state.session_store_full:
            state.session_store_full = waiting_bytes > self._limit_bytes * 3 // 4
        else:
            state.session_store_full = waiting_bytes > self._limit_bytes

    def settle(self) -> None:
        self._log.settle()
        self._ripen()
        self._look_at_limit()

    def hurry(self) -> None:
        self._settle_ms = 0
        self._ripen()

    def close(self) -> None:
        self._log.close()
        self._writer.close()
