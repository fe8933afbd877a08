"""archive, lake and traffic: one loop reads each batch of the log once and hands it to all who are due.

There is no streaming query. A look at the log's end costs microseconds, and Spark is asked when a batch is due: an idle
pipeline does nothing. Every part has its own positions, its own thread and its own failures. One that has failed, or
takes longer than the others wait for it, reads by itself from where it is until it has caught up: the partitions in
which it is behind somebody, up to there, while it rests in the others. So those whose positions cross meet.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from pyspark.sql import SparkSession

from embermq.pipeline.jobs.bulk_log import BulkBatch, BulkLog
from embermq.pipeline.jobs.bulk_parts import WAITING_FULL, BulkPart, PartKind
from embermq.pipeline.jobs.query_job import JobSetup, LastBatch
from embermq.pipeline.jvm_thread import closing_connection
from embermq.pipeline.keeper import HEALTHY_S, short_reason
from embermq.pipeline.log_look import Positions
from embermq.pipeline.paused import paused_queries
from embermq.pipeline.session import POOL
from embermq.pipeline.status import QueryReport, QueryState
from embermq.pipeline.turns import Turns

PATIENCE_S = 15.0
"""Who takes longer for a batch is not waited for: the others begin their next one without it."""
SAY_AGAIN_S = 600.0
"""How often the log says that a query fails as it did before."""
_LOOK_S = 1.0

log = logging.getLogger(__name__)


class SharedRows:
    """Ranges of the log, read once and kept on disk until every part that they are for has done with them."""

    def __init__(self, log: BulkLog, begin: Positions, end: Positions, parts: int) -> None:
        self.begin = begin
        self.end = end
        self._log = log
        self._parts = parts
        self._kept: BulkBatch | None = None
        self._failure: Exception | None = None
        self._lock = threading.Lock()

    def kept(self) -> BulkBatch:
        """Who comes first reads, and may wait for a server; the others wait for that, and fail with it."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._kept is None:
                try:
                    self._kept = self._log.keep(self.begin, self.end)
                except Exception as error:
                    self._failure = error
                    raise
            return self._kept

    def release(self) -> None:
        """One part has done with it, or failed."""
        with self._lock:
            self._parts -= 1
            is_over = not self._parts
        if is_over and self._kept is not None:
            self._kept.release()


class Feed:
    """One part and how it fares. `work` runs on the feed's thread, all else on the loop's."""

    def __init__(self, kind: type[BulkPart] | PartKind, setup: JobSetup, log: BulkLog) -> None:
        self.name = kind.name
        self.positions: Positions = {}
        """What comes next for it; known when it has begun. Ahead of its sink behind positions without a record."""
        self.missing = 0
        """Positions that were removed from a log in Kafka before it had read them."""
        self.done: Positions = {}
        """What is published: below this everything has had its effect."""
        self.totals: Mapping[str, int] = {}
        """What its sink has counted, as it was seen last."""
        self.part: BulkPart | None = None
        self.batch: SharedRows | None = None
        self.has_begun = False
        self.since_s = float("inf")
        """When its work began; never while it has none."""
        self._kind = kind
        self._setup = setup
        self._log = log
        self._state: QueryState = "starting"
        self._restarts = 0
        self._failures = 0
        self._last_error = ""
        self._last_batch = LastBatch(0, 0, 0)
        self._retry_s = self._begun_s = 0.0
        self._said_s = float("-inf")
        self._work: Future[None] | None = None
        self._tidying: Future[None] | None = None
        self._writing = threading.Lock()

    def is_settled(self) -> bool:
        """Whether something has gone through it, or it has failed."""
        return self._state != "starting"

    def report(self) -> QueryReport:
        """What the pipeline's status shows of this part."""
        return QueryReport(
            name=self.name,
            state=self._state,
            restarts=self._restarts,
            last_error=self._last_error,
            last_batch_records=self._last_batch.records,
            last_batch_ms=self._last_batch.duration_ms,
            last_batch_at_ms=self._last_batch.at_ms,
            positions={str(number): at for number, at in self.done.items()},
            missing=self.missing,
            totals=dict(self.totals),
        )

    def quiesce(self, timeout_s: float) -> None:
        """Wait until nothing is being written, and let nothing begin."""
        self._writing.acquire(timeout=timeout_s)

    def look(self, now_s: float, is_paused: bool) -> bool:
        """Take note of work that has ended; whether it is free for other work."""
        if self._work is not None:
            if not self._work.done():
                return False
            self._note(self._work.exception(), now_s)
            self._work = self.batch = None
            self.since_s = float("inf")
        if is_paused:
            self._state, self.has_begun = "paused", False
        elif self._state == "paused":
            self._state = "starting"
        return not is_paused and now_s >= self._retry_s

    def begin(self, threads: ThreadPoolExecutor, spark: SparkSession) -> None:
        """Open the sink and let the probe go through; a new sink starts at the oldest record."""

        def work() -> None:
            if self.part is None:
                self.part = self._kind(self._setup.settings, self._setup.places, self._log)
            part = self.part
            part.open(spark)
            self.positions = self._resumed(part.positions())
            self._begin_new(part, self.positions)
            self._publish(part, part.reached(self.positions))
            probe = self._log.probe(self.positions)
            try:
                if part.write(probe):
                    raise AssertionError("the probe has no effect")
            finally:
                probe.release()

        self._submit(threads, spark, work)

    def take(self, threads: ThreadPoolExecutor, spark: SparkSession, batch: SharedRows | None) -> None:
        """Give a batch its effect, and what else waits."""
        self.batch = batch

        def work() -> None:
            part, began_s = self.part, time.monotonic()
            assert part is not None
            records = 0
            try:
                if batch is not None:
                    self._begin_new(part, batch.begin)
                    records = part.write(batch.kept())
                    self.missing += part.moved(batch.begin, batch.end)
            finally:
                if batch is not None:
                    batch.release()
            if part.waiting():
                part.write_more(spark)
                self._publish(part, part.reached(self.done))
            if batch is not None:
                self.positions = batch.end
                duration_ms = round((time.monotonic() - began_s) * 1000)
                self._last_batch = LastBatch(records, duration_ms, time.time_ns() // 1_000_000)
                self._publish(part, batch.end)

        self._submit(threads, spark, work)

    def resume(self, threads: ThreadPoolExecutor, spark: SparkSession) -> Positions | None:
        """Where it reads from; None when it cannot. A round of tidying up is begun, and waited for by nobody else: its
        server may not answer."""
        try:
            if self._tidying is None or self._tidying.done():
                done, self._tidying = self._tidying, threads.submit(self._tidy, spark)
                if done is not None:
                    done.result()
            self.positions = self._resumed(self.positions)
            return self.positions
        except Exception as error:
            self.fail(error)
            return None

    def _resumed(self, done: Positions) -> Positions:
        """Where it goes on. What it has counted as missing once is not counted again by the next start."""
        starts = self._log.starts(self.name, done)
        known = {number: max(at, self.positions.get(number, 0)) for number, at in done.items()}
        self.missing += sum(max(0, at - known.get(number, at)) for number, at in starts.items())
        return starts

    def _begin_new(self, part: BulkPart, starts: Positions) -> None:
        """Partitions may be added at any time."""
        known = part.positions()
        if new := {number: at for number, at in starts.items() if number not in known}:
            part.begin_at(new)

    def _publish(self, part: BulkPart, positions: Positions) -> None:
        """Never ahead of the effect."""
        self.totals = part.counts()
        if fresh := {number: at for number, at in positions.items() if self.done.get(number) != at}:
            self._log.publish(self.name, fresh)
            self.done = {**self.done, **fresh}

    def has_more(self, least: int) -> bool:
        """Whether so much, one at least, waits for it beside the log."""
        try:
            return self.part is not None and self.part.waiting() >= max(least, 1)
        except Exception as error:
            self.fail(error)
            return False

    def fail(self, error: Exception) -> None:
        self._note(error, time.monotonic())

    def close(self) -> None:
        """When the loop and its threads have ended."""
        if self.part is not None:
            self.part.close()

    def _submit(self, threads: ThreadPoolExecutor, spark: SparkSession, work: Callable[[], None]) -> None:
        self.since_s = time.monotonic()
        self._work = threads.submit(self._alone, spark, work)

    def _tidy(self, spark: SparkSession) -> None:
        part = self.part
        assert part is not None
        self._alone(spark, lambda: part.keep_up(time.time_ns() // 1_000_000))

    @closing_connection
    def _alone(self, spark: SparkSession, work: Callable[[], None]) -> None:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)
        with self._writing:
            work()

    def _note(self, error: BaseException | None, now_s: float) -> None:
        if error is None:
            if not self.has_begun:
                self.has_begun, self._state, self._begun_s = True, "running", now_s
            return
        if self.has_begun and now_s - self._begun_s > HEALTHY_S:
            self._failures = 0
        settings = self._setup.settings
        pause_ms = min(settings.backoff_first_ms << min(self._failures, 20), settings.backoff_max_ms)
        self._failures += 1
        self._restarts += 1
        self._retry_s = now_s + pause_ms / 1000
        said = self._last_error
        self.has_begun, self._state, self._last_error = False, "backoff", short_reason(error)
        if self._last_error != said or now_s >= self._said_s + SAY_AGAIN_S:
            self._said_s = now_s
            log.warning("query %s: %s", self.name, self._last_error)
        log.debug("query %s", self.name, exc_info=error)


class Bulk:
    """The loop: a thread that looks at the log and says who reads what."""

    def __init__(
        self,
        kinds: Sequence[type[BulkPart] | PartKind],
        setup: JobSetup,
        log: BulkLog,
        spark: SparkSession,
        stopping: threading.Event,
        *,
        turns: Turns,
        turn: str = POOL,
    ) -> None:
        """`turn` is the one that it waits for."""
        self.feeds = [Feed(kind, setup, log) for kind in kinds]
        self._log = log
        self._settings = setup.settings
        self._places = setup.places
        self._spark = spark
        self._stopping = stopping
        self._turns = turns
        self._turn = turn
        self._due_s = float("-inf")
        self._threads = ThreadPoolExecutor(2 * len(kinds), "bulk")
        self._thread = threading.Thread(target=closing_connection(self._run), name="bulk", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the batches that are under way when `stopping` is set."""
        self._thread.join()
        self._threads.shutdown()
        for feed in self.feeds:
            feed.close()
        self._log.close()

    def _run(self) -> None:
        self._turns.take(self._turn, self._stopping)
        while not self._stopping.wait(min(_LOOK_S, self._settings.idle_wait_ms / 1000)):
            try:
                self._look()
            except Exception as error:  # the log could not be read: nobody else would start the loop again
                log.warning("the log cannot be looked at: %s", short_reason(error))
                log.debug("the log", exc_info=error)
            if all(feed.is_settled() for feed in self.feeds):
                self._turns.leave(self._turn)

    def _look(self) -> None:
        now_s, paused = time.monotonic(), paused_queries(self._places.data_dir)
        free = [feed for feed in self.feeds if feed.look(now_s, feed.name in paused)]
        self._log.look()
        if not self._log.bounds:
            return
        for feed in free:
            if not feed.has_begun:
                feed.begin(self._threads, self._spark)
        free = [feed for feed in free if feed.has_begun]
        if any(0 <= time.monotonic() - feed.since_s < PATIENCE_S for feed in self.feeds):
            return  # it may read with the others next
        starts: dict[tuple[tuple[int, int], ...], list[Feed]] = {}
        for feed in free:
            at = feed.resume(self._threads, self._spark)
            if at is not None:
                starts.setdefault(tuple(sorted(at.items())), []).append(feed)
        others = [
            *map(dict, starts),
            *(feed.batch.end for feed in self.feeds if feed.batch is not None),
        ]
        is_due = now_s >= self._due_s  # the same for all: who catches up does not take the turn of the others
        for start, feeds in sorted(starts.items()):
            if self._offer(dict(start), others, feeds, is_due=is_due) and is_due:
                self._due_s = now_s + self._settings.bulk_trigger_ms / 1000

    def _offer(
        self, start: Positions, others: Sequence[Positions], feeds: list[Feed], *, is_due: bool
    ) -> bool:
        """A batch for parts at the same positions, when it is due: in time, or when it is a full one, or at once up to
        where others are already. Whether one of them has something to do."""
        ahead = {
            number: [other[number] for other in others if other.get(number, at) > at]
            for number, at in start.items()
        }
        is_behind = any(ahead.values())
        if is_behind:
            ends = {number: min(ahead[number], default=at) for number, at in start.items()}
        else:
            ends = {number: max(at, self._log.bounds[number].end) for number, at in start.items()}
        end = self._log.bounded(start, ends)
        if end == start or not (is_due or is_behind or end != ends):
            busy = [feed for feed in feeds if feed.has_more(1 if is_due else WAITING_FULL)]
            for feed in busy:
                feed.take(self._threads, self._spark, None)
            return bool(busy)
        batch = SharedRows(self._log, start, end, len(feeds))
        for feed in feeds:
            feed.take(self._threads, self._spark, batch)
        return True
