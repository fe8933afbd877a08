"""Keeps one query alive: a thread that starts it, watches it, does its upkeep, and starts it again with backoff."""

import logging
import threading
import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from embermq.pipeline.errors import PipelineError
from embermq.pipeline.jobs.query_job import JobSetup, QueryJob
from embermq.pipeline.jvm_thread import closing_connection
from embermq.pipeline.paused import paused_queries
from embermq.pipeline.status import QueryReport, QueryState
from embermq.pipeline.turns import Turns

_LOOK_S = 1
_BEGIN_LOOK_S = 0.1
"""While others wait for it to begin."""
HEALTHY_S = 60
"""What has run so long and fails is not retried with longer pauses than the first."""
_ERROR_CHARACTERS_MAX = 500
_NOT_TELLING = ("at ", "File ", "Traceback", "===", "JVM stack", "An error occurred while calling ")

log = logging.getLogger(__name__)


class Keeper:
    """One query's life. The others go on whatever happens here, a sink that cannot be opened included."""

    def __init__(
        self,
        kind: type[QueryJob],
        setup: JobSetup,
        spark: SparkSession,
        stopping: threading.Event,
        turns: Turns,
    ) -> None:
        self.job: QueryJob | None = None
        self._kind = kind
        self._setup = setup
        self._spark = spark
        self._stopping = stopping
        self._turns = turns
        self._state: QueryState = "starting"
        self._restarts = 0
        self._failures = 0
        self._last_error = ""
        work = closing_connection(self._keep)
        self._thread = threading.Thread(target=work, name=f"keeper-{kind.name}", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def quiesce(self, timeout_s: float) -> None:
        """Wait until no batch is being written, and let none begin."""
        if self.job is not None:
            self.job.quiesce(timeout_s)

    def is_settled(self) -> bool:
        """Whether something has gone through the query, or it has failed."""
        return self._state != "starting"

    def report(self) -> QueryReport:
        """What status shows of this query."""
        batch = self.job.last_batch if self.job is not None else None
        return QueryReport(
            name=self._kind.name,
            state=self._state,
            mode=self.job.mode if self.job is not None else self._kind.mode,
            restarts=self._restarts,
            last_error=self._last_error,
            last_batch_records=batch.records if batch else 0,
            last_batch_ms=batch.duration_ms if batch else 0,
            last_batch_at_ms=batch.at_ms if batch else 0,
        )

    def _keep(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if self._is_paused():
                    self._turns.leave(self._kind.name)
                    self._state = "paused"
                    self._stopping.wait(_LOOK_S)
                    continue
                self._run()
            except Exception as error:  # whatever Spark, Python or SQLite threw: this query starts again
                if self._stopping.is_set():
                    return
                if time.monotonic() - began > HEALTHY_S:
                    self._failures = 0
                self._turns.leave(self._kind.name)
                self._last_error = short_reason(error)
                self._state = "backoff"
                log.warning("query %s: %s", self._kind.name, self._last_error)
                log.debug("query %s", self._kind.name, exc_info=error)
                self._stopping.wait(self._pause_s(error))
                self._restarts += 1

    def _run(self) -> None:
        """A query that has failed is not called running before something has gone through it again."""
        if self._state == "paused":
            self._state = "starting"
        if self.job is None:
            self.job = self._kind.create(self._setup)
        job, name = self.job, self._kind.name
        self._turns.take(name, self._stopping)
        if self._stopping.is_set():
            return
        query = job.start(self._spark)
        has_begun = False
        try:
            while not (self._stopping.is_set() or self._is_paused()):
                look_s = _LOOK_S if has_begun else _BEGIN_LOOK_S
                if query.awaitTermination(look_s):  # type: ignore[arg-type]  # parts of a second are taken, too
                    raise PipelineError("the query ended by itself")
                job.upkeep(time.time_ns() // 1_000_000)
                if not has_begun and job.has_begun(query):
                    has_begun, self._state = True, "running"
                    self._turns.leave(name)
                if has_begun and job.begins_anew():
                    return
        finally:
            if not self._stopping.is_set():
                _stop_quietly(query.stop)

    def _is_paused(self) -> bool:
        return self._kind.name in paused_queries(self._setup.places.data_dir)

    def _pause_s(self, error: Exception) -> float:
        """What is put right does not count as a failure: what fails next waits no longer for it."""
        settings = self._setup.settings
        if self._is_healed(error):
            return settings.backoff_first_ms / 1000
        self._failures += 1
        doubled = settings.backoff_first_ms << min(self._failures - 1, 20)
        return min(doubled, settings.backoff_max_ms) / 1000

    def _is_healed(self, error: Exception) -> bool:
        """Whether the job has put right what it died of."""
        try:
            return self.job is not None and self.job.heal(str(error))
        except Exception as trouble:
            log.warning("query %s: cannot put that right: %s", self._kind.name, short_reason(trouble))
            return False


def _stop_quietly(stop: Callable[[], None]) -> None:
    """A query that has failed may not stop cleanly; the failure itself is what counts."""
    try:
        stop()
    except Exception as error:
        log.info("stopping a failed query: %s", short_reason(error))


def short_reason(error: BaseException) -> str:
    """The first telling lines of an error: Spark's messages bring the whole Java stack along."""
    lines = [stripped for line in str(error).splitlines() if (stripped := line.strip(" \t:"))]
    told = [line for line in lines if not line.startswith(_NOT_TELLING)]
    errors = [line for line in reversed(told) if "Error" in line.partition(":")[0]]
    best = errors[0] if errors else (told[0] if told else "")
    return f"{type(error).__name__}: {best}"[:_ERROR_CHARACTERS_MAX]
