"""audit: what was accepted against what each session was owed, and what has become of it.

Records are read once, from the log and from the lake for what the log has let go of, and kept without their payloads
while the job runs. Nothing is changed, the broker may run or not.
"""

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from embermq.pipeline.batch import batch_session, spark_failures
from embermq.pipeline.errors import AuditError
from embermq.pipeline.jobs.audit_sum import ROWS_SHOWN, AuditFound, LogAudited, summed
from embermq.pipeline.jobs.audit_values import (
    ApplicationAccount,
    AuditedLog,
    Difference,
    QueueAccount,
    StoredAccount,
)
from embermq.pipeline.jobs.kept_records import (
    NOWHERE,
    KeptRecords,
    joins_in_little_memory,
)
from embermq.pipeline.jobs.past_range import PastRange
from embermq.pipeline.jobs.past_records import has_lake, log_bounds
from embermq.pipeline.places import Places
from embermq.pipeline.schema import MISSING
from embermq.pipeline.settings import DriverSettings, PipelineSettings
from embermq.pipeline.sources.log_file import connect_readonly
from embermq.pipeline.sources.message_log import MessageLogSource
from embermq.pipeline.sources.settlements import QUEUED, SESSIONS, STORED, Settlements, read_settlements
from embermq.pipeline.transforms.audit import (
    LOST,
    REJECTED,
    counted_sessions,
    deliveries,
    judged,
)

LOG_STEPS = 4
_UNACKNOWLEDGED_DAYS = 30
NOT_WHOLE = "the range does not have everything up to now"
BEGAN_BEFORE = "its life began before the range"
BEGAN_LONG_AGO = f"it began more than {_UNACKNOWLEDGED_DAYS} days ago"
UNCOUNTED = "nobody has counted it from its beginning"
Progress = Callable[[int, int], None]
Copy = Callable[[Path], int]
"""Copies what is on servers into tables in a folder, and returns the dispatcher's floor."""


def run_audit(
    logs: Sequence[tuple[PipelineSettings, Copy | None]],
    places: Places,
    wanted: PastRange,
    *,
    into: Path | None,
    tasks: int,
    progress: Progress,
) -> AuditFound:
    """Of several logs, one after the other, as of one: the settings of each, and what copies what is on servers. Write
    tables into the folder `into`; None: none. Raises AuditError, PipelineError."""
    began, settings = time.monotonic(), logs[0][0]
    steps = len(logs) * LOG_STEPS + 1
    with (
        spark_failures(lambda reason: AuditError(f"the messages cannot be read: {reason}")),
        tempfile.TemporaryDirectory(prefix="embermq-") as work,
        batch_session(settings, tasks, Path(work), lake=has_lake(settings, places)) as spark,
        joins_in_little_memory(spark),
    ):
        found = []
        for number, (own, copy) in enumerate(logs):
            files, told = Path(work) / f"audit-{number}", partial(_told_step, progress, number, steps)
            with closing(_audit(spark, own, places, wanted, work=files, copy=copy)) as audit:
                found.append(audit.run(told))
        together = summed(found, into)
        progress(steps, steps)
    seconds = round(time.monotonic() - began, 3)
    return AuditFound(replace(together.report, seconds=seconds), together.traffic, together.outcomes)


def _told_step(progress: Progress, log: int, steps: int, done: int) -> None:
    progress(log * LOG_STEPS + done, steps)


def _audit(
    spark: SparkSession,
    settings: PipelineSettings,
    places: Places,
    wanted: PastRange,
    *,
    work: Path,
    copy: Copy | None,
) -> "Audit":
    """Of whichever log there is."""
    if isinstance(settings, DriverSettings) and settings.kafka is not None:
        from embermq.pipeline.jobs.kafka_audit import KafkaAudit  # not in every installation

        assert copy is not None, "what is on servers is copied by who can ask them"
        return KafkaAudit(spark, settings, places, wanted, kafka=settings.kafka, work=work, copy=copy)
    spark.dataSource.register(MessageLogSource)
    return EmbeddedAudit(spark, settings, places, wanted, work)


class Audit(ABC):
    """One run. What it keeps meanwhile is in `work`."""

    floors_are_positions = True
    """Of sessions."""
    slot: int | None = None
    """Of a cluster with several: whose log it is."""

    def __init__(self, spark: SparkSession, places: Places, wanted: PastRange, work: Path) -> None:
        self._spark = spark
        self._places = places
        self._wanted = wanted
        self._work = work
        self._stored: dict[str, DataFrame] = {}
        self._at: Settlements

    # Whichever log it is

    @abstractmethod
    def _settle(self) -> Settlements:
        """Write what is stored about deliveries into `work`."""

    @abstractmethod
    def _keep(self) -> tuple[int, int, DataFrame]:
        """Read records; where they begin and end, and what is kept of them."""

    @abstractmethod
    def _judged(self, records: DataFrame) -> DataFrame:
        """One row for each delivery that was owed."""

    @abstractmethod
    def _look_at(self, owed: DataFrame) -> None:
        """At what was judged."""

    @abstractmethod
    def _is_whole(self, totals: dict[str, Any], start: int, end: int) -> bool:
        """Whether nothing of the range is missing."""

    @abstractmethod
    def _why_unchecked(self, row: Row, end: int) -> str:
        """Why the count of a session, whose whole life is in the range, cannot be checked; "" when it can."""

    @abstractmethod
    def _of_log(self, records: DataFrame, start: int, end: int) -> tuple[list[DataFrame], int]:
        """Differences of log and lake, and with how many records the lake was compared."""

    @abstractmethod
    def _without_body(self, records: DataFrame, start: int, end: int) -> DataFrame:
        """What is in a queue, and its message is not there any more: `queue` and `offset`."""

    def _not_checked(self, records: DataFrame) -> tuple[str, ...]:
        """What the report says nothing about, in sentences."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open; nothing is asked afterwards."""

    def run(self, progress: Callable[[int], None]) -> LogAudited:
        """`progress` is told how many of the `LOG_STEPS` are done. What is returned is read from `work`."""
        at = self._at = self._settle()
        names = (path.stem for path in self._work.glob("*.parquet"))
        self._stored |= {
            name: self._spark.read.parquet(str(self._work / f"{name}.parquet")) for name in names
        }
        progress(1)
        start, end, records = self._keep()
        progress(2)
        owed = self._once("owed", self._judged(records))
        progress(3)
        self._look_at(owed)
        totals = _totals(records)
        is_whole = not self._wanted.has_times and self._is_whole(totals, start, end)
        accounts = self._accounts(owed, start, end, totals["oldest"] if is_whole else None)
        differences, compared = self._differences(records, owed, accounts, start, end)
        found = LogAudited(
            log=AuditedLog(
                slot=self.slot,
                log_id=at.log_id,
                start=start,
                end=end,
                log_first=at.log_first,
                dispatched=at.dispatched,
                dispatcher_floor=at.dispatcher_floor,
            ),
            totals=totals | {"lake_compared": compared},
            applications=accounts,
            stored=list(self._stored_accounts()),
            queues=list(self._queue_accounts(records)),
            not_checked=self._not_checked(records),
            records=records,
            owed=owed,
            differences=self._once("found", differences.withColumn("slot", F.lit(self.slot).cast("int"))),
        )
        progress(LOG_STEPS)
        return found

    def _once(self, name: str, table: DataFrame) -> DataFrame:
        """The same, worked out once: it is asked several times."""
        place = str(self._work / name)
        table.write.parquet(place)
        return self._spark.read.schema(table.schema).parquet(place)

    # Accounts

    def _accounts(
        self, owed: DataFrame, start: int, end: int, oldest_ms: int | None
    ) -> list[ApplicationAccount]:
        """A count can be checked when the range has the whole life of a session. `oldest_ms`: None when something of
        the range is missing."""
        found = []
        for row in counted_sessions(owed, self._stored[SESSIONS]).orderBy("client").collect():
            unchecked = self._why_unchecked(row, end)
            if oldest_ms is None:
                unchecked = NOT_WHOLE
            elif not (start == 0 or row["created_ms"] > oldest_ms):
                unchecked = BEGAN_BEFORE
            found.append(
                ApplicationAccount(
                    client=row["client"],
                    generation=row["generation"],
                    floor=row["floor"],
                    owed=row["owed"],
                    passed=row["passed"],
                    settled=row["settled"],
                    deliveries=row["deliveries"],
                    is_checked=not unchecked,
                    unchecked=unchecked,
                )
            )
        return found

    def _stored_accounts(self) -> Iterator[StoredAccount]:
        sessions = self._stored[SESSIONS].where("has_ended = 0").select("generation", "client")
        counts = (
            self._stored[STORED]
            .join(F.broadcast(sessions), "generation")
            .groupBy("client")
            .agg(
                F.count_if(F.col("state") == 0).alias("waits"),
                F.count_if(F.col("state") > 0).alias("under_way"),
            )
        )
        for row in counts.orderBy("client").limit(ROWS_SHOWN).collect():
            yield StoredAccount(**row.asDict())

    def _queue_accounts(self, records: DataFrame) -> Iterator[QueueAccount]:
        accepted = (
            records.where("queue IS NOT NULL AND NOT is_copy")
            .groupBy("queue")
            .agg(F.count(F.lit(1)).alias("accepted"))
        )
        there = self._stored["queues"].join(accepted, "queue", "full")
        columns = (
            F.coalesce(F.col(name), F.lit(0)).alias(name) for name in ("accepted", "entries", "delayed")
        )
        for row in there.select("queue", *columns).orderBy("queue").limit(ROWS_SHOWN).collect():
            yield QueueAccount(**row.asDict())

    # Differences

    def _differences(
        self, records: DataFrame, owed: DataFrame, accounts: list[ApplicationAccount], start: int, end: int
    ) -> tuple[DataFrame, int]:
        """With how many records the lake was compared."""
        sessions = self._stored[SESSIONS].where("has_ended = 0").select("generation", "client")
        parts = [
            owed.where(F.col("outcome").isin(LOST, REJECTED)).select(
                *_told(
                    "outcome", "client", "offset", topic=F.col("topic"), note="a delivery to this application"
                )
            ),
            records.where("error IS NOT NULL").select(
                *_told(
                    F.when(F.col("error").startswith(MISSING), "missing").otherwise("unreadable"),
                    F.lit(""),
                    "offset",
                    until=F.col("offset") + F.col("span"),
                    messages=F.col("span"),
                    note="the log does not have it as it was written",
                )
            ),
            self._stored[STORED]
            .where("NOT is_sound")
            .join(F.broadcast(sessions), "generation", "left")
            .select(
                *_told(
                    F.lit("damaged"), "client", "offset", note="a delivery that is stored for this session"
                )
            ),
            self._without_body(records, start, end).select(
                *_told(F.lit("queued without its message"), "queue", "offset", note="a message of this queue")
            ),
        ]
        of_log, compared = self._of_log(records, start, end)
        parts += of_log
        together = parts[0]
        for part in parts[1:]:
            together = together.unionByName(part)
        uncounted = [
            _uncounted(one, one.floor if self.floors_are_positions else None)
            for one in accounts
            if one.is_checked and one.owed != one.passed + one.settled
        ]
        if uncounted:
            rows = [
                (one.kind, one.who, one.offset, one.until, one.topic, one.messages, one.note)
                for one in uncounted
            ]
            together = together.unionByName(self._spark.createDataFrame(rows, together.schema))
        return together, compared


class EmbeddedAudit(Audit):
    """Offsets are positions; the lake is compared with the log."""

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        places: Places,
        wanted: PastRange,
        work: Path,
    ) -> None:
        super().__init__(spark, places, wanted, work)
        self._records = KeptRecords(spark, settings, places, wanted, work)

    def _settle(self) -> Settlements:
        return read_settlements(self._places, self._work)

    def _keep(self) -> tuple[int, int, DataFrame]:
        log_end = self._at.log_end
        end = log_end if self._wanted.end is None else min(self._wanted.end, log_end)
        start = self._records.keep(end, self._at.log_first)
        return start, end, self._records.read()

    def _judged(self, records: DataFrame) -> DataFrame:
        return judged(deliveries(records), self._stored, self._at.dispatched)

    def _look_at(self, owed: DataFrame) -> None:
        """Sessions say all that has to be known of them."""

    def close(self) -> None:
        """Nothing is open."""

    def _is_whole(self, totals: dict[str, Any], start: int, end: int) -> bool:
        return bool(totals["records"] == end - start)

    def _why_unchecked(self, row: Row, end: int) -> str:
        if row["settled"] < 0:
            return UNCOUNTED
        if row["created_ms"] <= time.time() * 1_000 - _UNACKNOWLEDGED_DAYS * 86_400_000:
            return BEGAN_LONG_AGO  # reasons are not kept longer
        return "" if row["floor"] <= end else "it goes on behind the range"

    def _of_log(self, records: DataFrame, start: int, end: int) -> tuple[list[DataFrame], int]:
        holes = self._holes(records, start, end)
        parts = [] if holes is None else [holes]
        if self._records.lake_first >= NOWHERE:
            return parts, 0
        good = records.where("error IS NULL AND NOT from_lake").select("offset", "topic")
        due = good.where(F.col("offset").between(self._records.lake_first, self._lake_position() - 1))
        told = _told(F.lit("not in the lake"), F.lit(""), "offset", topic=F.col("topic"))
        parts.append(due.join(self._records.in_lake().select("offset"), "offset", "anti").select(*told))
        return parts, due.count()

    def _without_body(self, records: DataFrame, start: int, end: int) -> DataFrame:
        queued = self._stored[QUEUED].where((F.col("has_body") == 0) & (F.col("offset") < end))
        inside = queued.where(
            F.col("offset") >= max(start, self._at.log_first, log_bounds(self._places).first)
        )
        there = records.where("error IS NULL").select("offset")
        if self._wanted.has_times:
            inside = inside.where(F.lit(False))  # which of them are inside is known by their records alone
        gone = queued.where(F.col("offset") < self._at.log_first)
        return gone.unionByName(inside.join(there, "offset", "anti"))

    def _holes(self, records: DataFrame, start: int, end: int) -> DataFrame | None:
        """Offsets below the log that the lake should have and has not."""
        end = min(end, self._at.log_first)
        if start >= end or self._wanted.has_times:
            return None
        kept = records.where(F.col("from_lake")).select("offset")
        edges = kept.unionByName(self._spark.range(end, end + 1).select(F.col("id").alias("offset")))
        before = F.lag("offset", 1, start - 1).over(Window.orderBy("offset"))
        holes = edges.select("offset", before.alias("before")).where("offset > before + 1")
        return holes.select(
            *_told(
                F.lit("missing"),
                F.lit(""),
                F.col("before") + 1,
                until=F.col("offset"),
                messages=F.col("offset") - F.col("before") - 1,
                note="neither the log nor the lake has it",
            )
        )

    def _lake_position(self) -> int:
        """Everything before it is in the lake, says its ledger."""
        connection = connect_readonly(self._places.lake_ledger)
        if connection is None:
            return 0
        try:
            row = connection.execute("SELECT next_offset FROM progress WHERE reader = 'lake'").fetchone()
        finally:
            connection.close()
        return int(row[0]) if row else 0


def _totals(records: DataFrame) -> dict[str, Any]:
    is_own = ~F.col("is_copy")
    row = records.agg(
        F.count_if(F.col("error").isNull()).alias("good"),
        F.count_if(F.col("error").isNull() & is_own).alias("records"),
        F.coalesce(F.sum(F.when(is_own, F.col("payload_bytes"))), F.lit(0)).alias("payload_bytes"),
        F.count_if(F.col("from_lake")).alias("from_lake"),
        F.min(F.unix_millis("accepted_at")).alias("oldest"),
        F.max(F.unix_millis("accepted_at")).alias("newest"),
    ).first()
    assert row is not None
    found: dict[str, Any] = row.asDict()
    return found


def _uncounted(one: ApplicationAccount, until: int | None) -> Difference:
    missing = one.owed - one.passed - one.settled
    if missing > 0:
        note = f"of {one.owed:,} below offset {one.floor:,} so many were neither sent nor passed over"
    else:
        note = f"so many more than the {one.owed:,} that are known were sent below offset {one.floor:,}"
    return Difference(kind="not accounted for", who=one.client, until=until, messages=abs(missing), note=note)


def _told(kind: Any, who: Any, offset: Any, **other: Any) -> list[Any]:
    """The columns of `Difference`."""

    def column(given: Any) -> Any:
        return F.col(given) if isinstance(given, str) else given

    until, topic, messages = (other.get(name, F.lit(None)) for name in ("until", "topic", "messages"))
    return [
        column(kind).cast("string").alias("kind"),
        F.coalesce(column(who).cast("string"), F.lit("")).alias("who"),
        column(offset).cast("long").alias("offset"),
        until.cast("long").alias("until"),
        topic.cast("string").alias("topic"),
        F.coalesce(messages.cast("long"), F.lit(1).cast("long")).alias("messages"),
        F.lit(other.get("note", "")).alias("note"),
    ]
