"""The tick: what was read is decided, committed, delivered and written, in this order, again and again."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct

from embermq.delivery.durable_path import DurablePath
from embermq.edge.clock import BrokerClock
from embermq.intake.broker import Broker
from embermq.model.durations import DurationCounts, Durations
from embermq.ports.errors import StoreError
from embermq.ports.tick_store import Receipt, TickStore
from embermq.sessions.link import Link
from embermq.sessions.tick import Accepted, Batch

RETRY_MS = 500
"""After a failed commit the store is tried again this much later; publishes in between are refused at once."""
UNWRITTEN_BYTES_MAX = 128 * 1024
"""Bytes that are read in one turn before what was decided about them is written: a link that takes no more is known as
such before it has got far more than it may hold."""
GATHERED_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of records that may wait for the store; past it the connections that bring more are not read."""
GATHERED_CALLS_MAX = 100_000
"""Answers that may wait for it, of each kind, likewise."""
STOOD_MS = 500
"""When nobody has looked at the clock for so long, the process stood still: it was stopped or suspended, or the machine
was."""
LATE_S = 5.0
"""When the store takes longer, sessions are refused at once instead of waiting with the tick; and messages, when the
connections that are not read any more have brought twice as much as may wait."""


class TickStatistics(Struct, frozen=True):
    """`commits` is how long the store took for a tick; `acknowledged` how long messages of QoS 1 and 2 waited from the
    first one of their tick until they were answered; `delivered` how long the oldest message of a tick or pack took
    from its accept to its subscribers, to DEVICE and to APPLICATION clients; `syncs` how long the disk took for a tick,
    None where another process syncs it; `failing` the last error of the store, "" when it works."""

    ticks: int
    commits: DurationCounts
    acknowledged: DurationCounts
    delivered: tuple[DurationCounts, DurationCounts]
    syncs: DurationCounts | None
    failing: str


class HeldBack(Protocol):
    """A connection that is not read for a while."""

    def read_on(self) -> None: ...


class TickLoop:
    """Runs ticks on the event loop it is made in. `poll_ms` is how often application logs are looked at."""

    def __init__(
        self,
        broker: Broker,
        delivery: DurablePath,
        store: TickStore,
        *,
        linger_ms: float,
        poll_ms: int,
        clock: BrokerClock | None = None,
        on_failing: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """`on_failing` is called once when the store begins to fail, and with "" when it works again."""
        self._loop = asyncio.get_running_loop()
        self._broker = broker
        self._state = broker.state
        self._tick = broker.state.tick
        self._device = delivery.device
        self._applications = delivery.applications
        self._store = store
        self._clock = clock or BrokerClock()
        self._tick.wake = self.wake
        self._linger_s = linger_ms / 1000
        self._poll_s = poll_ms / 1000
        self._scheduled = False
        """Whether `_turn` comes when all ready sockets have been read."""
        self._wanted = False
        """Whether it is to run a tick in any case."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._commit_timer: asyncio.TimerHandle | None = None
        self._committed_at_s = 0.0
        self._publishers: set[Link | None] = set()
        """Of the last commit that had messages."""
        self._retry_at_ms = 0
        self._held_back: list[HeldBack] = []
        self._turn_bytes = 0
        self._ticks = 0
        self._commits = Durations()
        self._acknowledged = Durations()
        self._first_s = 0.0
        """When the first message that gathers now was decided, by `time.perf_counter`; 0: there is none yet."""
        self._live_s = 0.0
        """The same, until what does not wait for the commit of this message is written."""
        self._failure: StoreError | None = None
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._polling: asyncio.TimerHandle | None = None
        self._on_failing = on_failing

    def statistics(self) -> TickStatistics:
        failing = str(self._failure) if self._failure is not None else ""
        state = self._state
        return TickStatistics(
            self._ticks,
            self._commits.snapshot(),
            self._acknowledged.snapshot(),
            (state.device_delays.snapshot(), state.application_delays.snapshot()),
            self._store.syncs(),
            failing,
        )

    def wake(self) -> None:
        """Something happened: run a tick when all ready sockets have been read."""
        self._wanted = True
        self.before_read()

    def before_read(self) -> None:
        """A socket has something: the tick's time is that of the first one in a turn of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            self.look_at_clock()
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """All ready sockets have been read: run a tick, unless nothing was decided or one comes anyway, with the commit
        under way or with the one that waits for company."""
        self._scheduled = False
        if self._wanted or self._tick.dirty or self._device.wants_pages:
            self._run()
        elif self._store.busy or self._commit_timer is not None or self._tick.batch.is_empty():
            self._turn_bytes = 0
        else:
            self._run()

    def look_at_clock(self) -> int:
        """Set the tick's time, broker time in milliseconds; called before what was read is decided."""
        tick, clock = self._tick, self._clock
        before_ms, now_ms = tick.now_ms, clock.now_ms()
        tick.now_ms, tick.offset_ms = now_ms, clock.offset_ms
        if now_ms - before_ms > STOOD_MS:
            self._state.stood_still()
        return now_ms

    def after_read(self) -> None:
        """A socket has been read and decided."""
        if not self._first_s and (accepted := self._tick.batch.accepted):
            self._first_s = time.perf_counter()
            if accepted[0].match.direct and accepted[0].message.qos < 2:
                self._live_s = self._first_s

    def hold_back(self, connection: HeldBack, read_bytes: int) -> bool:
        """True when the connection must not be read until the store has caught up."""
        self._turn_bytes += read_bytes
        if self._turn_bytes >= UNWRITTEN_BYTES_MAX:
            self._turn_bytes = 0
            self._tick.flush()
            self._wanted = True  # what was written may have set a timer
        batch = self._tick.batch
        if (
            batch.record_bytes < GATHERED_BYTES_MAX
            and len(batch.after_commit) < GATHERED_CALLS_MAX
            and len(batch.accepted) < GATHERED_CALLS_MAX
        ):
            return False
        state = self._state
        if state.log_late and batch.record_bytes >= 2 * GATHERED_BYTES_MAX:
            state.log_full = True
        self._held_back.append(connection)
        return True

    def start_polling(self) -> None:
        """Look at the application logs from now on."""
        self._polling = self._loop.call_later(self._poll_s, self._poll)

    def _poll(self) -> None:
        self._polling = self._loop.call_later(
            self._poll_s, self._poll
        )  # first: whatever fails here, it goes on
        self.look_at_clock()
        self._store.settle()
        if self._store.busy and self._loop.time() - self._committed_at_s > LATE_S:
            self._state.log_late = True
        if self._state.queues is not None:
            self._state.queues.look()
        if self._store.owes:
            self.wake()
        if self._device.behind:
            self.wake()
            self._device.behind.read_on()
        if len(self._applications):
            self.wake()
            self._applications.poll()

    def _run(self) -> None:
        self._wanted = False
        self._ticks += 1
        now_ms = self.look_at_clock()
        timers = self._state.timers
        if timers.next_ms and timers.next_ms <= now_ms:
            timers.advance(now_ms)
        due_ms = self._device.next_ms
        if due_ms and due_ms <= now_ms:
            self._device.advance(now_ms)
        queues = self._state.queues
        if queues is not None:
            queues.run()
        if self._device.wants_pages:
            self._tick.flush()  # who takes no more is known then
            self._device.read_pages()
        if not self._store.busy:
            self._commit()
        self._tick.flush()
        if self._live_s:
            self._state.device_delays.add(time.perf_counter() - self._live_s)
            self._live_s = 0.0
        self._turn_bytes = 0
        self._arm_timer()

    def _commit(self) -> None:
        batch = self._tick.batch
        if batch.writes.is_empty():
            if not batch.is_empty():
                self._finish(self._take()[0], Receipt(self._state.log_end, 0, whole=not self._store.waits))
                if self._idle_waiters:
                    self.wake()
            elif self._failure is not None:
                if self._idle_waiters:
                    self._tell_idle()
                elif self._tick.now_ms >= self._retry_at_ms:
                    # Nobody would find out that there is room again while publishers stay away.
                    batch.writes.generation_reserved = self._state.generations_reserved
                    self._submit()
            elif self._store.owes:
                self._submit()
            elif self._idle_waiters and not self._store.waits:
                self._tell_idle()
            return
        if self._failure is not None and self._tick.now_ms < self._retry_at_ms:
            if batch.accepted:
                self._broker.refused(self._take()[0], self._failure)
                self._read_on()
            return
        wait_s = self._committed_at_s + self._linger_s - self._loop.time()
        if wait_s > 0 and not self._idle_waiters and not self._is_from_one_alone(batch.accepted):
            if self._commit_timer is None:
                self._commit_timer = self._loop.call_later(wait_s, self._commit_now)
            return
        self._submit()

    def _is_from_one_alone(self, accepted: Sequence[Accepted]) -> bool:
        """Whether the one who published last is the only one again: nobody comes whom a commit could wait for."""
        if len(self._publishers) > 1 or not accepted:
            return False
        return len(self._publishers.union(one.link for one in accepted)) == 1

    def _commit_now(self) -> None:
        self._commit_timer = None
        if self._store.busy:
            return
        if self._tick.batch.writes.is_empty():
            self.wake()
        else:
            self._submit()

    def _take(self) -> tuple[Batch, float]:
        """What has gathered, and since when it has had messages."""
        first_s, self._first_s = self._first_s, 0.0
        return self._tick.take(), first_s

    def _submit(self) -> None:
        batch, first_s = self._take()
        self._committed_at_s = self._loop.time()
        if batch.accepted:
            self._publishers = {one.link for one in batch.accepted}
        self._state.committing_records = len(batch.writes.records)
        self._store.submit(batch.writes, partial(self._done, batch, first_s, time.perf_counter()))

    def _done(self, batch: Batch, first_s: float, submitted_s: float, result: Receipt | StoreError) -> None:
        """The store has answered."""
        self._commits.add(time.perf_counter() - submitted_s)
        answered = len(batch.accepted)
        self._state.log_late = self._state.log_full = False
        self.look_at_clock()
        is_delivered = False
        if isinstance(result, Receipt):
            self._retry_at_ms = 0
            works_again = self._failure is not None
            self._failure = self._state.store_failure = None
            if works_again:
                self._on_failing("")
            is_delivered = self._finish(batch, result)
            if works_again:
                self._device.store_works()
        else:
            self._retry_at_ms = self._tick.now_ms + RETRY_MS
            if self._failure is None:
                self._on_failing(str(result))
            self._failure = self._state.store_failure = result
            self._broker.refused(batch, result)
        self._read_on()
        self._run()
        if answered and first_s:
            took_s = time.perf_counter() - first_s
            self._acknowledged.add(took_s, answered)
            if is_delivered:
                self._state.device_delays.add(took_s)

    def _stored(self, call: Callable[[], None]) -> None:
        """What is stored of a session elsewhere than in the log is durable, too."""
        self.look_at_clock()
        call()
        self.wake()

    def _read_on(self) -> None:
        held_back, self._held_back = self._held_back, []
        for connection in held_back:
            connection.read_on()

    def _finish(self, batch: Batch, receipt: Receipt) -> bool:
        """Returns whether messages of it went to clients of kept sessions at once."""
        self._broker.committed(batch, receipt)
        if not receipt.whole:
            for generation, call in batch.waiting():
                self._store.when_stored(generation, partial(self._stored, call))
        linger = self._device.linger
        is_delivered = bool(linger.fresh)
        linger.close_tick(self._state.log_end, self._tick.now_ms)
        return is_delivered

    def _arm_timer(self) -> None:
        """Wake up for what is due next."""
        now_ms = self._tick.now_ms
        due = [due_ms for due_ms in (self._state.timers.next_ms, self._device.next_ms) if due_ms]
        if self._retry_at_ms > now_ms:
            due.append(self._retry_at_ms)
        queues = self._state.queues
        if queues is not None and (queues_due_ms := queues.next_due_ms()) is not None:
            due.append(queues_due_ms)
        if not due:
            return
        due_ms = min(due)
        if self._timer is not None and not self._timer.cancelled():
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        delay_s = max(0.001, (due_ms - now_ms) / 1000)
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    async def drain(self, timeout_s: float) -> None:
        """Wait until everything that was decided is durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._idle_waiters.append(future)
        self._store.hurry()
        self.wake()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            if future in self._idle_waiters:  # else it was told at the last moment
                self._idle_waiters.remove(future)

    def _tell_idle(self) -> None:
        waiters, self._idle_waiters = self._idle_waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def stop(self) -> None:
        for timer in (self._timer, self._commit_timer, self._polling):
            if timer is not None:
                timer.cancel()
