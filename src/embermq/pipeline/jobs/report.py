"""report: what went through the broker, from log and lake, latencies from the windows of the query `traffic`, dead
letters from their queues.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from embermq.formats.entry_rest import decode_rest
from embermq.model.client_type import ClientType
from embermq.pipeline.batch import batch_session, spark_failures
from embermq.pipeline.errors import AuditError
from embermq.pipeline.jobs.kept_records import KeptRecords, iso_date
from embermq.pipeline.jobs.past_range import PartitionRange, PastRange
from embermq.pipeline.jobs.past_records import has_lake, log_bounds
from embermq.pipeline.jobs.report_values import (
    DeadLetters,
    HourOfTraffic,
    Latency,
    Sizes,
    Talker,
    TrafficReport,
)
from embermq.pipeline.places import Places
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.settings import (
    DriverSettings,
    PipelineSettings,
    has_traffic_table,
    slot_of_pipeline,
)
from embermq.pipeline.sinks.delta_table import DeltaTable
from embermq.pipeline.sinks.lake import lake_place
from embermq.pipeline.sinks.traffic_table import traffic_place
from embermq.pipeline.sources.log_file import BrokerFile
from embermq.pipeline.sources.message_log import MessageLogSource
from embermq.pipeline.transforms.report import by_hour, by_publisher, by_receiver, by_size, sizes_by_root
from embermq.pipeline.transforms.traffic import latency_windows

STEPS = 3
"""Behind the reading of each log."""
ROWS_SHOWN = 10_000
TALKERS = 20
ROOTS = 100
Progress = Callable[[int, int], None]
_LATENCIES = """
SELECT date(window_ms / 1000, 'unixepoch') AS day, client_type, deliveries, p50_us, p99_us, max_us FROM latency_window
WHERE window_ms >= ? AND window_ms < ? ORDER BY day, client_type, p50_us
"""
_LETTERS = """
SELECT rest FROM queue_entry JOIN queue ON queue.generation = queue_entry.queue
WHERE queue.name LIKE 'dlq/%' AND rest IS NOT NULL
"""


def run_report(
    settings: Sequence[PipelineSettings],
    places: Places,
    wanted: PastRange,
    *,
    letters: Sequence[Path],
    into: Path | None,
    tasks: int,
    progress: Progress,
) -> TrafficReport:
    """Of several logs, by their settings, as of one. Write tables into the folder `into`; None: none. `letters` are
    each a broker.db with dead letters. Raises AuditError, PipelineError."""
    began = time.monotonic()
    with (
        spark_failures(lambda reason: AuditError(f"the messages cannot be read: {reason}")),
        tempfile.TemporaryDirectory(prefix="embermq-") as work,
        batch_session(settings[0], tasks, Path(work), lake=_reads_tables(settings[0], places)) as spark,
    ):
        steps = len(settings) + STEPS
        ranges: tuple[PartitionRange, ...] = ()
        kept: list[DataFrame] = []
        for step, each in enumerate(settings, 1):
            found_in, records = _kept(spark, each, places, wanted, Path(work) / f"report-{step}")
            ranges, kept = (*ranges, *found_in), [*kept, records]
            progress(step, steps)
        together, told = reduce(DataFrame.unionByName, kept), partial(_told, progress, steps)
        latencies = partial(_latencies, partial(_windows, spark, settings, places))
        found = _look(together, latencies, letters, wanted, into=into, progress=told)
    return TrafficReport(ranges=ranges, seconds=round(time.monotonic() - began, 3), **found)


def _kept(
    spark: SparkSession, settings: PipelineSettings, places: Places, wanted: PastRange, work: Path
) -> tuple[tuple[PartitionRange, ...], DataFrame]:
    """Whichever log it is."""
    if isinstance(settings, DriverSettings) and settings.kafka is not None:
        from embermq.pipeline.jobs.kafka_kept_records import KafkaKeptRecords
        from embermq.pipeline.jobs.kafka_past_messages import KafkaPastMessages  # not in every installation

        uses_lake = has_lake(settings, places) and DeltaTable(spark, lake_place(settings, places)).exists()
        with closing(KafkaPastMessages(settings, settings.kafka, places)) as past:
            in_kafka = KafkaKeptRecords(spark, past, wanted=wanted, work=work, has_lake=uses_lake)
            return in_kafka.keep(), in_kafka.read()
    spark.dataSource.register(MessageLogSource)
    bounds = log_bounds(places)
    kept = KeptRecords(spark, settings, places, wanted, work)
    end = bounds.end if wanted.end is None else min(wanted.end, bounds.end)
    start = kept.keep(end, bounds.first)
    return (PartitionRange(partition=PARTITION, start=start, end=end),), kept.read()


def _told(progress: Progress, steps: int, done: int) -> None:
    progress(steps - STEPS + done, steps)


def _look(
    records: DataFrame,
    latencies_in: Callable[[int, int], Iterator[Latency]],
    letters_files: Sequence[Path],
    wanted: PastRange,
    *,
    into: Path | None,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    good = records.where("error IS NULL")
    # Copies count with the slot that has accepted them, what applications get of them with theirs.
    records = records.where("NOT is_copy")
    own = records.where("error IS NULL")
    tables = {
        "traffic": by_hour(own),
        "publishers": by_publisher(own),
        "receivers": by_receiver(good),
        "sizes": by_size(own),
    }
    if into is not None:
        for name, table in tables.items():
            table.coalesce(1).write.option("compression", "zstd").parquet(str(into / name))
    progress(1)
    hours = (
        tables["traffic"]
        .withColumn("hour", F.date_format("hour", "yyyy-MM-dd HH:mm"))
        .orderBy("hour", "root")
    )
    totals = records.agg(
        F.count_if(F.col("error").isNull()).alias("messages"),
        F.coalesce(F.sum("payload_bytes"), F.lit(0)).alias("payload_bytes"),
        F.coalesce(F.sum(F.when(F.col("error").isNotNull(), F.col("span"))), F.lit(0)).alias("unreadable"),
        F.count_distinct("publisher").alias("publishers_count"),
        F.min(F.unix_millis("accepted_at")).alias("oldest"),
        F.max(F.unix_millis("accepted_at")).alias("newest"),
    ).first()
    assert totals is not None
    oldest_ms, newest_ms = totals["oldest"], totals["newest"]
    found = {
        **{name: totals[name] for name in ("messages", "payload_bytes", "unreadable", "publishers_count")},
        "oldest": iso_date(oldest_ms),
        "newest": iso_date(newest_ms),
        "hours": tuple(HourOfTraffic(**row.asDict()) for row in hours.limit(ROWS_SHOWN).collect()),
        "publishers": tuple(_talkers(tables["publishers"], "publisher")),
        "receivers": tuple(_talkers(tables["receivers"], "client")),
        "roots": tuple(
            Sizes(**row.asDict())
            for row in sizes_by_root(own).orderBy(F.desc("messages")).limit(ROOTS).collect()
        ),
        "sizes": {
            row["bytes_max"]: row["messages"] for row in tables["sizes"].orderBy("bytes_max").collect()
        },
    }
    progress(2)
    from_ms = wanted.start_ms if wanted.start_ms is not None else oldest_ms or 0
    to_ms = wanted.end_ms if wanted.end_ms is not None else (newest_ms or 0) + 1
    latencies, letters = tuple(latencies_in(from_ms, to_ms)), tuple(_dead_letters(letters_files))
    if into is not None:
        _write(into, "latencies", latencies, Latency)
        _write(into, "dead_letters", letters, DeadLetters)
    progress(STEPS)
    return found | {"latencies": latencies, "dead_letters": letters}


def _talkers(table: DataFrame, name: str) -> Iterator[Talker]:
    """Those with the most messages."""
    together = table.groupBy(name).agg(
        F.sum("messages").alias("messages"), F.sum("payload_bytes").alias("payload_bytes")
    )
    for row in together.orderBy(F.desc("messages"), name).limit(TALKERS).collect():
        yield Talker(client=row[name], messages=row["messages"], payload_bytes=row["payload_bytes"])


def _reads_tables(settings: PipelineSettings, places: Places) -> bool:
    return has_lake(settings, places) or has_traffic_table(settings)


def _windows(
    spark: SparkSession, settings: Sequence[PipelineSettings], places: Places, from_ms: int, to_ms: int
) -> Sequence[Sequence[Any]]:
    """Samples, median, 99th percentile and longest latency of each window, with its day and type of client in front,
    ordered by these and the median: of the slots' table, where they have one."""
    if not has_traffic_table(settings[0]):
        with closing(BrokerFile(places.traffic)) as file:
            return file.query(_LATENCIES, (from_ms, to_ms)) or []
    table = DeltaTable(spark, traffic_place(settings[0], places))
    if not table.exists():
        return []
    slots = [slot_of_pipeline(one) for one in settings]
    return latency_windows(table.read().where(F.col("slot").isin(slots)), from_ms, to_ms).collect()


def _latencies(
    windows_in: Callable[[int, int], Sequence[Sequence[Any]]], from_ms: int, to_ms: int
) -> Iterator[Latency]:
    """By day and type of client: quantiles of windows do not add up, so it is the median window, weighted by its
    samples, and the worst one."""
    days: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for day, kind, *figures in windows_in(from_ms, to_ms):
        days.setdefault((day, kind), []).append(tuple(figures))
    for (day, kind), windows in days.items():
        samples = sum(window[0] for window in windows)
        seen, middle = 0, windows[-1]
        for window in windows:
            seen += window[0]
            if 2 * seen >= samples:
                middle = window
                break
        yield Latency(
            date=day,
            clients=ClientType(kind).name,
            samples=samples,
            p50_us=middle[1],
            worst_p99_us=max(window[2] for window in windows),
            max_us=max(window[3] for window in windows),
        )


def _dead_letters(files: Sequence[Path]) -> Iterator[DeadLetters]:
    """Those that are there now."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for letters in files:
        with closing(BrokerFile(letters)) as file:
            for (rest,) in file.query(_LETTERS) or ():
                letter = decode_rest(rest).dead_letter
                if letter is not None:
                    day = datetime.fromtimestamp(letter.moved_ms / 1_000, UTC).date().isoformat()
                    counts[day, letter.queue, letter.group, letter.reason] += 1
    for (day, queue, group, reason), count in sorted(counts.items()):
        yield DeadLetters(date=day, queue=queue, group=group, reason=reason, letters=count)


def _write(into: Path, name: str, rows: tuple[Any, ...], kind: type[Any]) -> None:
    """In a folder, as Spark does."""
    (into / name).mkdir()
    types = {"int": pa.int64(), "str": pa.string()}
    schema = pa.schema(
        [(field, types[kind.__annotations__[field].__name__]) for field in kind.__struct_fields__]
    )
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in schema]
    pq.write_table(pa.table(columns, schema), into / name / "part.parquet", compression="zstd")
