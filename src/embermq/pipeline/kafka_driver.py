"""What the driver has besides when the message log is in Kafka."""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from pyspark.sql import SparkSession

from embermq.pipeline.errors import KafkaLogError
from embermq.pipeline.jobs.application_topics import BrokerSessions, LogsMadeHere
from embermq.pipeline.jobs.bulk import Feed
from embermq.pipeline.jobs.kafka_bulk_log import KafkaBulkLog
from embermq.pipeline.jobs.kafka_dispatch import KafkaDispatch, chosen_mode
from embermq.pipeline.jobs.query_job import KafkaSide, QueryJob
from embermq.pipeline.kafka_lags import KafkaLags
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.log_look import LATE_MS, ToldReport
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sources.kafka_positions import KafkaPositions, Positions
from embermq.pipeline.status import STALE_MS, DriverReport, QueryReport

_ASK_S = 1.0
_TELL_S = 2.0
_LISTEN_S = 3 * _TELL_S
"""Who says nothing for so long does not run."""

log = logging.getLogger(__name__)


class KafkaDriver:
    """The driver's clients of Kafka, the lags of its queries, and who is asked for application logs."""

    def __init__(
        self, kafka: KafkaLog, places: Places, stopping: threading.Event, *, elsewhere: bool
    ) -> None:
        """`elsewhere`: the broker's data directory is not here."""
        self._stopping = stopping
        self._elsewhere = elsewhere
        self._report: DriverReport | None = None
        self.positions = KafkaPositions(kafka)
        self.side = KafkaSide(
            self.positions, LogsMadeHere(self.positions) if elsewhere else BrokerSessions(places)
        )
        self.lags = KafkaLags(self.positions, stopping)
        self.waits_for = ""
        """What is in the way of a start, "" for nothing."""
        self.refusal = ""
        """Why this driver has to end, "" for nothing: another one works on the log."""
        self._heard: Positions = {}
        """Where the next question of what others say begins."""

    def wait_for_log(self, settings: DriverSettings) -> int:
        """Until Kafka answers and has the log, or the driver is to stop; the task slots that dispatch holds."""
        told = ""
        while not self._stopping.is_set():
            try:
                partitions = self.positions.partitions()
                if other := self._other_driver():
                    raise KafkaLogError(other)
                self.waits_for = ""
                self.lags.start()
                if self._elsewhere:
                    threading.Thread(target=self._keep_telling, name="telling", daemon=True).start()
                is_held = "dispatch" in settings.queries and chosen_mode(settings) == "realtime"
                return partitions if is_held else 0
            except KafkaLogError as error:
                if str(error) != told:
                    self.waits_for = told = str(error)
                    log.warning("waiting for the message log: %s", told)
                self._stopping.wait(_ASK_S)
        return 0

    def _other_driver(self) -> str:
        """Which one works on this log, in words; "" for none. Two would do everything twice."""
        self._heard = {}  # who has spoken at all may speak again
        if not self._others() or self._stopping.wait(_LISTEN_S):
            return ""
        return self._refusal(self._others())

    def _others(self) -> list[DriverReport]:
        """Who has spoken since the last question and runs, without this one."""
        told, self._heard = self.positions.reports(self._heard)
        last = {_identity(report): report for report in map(_of_now, told) if report is not None}
        if self._report is not None:
            last.pop(_identity(self._report), None)
        return [report for report in last.values() if report.state != "stopped"]

    def _refusal(self, others: Sequence[DriverReport]) -> str:
        if not others:
            return ""
        kafka, other = self.positions.kafka, others[-1]
        return f"{kafka.progress_topic}: a pipeline runs already, process {other.pid} on {other.host}"

    def tell(self, report: DriverReport) -> None:
        """What is said next. The last word waits until it is said."""
        self._report = report
        if self._elsewhere and report.state == "stopped" and not self.refusal:
            with suppress(KafkaLogError):
                self._say(report)

    def _keep_telling(self) -> None:
        """Beside all work, since Kafka may not answer. Drivers that start at once do not hear each other before, but
        each hears all others now: every one but the oldest ends."""
        while not self._stopping.wait(_TELL_S):
            try:
                if self._report is not None:
                    self._say(self._report)
                    mine = _identity(self._report)
                    older = [report for report in self._others() if _identity(report) < mine]
                    self.refusal = self._refusal(older)
            except KafkaLogError as error:
                log.info("how the driver is could not be said: %s", error)
            if self.refusal:
                self._stopping.set()

    def _say(self, report: DriverReport) -> None:
        self.positions.publish_report(msgspec.json.encode(report))

    def bulk_log(self, settings: DriverSettings, spark: SparkSession) -> KafkaBulkLog:
        """The log as archive, lake and traffic read it, and rules."""
        return KafkaBulkLog(self.positions, self.lags, settings, spark)

    def with_lag(self, report: QueryReport, job: QueryJob | Feed | None) -> QueryReport:
        """What is reported of a query, with its positions and how far it is behind."""
        if not isinstance(job, KafkaDispatch | Feed):
            return report
        done = dict(job.done)
        lag = self.lags.lag(report.name, done)
        return msgspec.structs.replace(
            report,
            positions={str(partition): offset for partition, offset in sorted(done.items())},
            lag_messages=lag.messages,
            lag_s=lag.seconds,
            missing=job.missing,
            totals=dict(job.totals),
            last_error=report.last_error or self.lags.problem,
        )


def _of_now(told: ToldReport) -> DriverReport | None:
    if time.time_ns() // 1_000_000 - told.at_ms > STALE_MS + LATE_MS:
        return None
    try:
        return msgspec.json.decode(told.value, type=DriverReport)
    except msgspec.DecodeError:
        return None


def _identity(report: DriverReport) -> tuple[int, str, int]:
    """The same in every report of a driver. The smallest of some drivers is the oldest."""
    return report.started_ms, report.host, report.pid
