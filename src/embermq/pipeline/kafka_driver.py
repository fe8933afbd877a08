"""What the driver has besides when the message log is in Kafka."""

import logging
import threading

import msgspec

from embermq.pipeline.errors import KafkaLogError
from embermq.pipeline.jobs.application_topics import BrokerSessions
from embermq.pipeline.jobs.kafka_dispatch import chosen_mode
from embermq.pipeline.jobs.kafka_job import KafkaJob
from embermq.pipeline.jobs.query_job import KafkaSide, QueryJob
from embermq.pipeline.kafka_lags import KafkaLags
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sources.kafka_positions import KafkaPositions
from embermq.pipeline.status import QueryReport

_ASK_S = 1.0

log = logging.getLogger(__name__)


class KafkaDriver:
    """The driver's clients of Kafka, the lags of its queries, and who is asked for application logs."""

    def __init__(self, kafka: KafkaLog, places: Places, stopping: threading.Event) -> None:
        self._stopping = stopping
        self.positions = KafkaPositions(kafka)
        self.side = KafkaSide(self.positions, BrokerSessions(places))
        self.lags = KafkaLags(self.positions, stopping)
        self.waits_for = ""
        """What is in the way of a start, "" for nothing."""

    def wait_for_log(self, settings: DriverSettings) -> int:
        """Until Kafka answers and has the log, or the driver is to stop; the task slots that dispatch holds."""
        told = ""
        while not self._stopping.is_set():
            try:
                partitions = self.positions.partitions()
                self.waits_for = ""
                self.lags.start()
                is_held = "dispatch" in settings.queries and chosen_mode(settings) == "realtime"
                return partitions if is_held else 0
            except KafkaLogError as error:
                if str(error) != told:
                    self.waits_for = told = str(error)
                    log.warning("waiting for the message log: %s", told)
                self._stopping.wait(_ASK_S)
        return 0

    def with_lag(self, report: QueryReport, job: QueryJob | None) -> QueryReport:
        """What is reported of a query, with its positions and how far it is behind."""
        if not isinstance(job, KafkaJob):
            return report
        done = dict(job.done)
        lag = self.lags.lag(report.name, done)
        return msgspec.structs.replace(
            report,
            positions={str(partition): offset for partition, offset in sorted(done.items())},
            lag_messages=lag.messages,
            lag_s=lag.seconds,
            missing=job.missing,
            last_error=report.last_error or self.lags.problem,
        )
