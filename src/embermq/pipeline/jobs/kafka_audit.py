"""An audit of a log in Kafka, with sessions and queues on servers: what of it differs from that of the embedded log.

It reads in this order: what dispatch has done, application logs, sessions and queues, the message log. So what a
session says is of something that was there, and what its log should have and has not is missing.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from embermq.formats.application_logs import SHARED
from embermq.model.position import position_of
from embermq.pipeline.errors import AuditError
from embermq.pipeline.jobs.audit import UNCOUNTED, Audit, Copy
from embermq.pipeline.jobs.kafka_kept_records import KafkaKeptRecords
from embermq.pipeline.jobs.kafka_past_messages import KafkaPastMessages
from embermq.pipeline.jobs.kafka_ranges import CONSUMERS, read_ranges
from embermq.pipeline.jobs.past_range import PastRange
from embermq.pipeline.jobs.past_records import has_lake
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.delta_table import DeltaTable
from embermq.pipeline.sinks.lake import lake_place
from embermq.pipeline.sources.kafka_positions import KafkaPositions, Positions
from embermq.pipeline.sources.settlements import ENTRIES, LOGS, QUEUED, REJECTED, Settlements, write_rows
from embermq.pipeline.transforms.audit import deliveries
from embermq.pipeline.transforms.servers_audit import ENDED, first_entries, judged_on_servers, sources

ALWAYS = (
    "stored messages that are not in Redis any more: those count as expired",
    "the lake against the log: what the log has let go of is taken from the lake as it is",
)
LOGS_SHOWN = 10


class KafkaAudit(Audit):
    """Offsets are positions, but for a session's floor, which is one of its own log. Raises KafkaLogError."""

    floors_are_positions = False

    def __init__(
        self,
        spark: SparkSession,
        settings: DriverSettings,
        places: Places,
        wanted: PastRange,
        *,
        kafka: KafkaLog,
        work: Path,
        copy: Copy,
    ) -> None:
        super().__init__(spark, places, wanted, work)
        self._settings = settings
        self._kafka = kafka
        self.slot = kafka.slot
        self._copy = copy
        self._positions = KafkaPositions(kafka)
        self._past: KafkaPastMessages | None = None
        self._done: Positions = {}
        self._known: Positions = {}
        self._about: dict[int, Row] = {}
        """What of a session besides its count decides whether that can be checked."""
        self._read = self._without_record = self._ended = 0
        self._is_cut = False
        """Whether a later partition does not begin with its first record."""

    def close(self) -> None:
        self._positions.close()
        if self._past is not None:
            self._past.close()

    # What is stored about deliveries

    def _settle(self) -> Settlements:
        self._work.mkdir(parents=True)
        positions = self._positions
        self._done = positions.progress().get("dispatch", {})
        self._read_copies()
        bounds = positions.bounds()
        self._known = {number: found.end for number, found in bounds.items()}
        floor = self._copy(self._work)
        return Settlements(
            log_id=positions.archive_id(),
            log_first=min(position_of(number, found.first) for number, found in bounds.items()),
            log_end=_end(self._known),
            dispatched=_end(self._done),
            dispatcher_floor=floor,
        )

    def _read_copies(self) -> None:
        """Keep where copies stand in application logs, and which logs these are: asked before, so that one that is made
        anew meanwhile is not taken for another one."""
        prefix, positions = self._kafka.application_prefix, self._positions
        if without := positions.without_leader(prefix):
            raise AuditError(
                f"{len(without)} application logs have no leader in Kafka and cannot be read: "
                + ", ".join(sorted(without)[:LOGS_SHOWN])
            )
        there = positions.topics()
        own = {name for name in there if name.startswith(prefix) and not name.startswith(prefix + SHARED)}
        ids = positions.topic_ids(own)
        write_rows(self._work, LOGS, ((name.removeprefix(prefix), found) for name, found in ids.items()))
        copies = self._all_of(f"{re.escape(prefix)}(?!{re.escape(SHARED)}).*") if own else None
        rejected = self._of(self._kafka.rejected_topic) if self._kafka.rejected_topic in there else None
        entries = first_entries(self._kept(copies, "copies"), prefix)
        entries.write.parquet(str(self._work / f"{ENTRIES}.parquet"))
        found = self._kept(rejected, "rejections").select(F.col("source").alias("offset"))
        found.distinct().write.parquet(str(self._work / f"{REJECTED}.parquet"))

    def _all_of(self, pattern: str) -> DataFrame:
        options = self._kafka.spark_options() | {
            "subscribePattern": pattern,
            "startingOffsets": "earliest",
            "endingOffsets": "latest",
            "includeHeaders": "true",
            "failOnDataLoss": "false",  # what is trimmed meanwhile is below what a session says
            "kafka.group.id": f"{self._kafka.prefix}-{CONSUMERS}",
        }
        return sources(self._spark.read.format("kafka").options(**options).load())

    def _of(self, topic: str) -> DataFrame | None:
        bounds = self._positions.bounds(topic)
        begin = {number: found.first for number, found in bounds.items()}
        rows = read_ranges(
            self._spark, self._kafka, topic, begin, {number: found.end for number, found in bounds.items()}
        )
        return None if rows is None else sources(rows)

    def _kept(self, copies: DataFrame | None, name: str) -> DataFrame:
        if copies is None:
            kinds = {"topic": "string", "partition": "int", "offset": "long", "source": "long"}
            none = (F.lit(None).cast(kind).alias(one) for one, kind in kinds.items())
            return self._spark.range(0).select(*none)
        folder = str(self._work / name)
        copies.write.parquet(folder)
        return self._spark.read.parquet(folder)

    # Records

    def _keep(self) -> tuple[int, int, DataFrame]:
        lake = has_lake(self._settings, self._places)
        uses_lake = lake and DeltaTable(self._spark, lake_place(self._settings, self._places)).exists()
        self._past = KafkaPastMessages(self._settings, self._kafka, self._places)
        kept = KafkaKeptRecords(
            self._spark, self._past, wanted=self._wanted, work=self._work, has_lake=uses_lake
        )
        ranges = [one for one in kept.keep() if one.start < one.end]
        records = kept.read()
        self._read = records.count()
        self._without_record = sum(one.end - one.start for one in ranges) - self._read
        if not ranges:
            return self._past.log_end, self._past.log_end, records
        self._is_cut = any(one.start > 0 for one in ranges[1:])
        first, last = ranges[0], ranges[-1]
        return (
            position_of(first.partition, first.start),
            position_of(last.partition, last.end),
            records,
        )

    def _judged(self, records: DataFrame) -> DataFrame:
        owed = deliveries(records).where(~F.col("client").startswith(SHARED))
        return judged_on_servers(owed, self._stored, self._done, self._known)

    # What can be checked

    def _is_whole(self, totals: dict[str, Any], start: int, end: int) -> bool:
        is_read = not self._without_record and bool(totals["good"] == self._read)
        return is_read and not self._is_cut and self._wanted.end is None

    def _look_at(self, owed: DataFrame) -> None:
        about = owed.groupBy("generation").agg(
            F.bool_and("is_own").alias("is_own"),
            F.count_if(F.col("is_rejected")).alias("rejected"),
            F.count_if(F.col("outcome") == ENDED).alias("ended"),
        )
        self._about = {row["generation"]: row for row in about.collect()}
        self._ended = sum(row["ended"] for row in self._about.values())

    def _why_unchecked(self, row: Row, end: int) -> str:
        about = self._about.get(row["generation"])
        if row["settled"] < 0:
            return UNCOUNTED
        if row["dropped"]:
            return f"reasons of {row['dropped']:,} messages were dropped, there were too many"
        if about is not None and not about["is_own"]:
            return "its log is another one than its place speaks of"
        if about is not None and about["rejected"]:
            return f"dispatch has rejected {about['rejected']:,} of its messages"
        return ""

    def _not_checked(self, records: DataFrame) -> tuple[str, ...]:
        stamps = records.where("error IS NULL").select(F.explode("stamps.log").alias("log"))
        shared = stamps.where(F.col("log").startswith(SHARED)).groupBy("log").count().orderBy("log").collect()
        told = [f"{row['count']:,} messages for the shared subscriptions of {row['log']}" for row in shared]
        if self._ended:
            told.append(f"{self._ended:,} deliveries to sessions that have ended: nothing is kept of these")
        if self._without_record > 0 and not self._wanted.has_times:
            told.append(
                f"{self._without_record:,} positions without a record: marks of transactions look the same"
            )
        return (*told, *ALWAYS)

    # Differences

    def _of_log(self, records: DataFrame, start: int, end: int) -> tuple[list[DataFrame], int]:
        return [], 0

    def _without_body(self, records: DataFrame, start: int, end: int) -> DataFrame:
        if self._wanted.has_times:
            return self._stored[QUEUED].limit(0)  # which of them are inside is known by their records alone
        first = 0 if self._wanted.start is None else start
        queued = self._stored[QUEUED].where("has_body = 0").where(F.col("offset").between(first, end - 1))
        there = records.where("error IS NULL AND NOT from_lake").select("offset")
        return queued.join(there, "offset", "anti")


def _end(ends: Mapping[int, int]) -> int:
    """The position behind all."""
    if not ends:
        return 0
    newest = max(ends)
    return position_of(newest, ends[newest])
