"""Records that a query could not use, and why: those of dispatch, which keeps them. No Spark in here."""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from msgspec import Struct

from embermq.pipeline.places import Places
from embermq.pipeline.sources.log_file import connect_readonly

if TYPE_CHECKING:  # Kafka's client is not there in every installation
    from embermq.pipeline.sources.kafka_positions import KafkaPositions

_NUMBER = re.compile(r"\d+")
_NEWEST = """
SELECT "offset", reason, length(body), rejected_ms FROM rejected ORDER BY rejected_ms DESC, "offset" DESC LIMIT ?
"""


class RejectedRecord(Struct, frozen=True, kw_only=True):
    """One record by its position in the message log. `topic` is "" where nobody can tell; `bytes` are those of the raw
    record in the embedded log, of the payload in Kafka; 0 for a range that is gone from the log."""

    partition: int
    offset: int
    reason: str
    rejected_ms: int
    topic: str = ""
    bytes: int = 0


class RejectedReason(Struct, frozen=True, kw_only=True):
    """Records with one reason, whatever numbers stand in it; positions as "partition:offset"."""

    reason: str
    records: int
    bytes: int
    first: str
    last: str
    last_ms: int


def alike(reason: str) -> str:
    """The reason with N for each of its numbers."""
    return _NUMBER.sub("N", reason)


def by_reason(records: Iterable[RejectedRecord]) -> list[RejectedReason]:
    """Count rejected records by reason, the most frequent first."""
    groups: dict[str, list[RejectedRecord]] = {}
    for record in records:
        groups.setdefault(alike(record.reason), []).append(record)
    found: list[RejectedReason] = []
    for reason, group in groups.items():
        ordered = sorted(group, key=lambda one: (one.partition, one.offset))
        first, last = (f"{one.partition}:{one.offset}" for one in (ordered[0], ordered[-1]))
        found.append(
            RejectedReason(
                reason=reason if len(group) > 1 else group[0].reason,
                records=len(group),
                bytes=sum(one.bytes for one in group),
                first=first,
                last=last,
                last_ms=max(one.rejected_ms for one in group),
            )
        )
    return sorted(found, key=lambda one: (-one.records, one.reason))


def rejected_in_files(places: Places, limit: int) -> list[RejectedRecord]:
    """The newest of the embedded log, the oldest of them first."""
    connection = connect_readonly(places.applications)
    if connection is None:
        return []
    with closing(connection):
        is_there = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'rejected'").fetchone()
        rows = connection.execute(_NEWEST, (limit,)).fetchall() if is_there else []
    return [
        RejectedRecord(partition=0, offset=offset, reason=reason, rejected_ms=at_ms, bytes=size)
        for offset, reason, size, at_ms in reversed(rows)
    ]


def rejected_in_kafka(positions: "KafkaPositions", limit: int) -> Iterator[RejectedRecord]:
    """The newest of each partition of `<prefix>.msg.rejected`, at most so many. Raises KafkaLogError."""
    for record in positions.newest(positions.kafka.rejected_topic, limit):
        headers = dict(record.headers() or ())
        partition, _, offset = _text(headers.get("s")).partition(";")
        yield RejectedRecord(
            partition=int(partition) if partition.isdigit() else -1,
            offset=int(offset) if offset.isdigit() else -1,
            reason=_text(headers.get("r")),
            rejected_ms=int(record.timestamp()[1]),
            topic=_text(record.key()),
            bytes=len(record.value() or b""),
        )


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
