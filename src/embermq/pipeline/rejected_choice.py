"""Rejected records that can be put back: written as messages of a replay. No Spark in here.

A record that is rejected stays with its bytes, in `applications.db` or in `<prefix>.msg.rejected`. What this version of
EmberMQ understands of them can go out after all, to the applications that its stamps name or to wherever it is wanted.
"""

import time
from collections.abc import Callable, Container, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from embermq.formats.application_logs import ApplicationLogNames
from embermq.formats.kafka_record import decode_kafka_record, read_source
from embermq.formats.log_record import FIELD_RULES, LogRecord, RecordError, decode_record
from embermq.model.message import Message
from embermq.model.position import offset_of, partition_of
from embermq.mqtt.value import replace
from embermq.mqtt.wire.properties import Properties
from embermq.pipeline.jobs.replay_feed import LOG_PART
from embermq.pipeline.places import Places
from embermq.pipeline.rejected import alike
from embermq.pipeline.sources.log_file import BrokerFile, embedded_log_id

if TYPE_CHECKING:  # Kafka's client is not there in every installation
    from embermq.pipeline.sources.kafka_positions import KafkaPositions

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
        ("rules", pa.string()),
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


class Rejected(Struct, frozen=True):
    """One record: its position, why it was rejected, and what reads it, None when nothing of it is left."""

    position: int
    reason: str
    read: Callable[[], LogRecord] | None


class RejectedRecords(Protocol):
    """All that dispatch has rejected."""

    @property
    def log_id(self) -> int:
        """Which log the positions are of."""
        ...

    def log_of(self, client: str) -> str:
        """What stamps have for the application log of this client."""
        ...

    def __iter__(self) -> Iterator[Rejected]: ...


class RejectedInFiles:
    """Of the embedded log, in its order."""

    def __init__(self, places: Places) -> None:
        self._places = places

    @property
    def log_id(self) -> int:
        return embedded_log_id(self._places.broker)

    def log_of(self, client: str) -> str:
        return client

    def __iter__(self) -> Iterator[Rejected]:
        """Page by page, so that no read holds up dispatch, which writes there."""
        with closing(BrokerFile(self._places.applications)) as file:
            after = -1
            while rows := file.query(_ROWS, (after, PAGE)):
                for offset, reason, body in rows:
                    yield Rejected(offset, reason, partial(decode_record, body) if body else None)
                after = rows[-1][0]


class RejectedInKafka:
    """Of a log in Kafka, in the order in which they were rejected. A dispatch that was killed may have repeated some.
    Raises KafkaLogError."""

    def __init__(self, positions: "KafkaPositions") -> None:
        self._positions = positions
        self._root = positions.kafka.application_prefix

    @property
    def log_id(self) -> int:
        return self._positions.archive_id()

    def log_of(self, client: str) -> str:
        return ApplicationLogNames(self._positions.kafka.prefix).client_log(client).removeprefix(self._root)

    def __iter__(self) -> Iterator[Rejected]:
        topic = self._positions.kafka.rejected_topic
        if topic not in self._positions.topics():
            return
        for number, bounds in self._positions.bounds(topic).items():
            for one in self._positions.records(topic, number, bounds.first, bounds.end):
                headers: Any = one.headers() or ()
                reason = (dict(headers).get("r") or b"").decode(errors="replace")
                try:
                    position = read_source(headers)
                except RecordError:
                    continue  # nobody can tell where it was
                own = [header for header in headers if header[0] != "r"]
                read = partial(self._read, one.key(), one.value(), own)
                yield Rejected(position, reason, None if one.value() is None else read)

    def _read(self, key: Any, value: Any, headers: Any) -> LogRecord:
        record = decode_kafka_record(key, value, headers).record
        stamps = tuple(replace(one, log=one.log.removeprefix(self._root)) for one in record.stamps)
        return replace(record, stamps=stamps)


def owed_clients(records: RejectedRecords, reason: str) -> list[str]:
    """Client ids whose application logs readable ones among them were for, in order; on Kafka the SHA-256 of those that
    stand in the name of their log so."""
    readable = _readable(records, reason, RejectedChoice())
    return sorted({stamp.log for _, record in readable for stamp in record.stamps})


def choose_rejected(
    records: RejectedRecords, reason: str, client: str, done: Container[int], into: Path | None
) -> RejectedChoice:
    """Write what is to be put back into the folder `into`; None: count it alone. `reason` is a part of theirs, as it
    stands or with N for its numbers. With a `client` it is what was for its application log; `done` has positions
    that are left out."""
    found, log, seen = RejectedChoice(), records.log_of(client) if client else "", set[int]()
    now_ms = time.time_ns() // 1_000_000
    writer: pq.ParquetWriter | None = None
    if into is not None:
        (into / LOG_PART).mkdir(parents=True)
        writer = pq.ParquetWriter(into / LOG_PART / "part-0.parquet", _SCHEMA)
    rows: list[dict[str, Any]] = []
    try:
        for position, record in _readable(records, reason, found):
            if client and all(stamp.log != log for stamp in record.stamps):
                continue
            if position in seen:
                continue
            seen.add(position)
            if position in done:
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
            rows.append(_row(position, message, _rules(record)))
            if len(rows) >= PAGE:
                writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))
                rows.clear()
        if writer is not None and rows:
            writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))
    finally:
        if writer is not None:
            writer.close()
    return found


def _readable(
    records: RejectedRecords, reason: str, found: RejectedChoice
) -> Iterator[tuple[int, LogRecord]]:
    """In their order; the others are counted."""
    for one in records:
        if reason not in one.reason and reason not in alike(one.reason):
            continue
        found.rejected += 1
        if one.read is None:
            found.missing += 1
            continue
        try:
            yield one.position, one.read()
        except RecordError:
            found.unreadable += 1


def _rules(record: LogRecord) -> str | None:
    """The rules that it comes of."""
    return next((value.decode() for tag, value in record.unknown_fields if tag == FIELD_RULES), None)


def _row(position: int, message: Message, rules: str | None) -> dict[str, Any]:
    said = message.properties or _NO_PROPERTIES
    return {
        "partition": partition_of(position),
        "offset": offset_of(position),
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
        "rules": rules,
        "accepted_ms": message.accepted_ms,
        "expires_ms": message.expires_ms or None,
    }
