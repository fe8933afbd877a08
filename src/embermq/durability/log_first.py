"""The one way by which ticks are made durable on servers: records into the log, then everything else into a store of
state, which is never given up.

The log's receipt is the answer to a tick; one without records is answered when it is handed to the store. What waits
for one owner's data is told when that is stored: owners do not wait for one another. The floor alone is global: it
moves when its tick and all before are stored, and `settle_ms` later, because a store may lose what it has confirmed a
moment ago. What it loses when it dies together with the broker is read from the log again.

Records that the log has taken cannot be taken back: others read them. So only before that is an error an answer.

Past `WAITING_BYTES_MAX` nothing is asked of the store that can be read in the log later: dispatch leaves deliveries
there (`delivery.device.behind`), and of retained messages only the newest of each topic waits here, which is a record
in memory anyway. The floor stays below both.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from embermq.model.session_writes import RetainedWrite
from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError
from embermq.ports.log_appender import LogAppender
from embermq.ports.receipt_log import ReceiptLog
from embermq.ports.state_writer import StateWriter
from embermq.ports.tick_store import EVERYBODY, Logged, Receipt, Stored, TickStore
from embermq.sessions.state import BrokerState

Post = Callable[[Callable[[], None]], object]
"""Runs a callable soon on the broker's thread."""

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""What may wait in memory for the store. Past it, until three quarters of it are left, messages for kept sessions stay
in the log and are stored from there later; new sessions to be kept, and messages for durable queues, are refused."""
PATIENCE_MS = 2_000
"""A tick that waits longer for the log is trouble that is told; a server that is missed for a moment is not."""
UNKNOWN_RECORDS_MAX = 1_000
UNKNOWN_MS_MAX = 1_000
"""The store is told of the log's end at least so often: should the log lose its end, that is noticed, and no position
is used twice."""


NEVER = (1 << 63) - 1


class _Answerable(Struct):
    """A tick between `submit` and its answer."""

    writes: TickWrites
    logged: Logged
    appends_since_ms: int = -1
    """When its records were handed to the log, -1 before."""


class _Unstored(Struct):
    """A tick that is not stored as a whole, with those behind it that had nothing to store."""

    floor: int = -1
    calls: list[Stored] = field(default_factory=list)
    """Of those who wait for everybody."""
    frees_retained: bool = False
    """Whether it has retained messages that had waited."""


class LogFirstStore(TickStore):
    """See the module. `log_end` is the position of the next record. Samples of latency go to `receipts`."""

    def __init__(
        self,
        log: LogAppender,
        writer: StateWriter,
        state: BrokerState,
        post: Post,
        *,
        log_end: int,
        settle_ms: int = 0,
        receipts: ReceiptLog | None = None,
        waiting_bytes_max: int = 0,
    ) -> None:
        self._log = log
        self._writer = writer
        self._state = state
        self._tick = state.tick
        self._limit_bytes = waiting_bytes_max or WAITING_BYTES_MAX
        state.is_store_away = self._is_away
        state.is_queue_away = writer.is_queue_away
        state.is_queue_store_away = self._is_queue_away
        self._post = post
        self._log_end = self._noted_end = log_end
        self._noted_ms = self._tick.now_ms
        self._has_written = False
        """Whether something has got a time since that was noted."""
        self._generations = self._generations_wanted = state.generations_stored
        """Below the first no session is new to the log: what has been read at the start has it."""
        self._settle_ms = settle_ms
        self._receipts = receipts
        self._under_way: _Answerable | None = None
        self._unstored: deque[_Unstored] = deque()
        self._settling: deque[tuple[int, int]] = deque()
        """Due time and floor; 0: the time begins with the next look at the clock, since the store's answer may come
        long after the last one."""
        self._floor = 0
        self._when_quiet: deque[Callable[[], None]] = deque()
        self._retained: dict[str, tuple[int, bytes]] = {}
        """Topic -> position and record of retained messages that wait until less does."""
        self._retained_from = NEVER
        """The first record that any of them has: the floor waits for it."""
        self._freeing: deque[int] = deque()
        """The same of those that are being stored, by the tick with which they are."""
        self._floor_wanted = 0

    @property
    def busy(self) -> bool:
        return self._under_way is not None or bool(self._when_quiet)

    def when_quiet(self, call: Callable[[], None]) -> None:
        """Make this call when nothing is on its way, neither to the log nor to the store: until then no other tick is
        begun, so that all that has happened stands in memory."""
        self._when_quiet.append(call)
        self._post(self._look_at_quiet)

    def _look_at_quiet(self) -> None:
        while self._when_quiet and self._under_way is None and not self._unstored:
            self._when_quiet.popleft()()

    @property
    def waits(self) -> bool:
        return bool(self._unstored)

    @property
    def log_end(self) -> int:
        """The position of the next record."""
        return self._log_end

    @property
    def dispatcher_floor(self) -> int:
        """Every record below it is delivered, stored or owed to nobody, and the next start knows that."""
        return self._writer.floor

    @property
    def failing(self) -> str:
        """Why the tick under way waits for the log, "" when it does not, or not for long."""
        tick = self._under_way
        if tick is None:
            return ""
        if tick.appends_since_ms < 0:
            return self._writer.failing if tick.writes.records else ""
        return self._log.failing if self._tick.now_ms - tick.appends_since_ms >= PATIENCE_MS else ""

    def when_stored(self, generation: int, call: Stored) -> None:
        if generation != EVERYBODY:
            self._writer.when_stored(generation, call)
        elif self._unstored:
            self._unstored[-1].calls.append(call)
        else:
            call()

    def submit(self, writes: TickWrites, logged: Logged) -> None:
        if self._under_way is not None:
            raise RuntimeError("a tick is already being committed")
        tick = self._under_way = _Answerable(writes, logged)
        if writes.generation_reserved > self._generations_wanted:
            self._generations_wanted = writes.generation_reserved
            self._note()
        if not writes.records:
            self._hand_over(tick, Receipt(self._log_end, 0, whole=False))
        elif self._state.generation_next <= self._generations:
            self._append(tick)
        # else a record could carry a generation that is given again after a crash: it waits for `_noted`

    def _append(self, tick: _Answerable) -> None:
        tick.appends_since_ms = self._tick.now_ms
        self._log.append(tick.writes.records, partial(self._appended, tick))

    def _appended(self, tick: _Answerable, result: Receipt | StoreError) -> None:
        if isinstance(result, StoreError):
            self._answer(tick, result)
            return
        self._log_end = result.base_offset + result.record_count
        self._write(tick.writes, result.base_offset)
        self._look_at_end()
        self._answer(tick, Receipt(result.base_offset, result.record_count, whole=False))

    def _hand_over(self, tick: _Answerable, receipt: Receipt) -> None:
        """A tick without records: the log has nothing to do with it."""
        self._write(tick.writes, receipt.base_offset)
        self._post(partial(self._answer, tick, receipt))

    def _answer(self, tick: _Answerable, result: Receipt | StoreError) -> None:
        self._under_way = None
        tick.logged(result)
        if self._when_quiet:
            self._post(self._look_at_quiet)  # behind those who are told now

    # The state

    def _write(self, writes: TickWrites, base: int) -> None:
        if self._receipts is not None and writes.receipts:
            self._receipts.take(writes.receipts)
        frees_retained = False
        if self._state.session_store_full or self._retained:
            writes = self._without_retained(writes, base)
            frees_retained = not self._state.session_store_full and bool(self._retained)
            if frees_retained:
                writes = self._with_retained(writes, base)
        if not writes.is_state_empty():
            unstored = _Unstored(writes.dispatcher_floor, frees_retained=frees_retained)
            self._unstored.append(unstored)
            self._has_written = True
            self._writer.submit(writes, base, self._log_end, self._stored)
            self._look_at_limit()
        elif self._unstored:
            last = self._unstored[-1]
            last.floor = max(last.floor, writes.dispatcher_floor)
        else:
            self._let_go(writes.dispatcher_floor)

    def _stored(self) -> None:
        """The first tick, and all before, is stored."""
        first = self._unstored.popleft()
        if first.frees_retained:
            self._freeing.popleft()
            self._let_go(self._floor_wanted)
        self._let_go(first.floor)
        for call in first.calls:
            call()
        self._look_at_limit()
        if self._when_quiet:
            self._post(self._look_at_quiet)  # behind those who are told now

    def _without_retained(self, writes: TickWrites, base: int) -> TickWrites:
        """The same, but that of each topic the newest is kept here."""
        held, session = self._retained, writes.session
        for write in session.retained:
            offset = base + write.record_index
            self._retained_from = min(self._retained_from, offset)
            held[write.topic] = (offset, write.record)
        expired: list[tuple[str, int]] = []
        for topic, offset in session.retained_expired:
            if topic not in held:
                expired.append((topic, offset))
            elif held[topic][0] == offset:
                held[topic] = (offset, b"")
        return replace(writes, session=replace(session, retained=[], retained_expired=expired))

    def _with_retained(self, writes: TickWrites, base: int) -> TickWrites:
        """The same, with all that was kept here."""
        kept = [RetainedWrite(topic, at - base, record) for topic, (at, record) in self._retained.items()]
        self._retained.clear()
        self._freeing.append(self._retained_from)
        self._retained_from = NEVER
        return replace(writes, session=replace(writes.session, retained=kept))

    def _let_go(self, floor: int) -> None:
        if floor >= 0:
            self._floor_wanted = max(self._floor_wanted, floor)
            self._settling.append((0, min(floor, self._retained_from, *self._freeing)))
            if not self._settle_ms:
                self._ripen()

    def _ripen(self) -> None:
        """The clock has just been looked at."""
        settling, now_ms = self._settling, self._tick.now_ms
        for index in reversed(range(len(settling))):
            due_ms, floor = settling[index]
            if due_ms:
                break
            settling[index] = (now_ms + self._settle_ms, floor)
        while settling and (settling[0][0] <= now_ms or not self._settle_ms):
            self._floor = max(self._floor, settling.popleft()[1])
        if self._writer.floor < self._floor:
            self._writer.forget_below(self._floor)

    def _is_away(self, client_id: str) -> bool:
        """One server of several may be away; what waits for it may be all that there is room for."""
        return self._is_far_too_full() or self._writer.is_away(client_id)

    def _is_queue_away(self, name: str) -> bool:
        return self._is_far_too_full() or self._writer.is_queue_away(name)

    def _is_far_too_full(self) -> bool:
        return self._writer.waiting_bytes > 2 * self._limit_bytes

    def _look_at_limit(self) -> None:
        state, waiting_bytes = self._state, self._writer.waiting_bytes
        if state.session_store_full:
            state.session_store_full = waiting_bytes > self._limit_bytes * 3 // 4
        else:
            state.session_store_full = waiting_bytes > self._limit_bytes

    # What the next start knows of the log

    def _look_at_end(self) -> None:
        unknown = self._log_end - self._noted_end
        is_late = self._tick.now_ms - self._noted_ms >= UNKNOWN_MS_MAX
        is_much = unknown >= UNKNOWN_RECORDS_MAX or (unknown > 0 and not self._noted_end)
        if is_much or (is_late and (unknown > 0 or self._has_written)):
            self._note()

    def _note(self) -> None:
        self._noted_end, self._noted_ms, self._has_written = self._log_end, self._tick.now_ms, False
        generations = self._generations_wanted
        self._writer.note_log(self._log_end, generations, self._noted_ms, partial(self._noted, generations))

    def _noted(self, generations: int) -> None:
        self._generations = max(self._generations, generations)
        tick = self._under_way
        waits = tick is not None and tick.writes.records and tick.appends_since_ms < 0
        if tick is not None and waits and self._state.generation_next <= self._generations:
            self._append(tick)

    def settle(self) -> None:
        self._writer.look()
        self._ripen()
        self._look_at_end()
        self._look_at_limit()
        if self._retained and not self._state.session_store_full:
            self._write(TickWrites(), self._log_end)

    def hurry(self) -> None:
        self._settle_ms = 0
        self._ripen()

    def finish(self) -> None:
        """The last tick is over: tell the next start. Whoever closes the store waits until it has this."""
        lost_end = self._log.goes_on_at
        is_busy = self._under_way is not None
        self._writer.note_end(max(self._log_end, lost_end), in_order=not (is_busy or lost_end))

    def close(self) -> None:
        self._log.close()
        if self._receipts is not None:
            self._receipts.close()
        self._writer.close()
