"""archive, lake and traffic: what becomes of a batch in each of their sinks.

They read nothing of the log themselves; `jobs.bulk` reads it once for all that are at the same positions.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from embermq.pipeline.jars import lake_jars
from embermq.pipeline.jobs.bulk_log import BulkBatch, BulkLog
from embermq.pipeline.jobs.lake_upkeep import LakeUpkeep
from embermq.pipeline.log_look import Positions
from embermq.pipeline.places import Places
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.settings import DriverSettings, slot_of_pipeline
from embermq.pipeline.sinks.lake import Lake, lake_place
from embermq.pipeline.sinks.message_file import MessageFile, MessageStoreSink
from embermq.pipeline.sinks.message_tasks import write_by_tasks
from embermq.pipeline.sinks.traffic_table import TrafficTable
from embermq.pipeline.sinks.traffic_windows import WATERMARK_S, TrafficWindows, receipts_begin
from embermq.pipeline.transforms.archive import lake_rows, stored_messages
from embermq.pipeline.transforms.arrow_rows import stored_table
from embermq.pipeline.transforms.traffic import traffic_events
from embermq.pipeline.transforms.traffic_table import traffic_rows

_MS_PER_HOUR = 3_600_000
_HOURS_A_DAY = 24
WAITING_FULL = 1_000
"""So much of what waits beside the log is a batch by itself."""


class BulkPart(ABC):
    """One sink, which has its positions, written together with the effect."""

    name: str

    def __init__(self, settings: DriverSettings, places: Places, log: BulkLog) -> None:
        """A subclass opens its sink here."""
        self.settings = settings
        self.places = places
        self.log = log
        self.held = ExitStack()
        """What is closed with it."""

    @abstractmethod
    def open(self, spark: SparkSession) -> None:
        """Before the first batch, and again after a failure: `positions` says then how far the sink is."""

    @abstractmethod
    def positions(self) -> Positions:
        """Below these everything has had its effect; partitions that have not begun are not there."""

    @abstractmethod
    def begin_at(self, begin: Positions) -> None:
        """Tell the sink where these partitions start."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """What the sink has counted."""

    @abstractmethod
    def write(self, batch: BulkBatch) -> int:
        """Give the records of a batch their effect, exactly once; returns how many positions they covered."""

    def moved(self, begin: Positions, end: Positions) -> int:
        """The records of a batch from `begin` to `end` have had their effect; returns how many the log had not, where
        the sink does not count them."""
        return 0

    def waiting(self) -> int:
        """How much waits that is not in the message log."""
        return 0

    def write_more(self, spark: SparkSession) -> None:
        """Give that its effect, `WAITING_FULL` of it at most."""
        raise NotImplementedError

    def close(self) -> None:
        """When no batch is under way, and none will be."""
        self.held.close()

    def reached(self, done: Positions) -> Positions:
        """How far it is to be shown, when it has `done` that."""
        return done

    @abstractmethod
    def keep_up(self, now_ms: int) -> None:
        """One bounded round of pruning."""

    def oldest_ms(self, now_ms: int) -> int:
        """What was accepted before is not kept."""
        return now_ms - self.settings.retention_hours * _MS_PER_HOUR


class PartKind(Protocol):
    """A class of parts, or what makes one."""

    @property
    def name(self) -> str: ...

    def __call__(self, settings: DriverSettings, places: Places, log: BulkLog, /) -> BulkPart: ...


class Archive(BulkPart):
    """Every message for `retention_hours`, in the message store: of a log in Kafka one sink for each partition."""

    name = "archive"

    def __init__(self, settings: DriverSettings, places: Places, log: BulkLog) -> None:
        super().__init__(settings, places, log)
        self._store = message_sinks(settings, places, log.identity)
        self._sinks: dict[int, MessageStoreSink] = {}

    def open(self, spark: SparkSession) -> None:
        for number in self.log.bounds:
            self._sink(number).open()

    def positions(self) -> Positions:
        found = {number: sink.file.position() for number, sink in self._sinks.items()}
        return {number: at for number, at in found.items() if at is not None}

    def begin_at(self, begin: Positions) -> None:
        for number, offset in begin.items():
            self._sink(number).begin_at(offset)

    def counts(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for sink in self._sinks.values():
            found.update(sink.file.counts())
        return dict(found)

    def write(self, batch: BulkBatch) -> int:
        if batch.file:
            return self._sink(PARTITION).write_table(stored_table(batch.file))
        messages = stored_messages(batch.rows)
        sinks = self._sinks.values()
        covered = write_by_tasks(
            messages,
            {number: sink.task_writer() for number, sink in self._sinks.items()},
            side_by_side=all(sink.side_by_side for sink in sinks),
        )
        for sink in sinks:
            sink.follow()
        return covered

    def keep_up(self, now_ms: int) -> None:
        for sink in self._sinks.values():
            sink.prune(self.oldest_ms(now_ms), self.settings.prune_rows_max)

    def _sink(self, number: int) -> MessageStoreSink:
        if number not in self._sinks:
            self._sinks[number] = self._store(number if self.log.is_partitioned else None)
        return self._sinks[number]


def message_sinks(
    settings: DriverSettings, places: Places, log_id: Callable[[], int]
) -> Callable[[int | None], MessageStoreSink]:
    """Opens the store for a partition of a log in Kafka, or for the embedded one (None). The drivers of servers are
    loaded for a server alone."""
    if not settings.message_store:
        return partial(MessageFile, places.messages)
    from embermq.pipeline.sinks.message_server import MessageServer
    from embermq.pipeline.sinks.sql_server import sql_server

    server = sql_server(settings.message_store, settings.sql, settings.archive_timeout_s)
    return partial(MessageServer, server, places.archive, log_id)


class LakeFeed(BulkPart):
    """Every message in the Delta Lake table."""

    name = "lake"

    def __init__(self, settings: DriverSettings, places: Places, log: BulkLog) -> None:
        super().__init__(settings, places, log)
        slot = slot_of_pipeline(settings)
        self._sink = Lake(lake_place(settings, places), places, shared=slot is not None)
        self._upkeep = LakeUpkeep(settings.lake_retention_days, slot)

    def open(self, spark: SparkSession) -> None:
        lake_jars(self.settings)  # says what is missing, and how to get it
        self._sink.open(spark, self.log.identity(), self.log.bounds if self.log.is_partitioned else None)

    def positions(self) -> Positions:
        return self._sink.positions()

    def begin_at(self, begin: Positions) -> None:
        self._sink.begin_at(begin)

    def counts(self) -> dict[str, int]:
        return self._sink.file.counts()

    def write(self, batch: BulkBatch) -> int:
        if batch.file:
            return self._sink.write_file(batch.file)
        return self._sink.write(lake_rows(batch.rows))

    def keep_up(self, now_ms: int) -> None:
        self._upkeep.look(self._sink, now_ms)


class Traffic(BulkPart):
    """Rates, sizes and latencies by first topic level; the latencies are of the receipts beside the log. Several slots
    add to one table."""

    name = "traffic"

    def __init__(self, settings: DriverSettings, places: Places, log: BulkLog) -> None:
        super().__init__(settings, places, log)
        slot = slot_of_pipeline(settings)
        self._sink: TrafficTable | TrafficWindows
        if slot is None:
            self._sink = TrafficWindows(
                places.traffic, settings.traffic_window_s, WATERMARK_S, partitioned=log.is_partitioned
            )
        else:
            self._sink = TrafficTable(settings, places, slot)
            self.held.callback(self._sink.close)
        self._upkeep = LakeUpkeep(math.ceil(settings.retention_hours / _HOURS_A_DAY), slot)

    def open(self, spark: SparkSession) -> None:
        if isinstance(self._sink, TrafficTable):
            lake_jars(self.settings)  # says what is missing, and how to get it
            self._sink.open(spark, self.log.identity(), self.log.bounds)

    def positions(self) -> Positions:
        return self._sink.positions()

    def begin_at(self, begin: Positions) -> None:
        self._sink.begin_at(begin)

    def counts(self) -> dict[str, int]:
        return self._sink.file.counts()

    def write(self, batch: BulkBatch) -> int:
        if batch.file:
            assert isinstance(self._sink, TrafficWindows), "of the embedded log, which has no slots"
            return self._sink.write_table(traffic_rows(batch.file))
        return self._sink.write(traffic_events(batch.rows))

    def waiting(self) -> int:
        bounds = self.log.receipt_bounds()
        begin = receipts_begin(bounds, self._sink.receipts_done())
        return sum(bounds[number].end - at for number, at in begin.items())

    def write_more(self, spark: SparkSession) -> None:
        bounds = self.log.receipt_bounds()
        begin = self._sink.begin_receipts(bounds)
        end = {number: min(bounds[number].end, at + WAITING_FULL) for number, at in begin.items()}
        found = self.log.read_receipts(begin, end)
        if isinstance(found, DataFrame):
            self._sink.write(found)
        else:
            assert isinstance(self._sink, TrafficWindows)
            self._sink.write_table(found)

    def keep_up(self, now_ms: int) -> None:
        if isinstance(self._sink, TrafficTable):
            self._upkeep.look(self._sink, now_ms)
        else:
            self._sink.prune(self.oldest_ms(now_ms), self.settings.prune_rows_max)


PARTS: tuple[type[BulkPart], ...] = (Archive, LakeFeed, Traffic)
