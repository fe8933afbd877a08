"""Rejected records of the embedded log that can be put back: written as messages of a replay. No Spark in here.

A record that is rejected stays in `applications.db` with its bytes. What this version of EmberMQ understands of them
can go out after all, to the applications that its stamps name or to wherever it is wanted.
"""

import time
from collections.abc import Container, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from embermq.formats.log_record import LogRecord, RecordError, decode_record
from embermq.model.message import Message
from embermq.mqtt.wire.properties import Properties
from embermq.pipeline.jobs.replay_feed import LOG_PART
from embermq.pipeline.places import Places
from embermq.pipeline.rejected import alike
from embermq.pipeline.sources.log_file import BrokerFile

PAGE = 100
"""Records that are read, or written, at a time: each may be as large as a packet."""
_NO_PROPERTIES = Properties()
_ROWS = """
SELECT "offset", reason, body FROM rejected WHERE "offset" > ? ORDER BY "offset" LIMIT ?
"""
_PAIR = pa.struct([("name", pa.string()), ("value", pa.string())])
_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("topic", pa.string()),
        ("qos", pa.int8()),
        ("publisher", pa.string()),
        ("payload_format_indicator", pa.int8()),
        ("message_expiry_interval", pa.int64()),
        ("content_type", pa.string()),
        ("response_topic", pa.string()),
        ("correlation_data", pa.binary()),
        ("user_properties", pa.list_(_PAIR)),
        ("payload", pa.binary()),
        ("accepted_ms", pa.int64()),
        ("expires_ms", pa.int64()),
    ]
)


class RejectedChoice(Struct, kw_only=True):
    """What was found among `rejected` records with the reason that is wanted: `chosen` ones, those that were put back
    `before`, that have `expired`, that are `unreadable` still, and ranges that are `missing`: gone from the log
    before they were read."""

    rejected: int = 0
    chosen: int = 0
    payload_bytes: int = 0
    before: int = 0
    expired: int = 0
    unreadable: int = 0
    missing: int = 0


def owed_clients(places: Places, reason: str) -> list[str]:
    """Client ids whose application logs readable ones among them were for, in order."""
    readable = _readable(places, reason, RejectedChoice())
    return sorted({stamp.log for _, record in readable for stamp in record.stamps})


def choose_rejected(
    places: Places, reason: str, client: str, done: Container[int], into: Path | None
) -> RejectedChoice:
    """Write what is to be put back into the folder `into`; None: count it alone. `reason` is a part of theirs, as it
    stands or with N for its numbers. With a `client` it is what was for its application log; `done` has offsets that
    are left out."""
    found = RejectedChoice()
    now_ms = time.time_ns() // 1_000_000
    writer: pq.ParquetWriter | None = None
    if into is not None:
        (into / LOG_PART).mkdir(parents=True)
        writer = pq.ParquetWriter(into / LOG_PART / "part-0.parquet", _SCHEMA)
    rows: list[dict[str, Any]] = []
    try:
        for offset, record in _readable(places, reason, found):
            if client and all(stamp.log != client for stamp in record.stamps):
                continue
            if offset in done:
                found.before += 1
                continue
            message = record.message
            if message.expires_ms and message.expires_ms <= now_ms:
                found.expired += 1
                continue
            found.chosen += 1
            found.payload_bytes += len(message.payload)
            if writer is None:
                continue
            rows.append(_row(offset, message))
            if len(rows) >= PAGE:
                writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))
                rows.clear()
        if writer is not None and rows:
            writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))
    finally:
        if writer is not None:
            writer.close()
    return found


def _readable(places: Places, reason: str, found: RejectedChoice) -> Iterator[tuple[int, LogRecord]]:
    """In the order of the log; the others are counted."""
    for offset, why, body in _rejected(places):
        if reason not in why and reason not in alike(why):
            continue
        found.rejected += 1
        if not body:
            found.missing += 1
            continue
        try:
            yield offset, decode_record(body)
        except RecordError:
            found.unreadable += 1


def _rejected(places: Places) -> Iterator[tuple[int, str, bytes]]:
    """Page by page, so that no read holds up dispatch, which writes there."""
    with closing(BrokerFile(places.applications)) as file:
        after = -1
        while rows := file.query(_ROWS, (after, PAGE)):
            yield from rows
            after = rows[-1][0]


def _row(offset: int, message: Message) -> dict[str, Any]:
    said = message.properties or _NO_PROPERTIES
    return {
        "partition": 0,
        "offset": offset,
        "topic": message.topic,
        "qos": message.qos,
        "publisher": message.publisher,
        "payload_format_indicator": said.payload_format_indicator,
        "message_expiry_interval": said.message_expiry_interval,
        "content_type": said.content_type,
        "response_topic": said.response_topic,
        "correlation_data": said.correlation_data,
        "user_properties": [{"name": name, "value": value} for name, value in said.user_properties],
        "payload": message.payload,
        "accepted_ms": message.accepted_ms,
        "expires_ms": message.expires_ms or None,
    }
