"""archive, lake and traffic on the embedded log: what becomes of a batch in each of their sinks.

They read nothing of the log themselves; `jobs.bulk` reads it once for all that are at the same position.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from embermq.pipeline.connector import lake_jars
from embermq.pipeline.jobs.lake_upkeep import LakeUpkeep
from embermq.pipeline.places import Places
from embermq.pipeline.schema import PARTITION, traffic_schema
from embermq.pipeline.settings import DriverSettings, QueryName
from embermq.pipeline.sinks.lake import Lake, lake_place
from embermq.pipeline.sinks.message_file import MessageFile
from embermq.pipeline.sinks.message_store import MessageStoreSink
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.sinks.traffic_windows import WATERMARK_S, TrafficWindows
from embermq.pipeline.sources.log_file import BrokerFile
from embermq.pipeline.sources.receipts import ReceiptFile
from embermq.pipeline.transforms.archive import stored_messages
from embermq.pipeline.transforms.lake import lake_rows
from embermq.pipeline.transforms.traffic import traffic_events

_MS_PER_HOUR = 3_600_000
WAITING_FULL = 1_000
"""So much of what waits beside the log is a batch by itself."""


class BulkPart(ABC):
    """One sink, whose file has its position, written together with the effect."""

    name: QueryName
    file: SinkFile

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        """A subclass opens its sink here."""
        self.settings = settings
        self.places = places

    @abstractmethod
    def open(self, spark: SparkSession) -> None:
        """Before the first batch, and again after a failure: `file` says then how far the sink is."""

    def begin_at(self, offset: int) -> None:
        """Tell a new sink where it starts."""
        self.file.begin_at(offset)

    @abstractmethod
    def write(self, records: DataFrame) -> int:
        """Give the records of a batch their effect, exactly once; returns how many positions they covered."""

    def waiting(self) -> int:
        """How much waits that is not in the message log."""
        return 0

    def write_more(self, spark: SparkSession) -> None:
        """Give that its effect, `WAITING_FULL` of it at most."""
        raise NotImplementedError

    @abstractmethod
    def keep_up(self, now_ms: int) -> None:
        """One bounded round of pruning."""

    def oldest_ms(self, now_ms: int) -> int:
        """What was accepted before is not kept."""
        return now_ms - self.settings.retention_hours * _MS_PER_HOUR


class Archive(BulkPart):
    """Every message for `retention_hours`, in the message store."""

    name = "archive"

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        super().__init__(settings, places)
        self._sink = message_sinks(settings, places, places.broker)(None)
        self.file = self._sink.file

    def open(self, spark: SparkSession) -> None:
        self._sink.open()

    def begin_at(self, offset: int) -> None:
        self._sink.begin_at(offset)

    def write(self, records: DataFrame) -> int:
        return self._sink.write(stored_messages(records))

    def keep_up(self, now_ms: int) -> None:
        self._sink.prune(self.oldest_ms(now_ms), self.settings.prune_rows_max)


def message_sinks(
    settings: DriverSettings, places: Places, log: Path | Callable[[], int]
) -> Callable[[int | None], MessageStoreSink]:
    """Opens the store for a partition of a log in Kafka, or for the embedded one (None). The drivers of servers are
    loaded for a server alone."""
    if not settings.message_store:
        return partial(MessageFile, places.messages)
    from embermq.pipeline.sinks.message_server import MessageServer
    from embermq.pipeline.sinks.sql_server import sql_server

    server = sql_server(settings.message_store, settings.sql, settings.archive_timeout_s)
    return partial(MessageServer, server, places.archive, log)


class LakeFeed(BulkPart):
    """Every message in the Delta Lake table."""

    name = "lake"

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        super().__init__(settings, places)
        self._sink = Lake(lake_place(settings, places), places)
        self._upkeep = LakeUpkeep(settings.lake_retention_days)
        self.file = self._sink.file

    def open(self, spark: SparkSession) -> None:
        lake_jars(self.settings)  # says what is missing, and how to get it
        with closing(BrokerFile(self.places.broker)) as broker:
            self._sink.open(spark, broker.log_identity())

    def begin_at(self, offset: int) -> None:
        self._sink.begin_at({PARTITION: offset})

    def write(self, records: DataFrame) -> int:
        return self._sink.write(lake_rows(records))

    def keep_up(self, now_ms: int) -> None:
        self._upkeep.look(self._sink, now_ms)


class Traffic(BulkPart):
    """Rates, sizes and latencies by first topic level; the latencies are of the receipts in broker.db."""

    name = "traffic"

    def __init__(self, settings: DriverSettings, places: Places) -> None:
        super().__init__(settings, places)
        self._sink = TrafficWindows(places.traffic, settings.traffic_window_s, WATERMARK_S)
        self.file = self._sink.file

    def open(self, spark: SparkSession) -> None:
        """It is open."""

    def write(self, records: DataFrame) -> int:
        return self._sink.write(traffic_events(records))

    def waiting(self) -> int:
        with closing(ReceiptFile(self.places.broker)) as receipts:
            return max(0, receipts.end() - self._sink.position().receipts_next)

    def write_more(self, spark: SparkSession) -> None:
        start = self._sink.position().receipts_next
        with closing(ReceiptFile(self.places.broker)) as receipts:
            samples = receipts.table(start, min(receipts.end(), start + WAITING_FULL))
        self._sink.write(spark.createDataFrame(samples, traffic_schema()))

    def keep_up(self, now_ms: int) -> None:
        self._sink.prune(self.oldest_ms(now_ms), self.settings.prune_rows_max)


PARTS: tuple[type[BulkPart], ...] = (Archive, LakeFeed, Traffic)
