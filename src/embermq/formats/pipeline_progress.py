"""How far a query of the pipeline is, as it stands in Kafka: the layout of `<prefix>.pipeline.progress`.

A compacted topic. Key "query;partition", value the next offset in decimal digits, header `log` the id of the topic that
is the message log: offsets of another one mean nothing, and one that was made anew has another id.

A driver without a broker's data directory says here how it is, too: key `driver`, value the JSON of `status.json`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

LOG_HEADER = "log"
REPORT_KEY = b"driver"
TOPIC_SETTINGS: dict[str, str] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    "message.timestamp.type": "LogAppendTime",
}
"""Small segments, since the last one is never compacted: whoever starts reads all that is there. Kafka's own time,
since it refuses records of a clock that is far ahead."""


class Progress(Struct, frozen=True):
    """Every record of a partition below `next_offset` has had a query's effect."""

    query: str
    partition: int
    next_offset: int


def progress_topic(prefix: str) -> str:
    """The name of the topic that holds the progress of the queries."""
    return f"{prefix}.pipeline.progress"


def progress_key(query: str, partition: int) -> bytes:
    """Of one query and one partition of the message log."""
    return f"{query};{partition}".encode()


def read_progress(
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]] | None,
    log_id: str,
) -> Progress | None:
    """What a record says; None for one of another message log, and for what is none of ours."""
    query, _, partition = (key or b"").decode(errors="replace").rpartition(";")
    if not query or not _is_number(partition.encode()) or value is None or not _is_number(value):
        return None
    if any(name == LOG_HEADER and told != log_id.encode() for name, told in headers or ()):
        return None
    return Progress(query, int(partition), int(value))


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= 19
