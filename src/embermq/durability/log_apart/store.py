"""The durable step of a tick: its records into the log, then everything else into the store beside it.

Records that the log has taken cannot be taken back: others read them. So when the rest cannot be stored then, the tick
is not refused; it waits and is tried again until it can, as it waits while the log is away. Only before the first
record is handed over, or without records, is an error an answer.
"""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError
from embermq.ports.log_appender import LogAppender
from embermq.ports.log_state import LogState
from embermq.ports.receipt_log import ReceiptLog
from embermq.ports.tick_store import Logged, Receipt, TickStore
from embermq.sessions.tick import Tick

RETRY_MS = 500
PATIENCE_MS = 2_000
"""A tick that waits longer for the log is trouble that is told; a server that is missed for a moment is not."""
UNKNOWN_RECORDS_MAX = 1_000
UNKNOWN_MS_MAX = 1_000
"""The store beside the log is told of its end at least so often: should the log lose its end, that is noticed, and no
position is used twice."""


class _UnderWay(Struct):
    """A tick between submit and answer; `count` records of it are in the log."""

    writes: TickWrites
    logged: Logged
    base: int
    count: int = 0
    appends_since_ms: int = -1
    """When its records were handed to the log, -1 while they are not there or are known to be stored."""
    retry_at_ms: int = 0
    """When the rest is tried again, 0 while it does not wait."""


class LogThenState(TickStore):
    """See the module. `log_end` is the position of the next record, `dispatcher_floor` what `state` has. `tick` tells
    the time. Samples of latency go to `receipts`, or with the rest."""

    def __init__(
        self,
        log: LogAppender,
        state: LogState,
        log_end: int,
        tick: Tick,
        *,
        dispatcher_floor: int = 0,
        receipts: ReceiptLog | None = None,
    ) -> None:
        self._log = log
        self._receipts = receipts
        self._state = state
        self._log_end = log_end
        self._tick = tick
        self.dispatcher_floor = dispatcher_floor
        """Every record below it is delivered, stored or owed to nobody, and that is stored."""
        self._under_way: _UnderWay | None = None
        self._trouble = ""
        self._told_ms = tick.now_ms
        self.on_waiting: Callable[[str], None] = lambda _text: None
        """Called once when the rest of a tick cannot be stored, and with "" when it is."""

    @property
    def busy(self) -> bool:
        return self._under_way is not None

    @property
    def log_end(self) -> int:
        """The position of the next record."""
        return self._log_end

    def begin_at(self, position: int) -> None:
        """Where the first record goes. Called before the first tick."""
        self._log_end = position

    @property
    def failing(self) -> str:
        """Why the tick under way waits, "" when it does not, or not for long."""
        tick = self._under_way
        if tick is None or tick.appends_since_ms < 0:
            return self._trouble
        return self._log.failing if self._tick.now_ms - tick.appends_since_ms >= PATIENCE_MS else ""

    def submit(self, writes: TickWrites, logged: Logged) -> None:
        if self._under_way is not None:
            raise RuntimeError("a tick is already being committed")
        tick = self._under_way = _UnderWay(writes, logged, self._log_end)
        if not writes.records:
            self._told_ms = self._tick.now_ms
            self._state.keep(self._rest(writes), tick.base, 0, self._kept)
        elif writes.generation_reserved >= 0:
            # A record must not carry a generation that could be given again after a crash.
            reserving = TickWrites(generation_reserved=writes.generation_reserved)
            self._state.keep(reserving, tick.base, 0, self._reserved)
        else:
            self._append(tick)

    def _reserved(self, result: Receipt | StoreError) -> None:
        tick = self._under_way
        assert tick is not None
        if isinstance(result, StoreError):
            self._answer(result)
        else:
            self._append(tick)

    def _append(self, tick: _UnderWay) -> None:
        tick.appends_since_ms = self._tick.now_ms
        self._log.append(tick.writes.records, self._appended)

    def _appended(self, result: Receipt | StoreError) -> None:
        tick = self._under_way
        assert tick is not None
        if isinstance(result, StoreError):
            self._answer(result)
            return
        tick.appends_since_ms = -1
        tick.base, tick.count = result.base_offset, result.record_count
        self._log_end = tick.base + tick.count
        self._keep_rest(tick)

    def _keep_rest(self, tick: _UnderWay) -> None:
        rest = self._rest(tick.writes)
        # Of records before these: the first ones after a pause do not wait for the disk.
        is_late = self._state.log_end < tick.base and self._tick.now_ms - self._told_ms >= UNKNOWN_MS_MAX
        if rest.is_empty() and not is_late and 0 < self._state.log_end > self._log_end - UNKNOWN_RECORDS_MAX:
            self._kept(Receipt(tick.base, tick.count))
        else:
            self._told_ms = self._tick.now_ms
            self._state.keep(rest, tick.base, tick.count, self._kept)

    def _rest(self, writes: TickWrites) -> TickWrites:
        """All but the records, and but the samples when they have a place of their own; with the records of queues, of
        which single ones are read."""
        queues = writes.queues
        queues.bodies = {number: writes.records[number] for number in queues.records_needed()}
        return replace(writes, records=[], receipts=writes.receipts if self._receipts is None else [])

    def _kept(self, result: Receipt | StoreError) -> None:
        tick = self._under_way
        assert tick is not None
        if isinstance(result, StoreError):
            if not tick.count:
                self._answer(result)
                return
            tick.retry_at_ms = self._tick.now_ms + RETRY_MS
            self._note(str(result))
            return
        self._note("")
        if self._receipts is not None and tick.writes.receipts:
            self._receipts.take(tick.writes.receipts)
        if tick.writes.dispatcher_floor >= 0:
            self.dispatcher_floor = tick.writes.dispatcher_floor
            self._log.passed(self.dispatcher_floor)
        self._answer(Receipt(tick.base, tick.count))

    def _note(self, trouble: str) -> None:
        before, self._trouble = self._trouble, trouble
        if bool(before) != bool(trouble):
            self.on_waiting(trouble)

    def _answer(self, result: Receipt | StoreError) -> None:
        tick, self._under_way = self._under_way, None
        assert tick is not None
        tick.logged(result)

    def settle(self) -> None:
        self._state.settle()
        tick = self._under_way
        if tick is not None and tick.retry_at_ms and self._tick.now_ms >= tick.retry_at_ms:
            tick.retry_at_ms = 0
            self._keep_rest(tick)

    def close(self) -> None:
        self._log.close()
        if self._receipts is not None:
            self._receipts.close()
        tick = self._under_way
        self._state.close_log(self._log_end if tick is None else tick.base, in_order=tick is None)
        self._state.close()
