"""The driver process: one Spark session, its queries, and a status file every second.

It ends when it is told to (SIGTERM), when its parent goes (its standard input closes, also by kill -9), and when
the JVM goes. It leads a process group of its own, so that nothing it started outlives it.
"""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import SparkSession

from embermq.pipeline.errors import DriverLockError
from embermq.pipeline.java import find_java
from embermq.pipeline.jobs.bulk import Bulk, Feed
from embermq.pipeline.jobs.bulk_log import BulkLog, EmbeddedLog
from embermq.pipeline.jobs.bulk_parts import PARTS, BulkPart, PartKind
from embermq.pipeline.jobs.dispatch import Dispatch
from embermq.pipeline.jobs.query_job import JobSetup, QueryJob
from embermq.pipeline.keeper import Keeper
from embermq.pipeline.places import Places, make_socket_directory, remove_leftovers
from embermq.pipeline.rules.live import Care, RuleKind
from embermq.pipeline.rules.session import RuleSession
from embermq.pipeline.rules.settings import query_of_rule
from embermq.pipeline.rules.windows import WindowLog
from embermq.pipeline.session import POOL, jvm_process, start_session
from embermq.pipeline.settings import QUERIES, DriverSettings
from embermq.pipeline.sources.message_log import MessageLogSource
from embermq.pipeline.status import DriverReport, QueryReport, write_report
from embermq.pipeline.turns import Turns

if TYPE_CHECKING:
    from embermq.pipeline.kafka_driver import KafkaDriver


def chosen_jobs(settings: DriverSettings) -> list[type[QueryJob]]:
    """The streaming queries that the settings name."""
    if "dispatch" not in settings.queries:
        return []
    if settings.kafka is None:
        return [Dispatch]
    from embermq.pipeline.jobs.kafka_dispatch import KafkaDispatch  # its client is not in every installation

    return [KafkaDispatch]


def chosen_parts(settings: DriverSettings) -> list[type[BulkPart]]:
    """Who shares the reading of the log."""
    return [part for part in PARTS if part.name in settings.queries]


def register_sources(spark: SparkSession) -> None:
    """Make the formats of `sources` known to a session."""
    spark.dataSource.register(MessageLogSource)


EXIT_JVM_LOST = 70
RULES_TURN, WINDOWS_TURN = "rules", "windows"
_REPORT_S = 1.0
_QUIESCE_S = 1.0
_JVM_STOP_S = 1.5

log = logging.getLogger(__name__)


class Driver:
    """Runs until it is stopped; `run` returns the exit code."""

    def __init__(self, settings: DriverSettings, data_dir: Path) -> None:
        self._settings = settings
        self._places = Places(data_dir.absolute())
        self._stopping = threading.Event()
        self._keepers: list[Keeper | Feed] = []
        self._started_ms = _now_ms()
        self._java = self._spark_version = ""
        self._parent = os.getppid()
        self._jvm: subprocess.Popen[bytes] | None = None
        self._reporting = threading.Lock()
        self._kafka = kafka_driver(settings, self._places, self._stopping)
        self._sockets = make_socket_directory(self._places)

    def stop(self, *_: object) -> None:
        """Ask `run` to return; safe in a signal handler and from any thread."""
        self._stopping.set()

    def run(self) -> int:
        """Start Spark and the queries, then report until stopped."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        self._report("starting")
        try:
            with self._telling_meanwhile():
                spark = self._start_spark()
            self._start_queries(spark)
            return self._watch()
        except SystemExit:
            return 0
        finally:
            self._end()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._stopping.set()
        if not self._spark_version:
            raise SystemExit(128 + number)  # still inside Spark's start

    def _start_spark(self) -> SparkSession:
        java = find_java(self._places.java_wrapper)
        self._java = f"{java.version} ({java.origin})"
        self._report("starting")
        held_slots = self._kafka.wait_for_log(self._settings) if self._kafka is not None else 0
        if self._stopping.is_set():
            raise SystemExit(0)
        spark = start_session(self._settings, self._places, java, self._sockets, held_slots)
        self._spark_version = spark.version
        if not self._settings.elsewhere:
            self._jvm = jvm_process(spark)
        if self._kafka is None:
            register_sources(spark)
        return spark

    @contextmanager
    def _telling_meanwhile(self) -> Iterator[None]:
        """Report while this thread waits, for Kafka as long as that takes: nobody is to take the driver for dead."""
        done = threading.Event()

        def tell() -> None:
            while not done.wait(_REPORT_S):
                self._report("starting")

        teller = threading.Thread(target=tell, name="report", daemon=True)
        teller.start()
        try:
            yield
        finally:
            done.set()
            teller.join()

    def _start_queries(self, spark: SparkSession) -> None:
        setup = JobSetup(self._settings, self._places, self._kafka.side if self._kafka is not None else None)
        kinds, rules = chosen_jobs(self._settings), self._rule_kinds(spark)
        # Rules into the lake read with it: each of their batches is a commit and a file, too.
        parts: list[type[BulkPart] | PartKind] = [*chosen_parts(self._settings)]
        windows = [kind for kind in rules if kind.rule.every]
        parts += [kind for kind in rules if kind.rule.to == "lake" and kind not in windows]
        quick = [kind for kind in rules if kind.rule.to != "lake" and kind not in windows]
        turns = Turns(
            [
                *(kind.name for kind in kinds),
                *([POOL] if parts else []),
                *([RULES_TURN] if quick else []),
                *([WINDOWS_TURN] if windows else []),
            ]
        )
        keepers = [Keeper(kind, setup, spark, self._stopping, turns) for kind in kinds]
        for keeper in keepers:
            keeper.start()
        self._keepers = [*keepers]
        if parts:
            settings = self._settings
            if not any(isinstance(part, RuleKind) for part in parts):  # whose rows come into this process
                records_max = settings.bulk_records_per_batch
                settings = msgspec.structs.replace(settings, max_records_per_batch=records_max)
            log = self._bulk_log(settings, spark)
            bulk = Bulk(parts, setup, log, spark, self._stopping, turns=turns)
            bulk.start()
            self._keepers += bulk.feeds
        if quick:
            log = self._bulk_log(self._settings, spark)
            self._start_rules(quick, log, spark, setup, turns=turns, turn=RULES_TURN)
        if windows:
            view = WindowLog(self._bulk_log(self._settings, spark))
            self._start_rules(windows, view, spark, setup, turns=turns, turn=WINDOWS_TURN)

    def _rule_kinds(self, spark: SparkSession) -> list[RuleKind]:
        if not self._settings.rules:
            return []
        session, care = RuleSession(spark), Care(self._places)
        return [RuleKind(name, rule, session, care) for name, rule in self._settings.rules.items()]

    def _start_rules(
        self,
        kinds: Sequence[RuleKind],
        log: BulkLog,
        spark: SparkSession,
        setup: JobSetup,
        *,
        turns: Turns,
        turn: str,
    ) -> None:
        """They read the log together, apart from the others: what they make is wanted soon."""
        settings = msgspec.structs.replace(setup.settings, bulk_trigger_ms=setup.settings.rule_trigger_ms)
        job = JobSetup(settings, self._places)
        rules = Bulk(kinds, job, log, spark, self._stopping, turns=turns, turn=turn)
        rules.start()
        self._keepers += rules.feeds

    def _bulk_log(self, settings: DriverSettings, spark: SparkSession) -> BulkLog:
        if self._kafka is not None:
            return self._kafka.bulk_log(settings, spark)
        return EmbeddedLog(settings, self._places, spark)

    def _watch(self) -> int:
        """`running` once every query has shown that it works, or said why not."""
        has_begun = False
        while not self._stopping.wait(_REPORT_S):
            has_begun = has_begun or all(keeper.is_settled() for keeper in self._keepers)
            self._report("running" if has_begun else "starting")
            if self._is_over() and not self._stopping.is_set():  # being stopped meanwhile is no loss
                log.error("the JVM is gone")
                return EXIT_JVM_LOST
        if self._kafka is not None and self._kafka.refusal:
            raise DriverLockError(self._kafka.refusal)
        return 0

    def _is_over(self) -> bool:
        """A JVM that spark-submit has started is this process's parent."""
        is_lost = self._jvm.poll() is not None if self._jvm is not None else os.getppid() != self._parent
        return self._stopping.is_set() or is_lost

    def _report(self, state: str) -> None:
        report = DriverReport(
            pid=os.getpid(),
            host=socket.gethostname(),
            state="stopped" if state == "stopped" else "running" if state == "running" else "starting",
            started_ms=self._started_ms,
            updated_ms=_now_ms(),
            java=self._java,
            spark=self._spark_version,
            master=self._settings.master,
            queries=self._query_reports(),
            kafka=self._kafka is not None,
            log_first=self._kafka.lags.first() if self._kafka is not None else 0,
            log_end=self._kafka.lags.end() if self._kafka is not None else 0,
            waits_for=self._kafka.waits_for if self._kafka is not None else "",
        )
        try:
            with self._reporting:
                write_report(self._places.status, report)
        except OSError as error:  # a full disk: the queries wait for room by themselves
            log.warning("cannot write %s: %s", self._places.status, error)
        if self._kafka is not None:
            self._kafka.tell(report)

    def _query_reports(self) -> tuple[QueryReport, ...]:
        """Those that are to come are starting."""
        if self._keepers:
            return tuple(self._query_report(keeper) for keeper in self._keepers)
        wanted = self._settings.queries
        names = [*(name for name in QUERIES if name in wanted), *map(query_of_rule, self._settings.rules)]
        return tuple(QueryReport(name=name, state="starting") for name in names)

    def _query_report(self, keeper: Keeper | Feed) -> QueryReport:
        report = keeper.report()
        if self._kafka is None:
            return report
        return self._kafka.with_lag(report, keeper if isinstance(keeper, Feed) else keeper.job)

    def _end(self) -> None:
        """Let the sinks finish what they write, then take everything that was started along."""
        self._stopping.set()
        deadline_s = time.monotonic() + _QUIESCE_S
        for keeper in self._keepers:
            keeper.quiesce(max(0.0, deadline_s - time.monotonic()))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._jvm is not None:
            self._jvm.terminate()
            wait_or_kill(self._jvm, _JVM_STOP_S)
        os.killpg(0, signal.SIGTERM)  # Python workers, and a JVM that was still starting
        remove_leftovers(self._places)
        for leftover in (self._sockets, self._places.checkpoints):
            shutil.rmtree(leftover, ignore_errors=True)
        self._report("stopped")


def kafka_driver(settings: DriverSettings, places: Places, stopping: threading.Event) -> "KafkaDriver | None":
    """What the driver has besides when the log is in Kafka; the client is not there in every installation."""
    if settings.kafka is None:
        return None
    from embermq.pipeline.kafka_driver import KafkaDriver

    return KafkaDriver(settings.kafka, places, stopping, elsewhere=settings.elsewhere)


def wait_or_kill(process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    """Until it has ended; kill -9 when it takes longer than that."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def lead_process_group() -> None:
    """So that a signal to the group reaches the JVM and its workers, and nobody else."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)


def stop_when_parent_goes(driver: Driver) -> None:
    """Watch standard input: its other end is the broker's, which closes it however it dies."""

    def watch() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        driver.stop()
        time.sleep(_QUIESCE_S + _JVM_STOP_S + 1)
        os.killpg(0, signal.SIGKILL)  # Spark's start or stop hangs

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
