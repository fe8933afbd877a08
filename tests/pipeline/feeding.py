"""Running archive, lake and traffic in tests as they run: one loop over the log."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.kafka_topics import LogInKafka
from tests.support.waiting import wait_until

from embermq.pipeline.jobs.bulk import Bulk, Feed
from embermq.pipeline.jobs.bulk_log import BulkBatch, EmbeddedLog
from embermq.pipeline.jobs.bulk_parts import PARTS, BulkPart
from embermq.pipeline.jobs.kafka_bulk_log import KafkaBulkLog
from embermq.pipeline.jobs.query_job import JobSetup
from embermq.pipeline.kafka_lags import KafkaLags
from embermq.pipeline.log_look import Positions
from embermq.pipeline.places import Places
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.session import POOL
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.status import QueryReport
from embermq.pipeline.turns import Turns

DEADLINE_S = 600
AT_ONCE = DriverSettings(
    bulk_trigger_ms=0,
    idle_wait_ms=20,
    backoff_first_ms=300,
    max_records_per_batch=7,
    split_records=3,
    retention_hours=1_000_000,
)
"""Nothing is too old. Each beginning costs CPU, so what fails is not begun again at once."""


class RecordedLog(EmbeddedLog):
    """Keeps what was read of it; the probe is ()."""

    def __init__(self, settings: DriverSettings, places: Places, spark: SparkSession) -> None:
        super().__init__(settings, places, spark)
        self.ranges: list[tuple[int, ...]] = []

    def keep(self, begin: Positions, end: Positions) -> BulkBatch:
        self.ranges.append((begin[PARTITION], end[PARTITION]))
        return super().keep(begin, end)

    def probe(self, starts: Positions) -> BulkBatch:
        self.ranges.append(())
        return super().probe(starts)


class RecordedKafka(KafkaBulkLog):
    """Keeps what was read of it, by partition; the probe is not kept."""

    def __init__(self, log: LogInKafka, settings: DriverSettings, spark: SparkSession) -> None:
        self._stopping = threading.Event()
        self.lags = KafkaLags(log.positions, self._stopping, look_s=0.1)
        super().__init__(log.positions, self.lags, settings, spark)
        self.ranges: list[dict[int, tuple[int, int]]] = []
        self.lags.start()

    def read(self, begin: Positions, end: Positions) -> DataFrame:
        self.ranges.append({number: (begin[number], at) for number, at in end.items() if at > begin[number]})
        return super().read(begin, end)

    def probe(self, starts: Positions) -> BulkBatch:
        probe = super().probe(starts)
        self.ranges.pop()
        return probe

    def close(self) -> None:
        self._stopping.set()


class WatchedBulk(Bulk):
    """Says how its parts are."""

    def report(self, name: str) -> QueryReport:
        return self.feed(name).report()

    def feed(self, name: str) -> Feed:
        return next(feed for feed in self.feeds if feed.name == name)

    def chosen(self, names: Sequence[str]) -> list[Feed]:
        """These, or all."""
        return [feed for feed in self.feeds if feed.name in names or not names]

    def wait_for_position(self, end: int, *names: str) -> None:
        """Until these, or all, have confirmed everything below `end` and are at rest."""
        self.wait_for_positions({PARTITION: end}, *names)

    def wait_for_positions(self, ends: Positions, *names: str) -> None:
        def has_arrived() -> bool:
            return all(
                feed.has_begun and feed.positions.get(number, 0) >= end
                for feed in self.chosen(names)
                for number, end in ends.items()
            )

        wait_until(has_arrived, DEADLINE_S, f"{names or 'all'} at {ends}", poll_s=0.05)

    def wait_for_state(self, state: str, *names: str) -> None:
        wait_until(
            lambda: {feed.report().state for feed in self.chosen(names)} == {state},
            DEADLINE_S,
            f"{names or 'all'} {state}",
            poll_s=0.02,
        )


class EmbeddedBulk(WatchedBulk):
    read: list[tuple[int, ...]]


class KafkaBulk(WatchedBulk):
    read: list[dict[int, tuple[int, int]]]


@contextmanager
def feeding(
    spark: SparkSession,
    places: Places,
    settings: DriverSettings = AT_ONCE,
    kinds: Sequence[type[BulkPart]] = PARTS,
) -> Iterator[EmbeddedBulk]:
    """The loop on the embedded log, stopped at the end."""
    stopping = threading.Event()
    log = RecordedLog(settings, places, spark)
    bulk = EmbeddedBulk(kinds, JobSetup(settings, places), log, spark, stopping, turns=Turns([POOL]))
    bulk.read = log.ranges
    with _started(bulk, stopping):
        yield bulk


@contextmanager
def feeding_of_kafka(
    spark: SparkSession,
    log: LogInKafka,
    places: Places,
    settings: DriverSettings = AT_ONCE,
    kinds: Sequence[type[BulkPart]] = PARTS,
) -> Iterator[KafkaBulk]:
    """The same on a log in Kafka."""
    stopping = threading.Event()
    view = RecordedKafka(log, settings, spark)
    bulk = KafkaBulk(kinds, JobSetup(settings, places), view, spark, stopping, turns=Turns([POOL]))
    bulk.read = view.ranges
    with closing(view), _started(bulk, stopping):
        yield bulk


@contextmanager
def _started(bulk: Bulk, stopping: threading.Event) -> Iterator[None]:
    bulk.start()
    try:
        yield
    finally:
        stopping.set()
        bulk.join()
