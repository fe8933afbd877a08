"""What the audits of all logs have found, as one report."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from embermq.pipeline.jobs.audit_values import (
    AcceptedByRoot,
    ApplicationAccount,
    AuditedLog,
    AuditReport,
    Difference,
    OutcomeByDay,
    QueueAccount,
    StoredAccount,
)
from embermq.pipeline.jobs.kept_records import iso_date

DIFFERENCES_SHOWN = 1_000
"""In the report itself; its Parquet file has all of them."""
ROWS_SHOWN = 10_000
_SUMMED = ("records", "payload_bytes", "from_lake", "lake_compared")


class LogAudited(Struct, frozen=True, kw_only=True):
    """What was found in one log; the tables are in files of the job."""

    log: AuditedLog
    totals: dict[str, Any]
    applications: list[ApplicationAccount]
    stored: list[StoredAccount]
    queues: list[QueueAccount]
    not_checked: tuple[str, ...]
    records: DataFrame
    owed: DataFrame
    differences: DataFrame


class AuditFound(Struct, frozen=True):
    """What a page shows besides the report."""

    report: AuditReport
    traffic: tuple[AcceptedByRoot, ...]
    outcomes: tuple[OutcomeByDay, ...]


def summed(logs: Sequence[LogAudited], into: Path | None) -> AuditFound:
    """A message is accepted in one log, a session and a queue are of one slot: so all adds up. Write tables into the
    folder `into`; None: none."""
    records, owed, found = (
        reduce(DataFrame.unionByName, (getattr(one, name) for one in logs))
        for name in ("records", "owed", "differences")
    )
    outcomes = owed.groupBy("date", "root", "client", "outcome").agg(
        F.count(F.lit(1)).alias("messages"), F.sum("payload_bytes").alias("payload_bytes")
    )
    traffic = (
        records.where("error IS NULL AND NOT is_copy")  # those are accepted where they come from
        .groupBy("date", "root")
        .agg(F.count(F.lit(1)).alias("messages"), F.sum("payload_bytes").alias("payload_bytes"))
    )
    if into is not None:
        for name, table in {"deliveries": outcomes, "accepted": traffic, "differences": found}.items():
            table.coalesce(1).write.mode("overwrite").option("compression", "zstd").parquet(str(into / name))
    by_outcome = owed.groupBy("outcome").agg(F.count("*").alias("n"))
    shown = found.orderBy("slot", "offset", "kind").limit(DIFFERENCES_SHOWN).collect()
    report = AuditReport(
        logs=tuple(one.log for one in logs),
        oldest=iso_date(min(_times(logs, "oldest"), default=None)),
        newest=iso_date(max(_times(logs, "newest"), default=None)),
        **{name: sum(one.totals[name] for one in logs) for name in _SUMMED},
        deliveries={row["outcome"]: row["n"] for row in by_outcome.collect()},
        applications=tuple(sorted((each for one in logs for each in one.applications), key=_by_client)),
        stored=tuple(sorted((each for one in logs for each in one.stored), key=_by_client)),
        queues=tuple(_queues(logs)),
        differences_count=found.count(),
        differences=tuple(Difference(**row.asDict()) for row in shown),
        not_checked=tuple(_not_checked(logs)),
    )
    per_client = outcomes.groupBy("date", "client", "outcome").agg(F.sum("messages").alias("messages"))
    return AuditFound(
        report,
        tuple(
            AcceptedByRoot(**_named(row))
            for row in traffic.orderBy("date", "root").limit(ROWS_SHOWN).collect()
        ),
        tuple(OutcomeByDay(**_named(row)) for row in per_client.orderBy("date").limit(ROWS_SHOWN).collect()),
    )


def _queues(logs: Sequence[LogAudited]) -> Iterator[QueueAccount]:
    """What is of QoS 0, and wills, may have been accepted by another slot than the queue's."""
    names = ("accepted", "entries", "delayed")
    counts = {name: Counter[str]() for name in names}
    for each in (each for one in logs for each in one.queues):
        for name in names:
            counts[name][each.queue] += getattr(each, name)
    for queue in sorted(counts["accepted"]):
        yield QueueAccount(queue=queue, **{name: counts[name][queue] for name in names})


def _not_checked(logs: Sequence[LogAudited]) -> Iterator[str]:
    """What is so in all logs once."""
    told = Counter(text for one in logs for text in one.not_checked)
    for one in logs:
        for text in one.not_checked:
            if told[text] < len(logs):
                yield f"slot {one.log.slot}: {text}"
    yield from (text for text, count in told.items() if count == len(logs))


def _times(logs: Sequence[LogAudited], name: str) -> Iterator[int]:
    return (one.totals[name] for one in logs if one.totals[name] is not None)


def _by_client(account: ApplicationAccount | StoredAccount) -> str:
    return account.client


def _named(row: Any) -> dict[str, Any]:
    found: dict[str, Any] = row.asDict()
    return found | {"date": str(found["date"])}
