"""Records of the log as Arrow batches: the bulk of the Python work of the pipeline, so it is columnar throughout."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from struct import error as LayoutError

import pyarrow as pa

from embermq.formats.log_record import (
    LogRecord,
    RecordError,
    Stamp,
    decode_record,
    decode_route,
    decode_stamps,
    iter_frames,
)
from embermq.mqtt.wire.errors import ProtocolError
from embermq.mqtt.wire.properties import Properties, PropertyPlace, decode_properties
from embermq.pipeline.schema import MISSING
from embermq.pipeline.sources.log_file import LogFile
from embermq.queues.names import QUEUE_PREFIX

ROWS_PER_ARROW_BATCH = 10_000
BYTES_PER_ARROW_BATCH = 8 * 1024 * 1024
_CACHED_FIELDS = 4_096
_NO_PROPERTIES = Properties()
_YEAR_10000_MS = 253_402_300_800_000


class BrokenRow:
    """Offsets that gave no record: one that cannot be decoded, or a range that is not in the log any more."""

    __slots__ = ("body", "offset", "reason", "span")

    def __init__(self, offset: int, span: int, reason: str, body: bytes) -> None:
        self.offset = offset
        self.span = span
        self.reason = reason
        self.body = body


Frame = tuple[int, bytes]
"""(offset, encoded record)."""


def read_frames(log: LogFile, start: int, end: int) -> Iterator[Frame | BrokenRow]:
    """Every offset of [start, end) once and in order: as an encoded record, or inside a BrokenRow."""
    expected = start
    for batch in log.batches(start, end):
        if batch.base > expected:
            yield _missing(expected, batch.base)
            expected = batch.base
        stop = min(end, batch.base + batch.count)
        offset = batch.base
        try:
            for frame in iter_frames(batch.body):
                if offset >= stop:
                    break
                if offset >= expected:
                    yield offset, frame
                    expected = offset + 1
                offset += 1
        except RecordError as error:
            if expected < stop:
                yield BrokenRow(expected, stop - expected, str(error), batch.body)
                expected = stop
        if expected < stop:
            reason = f"the batch at {batch.base} says {batch.count} records and holds {offset - batch.base}"
            yield BrokenRow(expected, stop - expected, reason, batch.body)
            expected = stop
    if expected < end:
        yield _missing(expected, end)


def _missing(start: int, end: int) -> BrokenRow:
    return BrokenRow(
        start, end - start, f"{MISSING} {start} to {end - 1}: removed from the log before they were read", b""
    )


def read_rows(log: LogFile, start: int, end: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """[start, end) as Arrow batches of `schema`, bounded in rows and bytes. The columns asked for decide the work."""
    rows = rows_for(schema)
    size = 0
    for item in read_frames(log, start, end):
        size += rows.add(item)
        if len(rows) >= ROWS_PER_ARROW_BATCH or size >= BYTES_PER_ARROW_BATCH:
            yield rows.take()
            size = 0
    if len(rows):
        yield rows.take()


def rows_for(schema: pa.Schema) -> "_Rows":
    """What collects the columns of `schema`."""
    return RecordRows(schema) if "payload" in schema.names else _HeadRows(schema)


def queue_of(topic: str) -> str | None:
    """The durable queue of a record with this topic; None when it is in none."""
    return topic[len(QUEUE_PREFIX) :] if topic.startswith(QUEUE_PREFIX) else None


class _Rows:
    """Collects good and broken rows in offset order; a subclass decodes and builds the record columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._clear()

    def _clear(self) -> None:
        self.offsets: list[int] = []
        self.spans: list[int] = []
        self.broken: dict[int, BrokenRow] = {}

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, item: Frame | BrokenRow) -> int:
        """Take one; returns the bytes it holds in memory."""
        if isinstance(item, BrokenRow):
            return self._add_broken(item)
        offset, frame = item
        try:
            self.decode(frame)
        except RecordError as error:
            return self._add_broken(BrokenRow(offset, 1, str(error), frame))
        self.place(offset)
        return len(frame)

    def place(self, offset: int) -> None:
        """Say where the record is that was decoded last."""
        self.offsets.append(offset)
        self.spans.append(1)

    def _add_broken(self, row: BrokenRow) -> int:
        self.broken[len(self.offsets)] = row
        self.offsets.append(row.offset)
        self.spans.append(row.span)
        self.add_empty()
        return len(row.body)

    def decode(self, frame: bytes) -> None:
        """Append one record to the columns, or raise RecordError and append nothing."""
        raise NotImplementedError

    def add_empty(self) -> None:
        """Append a row without a record."""
        raise NotImplementedError

    def columns(self) -> dict[str, "pa.Array | list[object]"]:
        """The record columns that the schema may ask for."""
        raise NotImplementedError

    def take(self) -> pa.RecordBatch:
        """The rows so far as one Arrow batch; starts anew."""
        count = len(self.offsets)
        broken = self.broken
        found = self.columns()
        found["partition"] = [0] * count
        found["offset"] = list(self.offsets)
        found["span"] = list(self.spans)
        if broken:
            found["error"] = [broken[i].reason if i in broken else None for i in range(count)]
            found["body"] = [broken[i].body if i in broken else None for i in range(count)]
        arrays = []
        for field in self._schema:
            values = found.get(field.name)
            if values is None:
                arrays.append(pa.nulls(count, field.type))
            elif isinstance(values, list):
                arrays.append(pa.array(values, field.type))
            else:
                arrays.append(values)
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _HeadRows(_Rows):
    """Route columns: the payload is never copied. Records without stamps that follow one another are one row."""

    def _clear(self) -> None:
        super()._clear()
        self.stamps: list[tuple[Stamp, ...]] = []
        self._unstamped_end = -1
        """Behind a record without stamps: the next one that has none is of the same row."""

    def place(self, offset: int) -> None:
        has_stamps = bool(self.stamps[-1])
        if offset == self._unstamped_end and not has_stamps:
            self.stamps.pop()
            self.spans[-1] += 1
        else:
            super().place(offset)
        self._unstamped_end = -1 if has_stamps else offset + 1

    def decode(self, frame: bytes) -> None:
        head = decode_route(frame)
        _check_time(head.accepted_ms)
        if head.properties:
            _check_properties(head.properties)
        stamps = _cached_stamps(head.stamps) if head.stamps else ()
        self.stamps.append(stamps)

    def add_empty(self) -> None:
        self.stamps.append(())

    def columns(self) -> dict[str, "pa.Array | list[object]"]:
        return {"stamps": stamps_array(self.stamps, self._schema.field("stamps").type)}


class RecordRows(_Rows):
    """Every column of a record."""

    def _clear(self) -> None:
        super()._clear()
        self.records: list[LogRecord | None] = []

    def decode(self, frame: bytes) -> None:
        record = decode_record(frame)
        _check_time(record.message.accepted_ms)
        _check_time(record.message.expires_ms)
        self.records.append(record)

    def add_empty(self) -> None:
        self.records.append(None)

    def columns(self) -> dict[str, "pa.Array | list[object]"]:
        """Of what no record has a column is made without asking each: most have no properties."""
        records = self.records
        messages = [record and record.message for record in records]
        found: dict[str, pa.Array | list[object]] = {
            "accepted_at": [m and m.accepted_ms * 1000 for m in messages],
            "topic": [m and m.topic for m in messages],
            "root": [m and m.topic.partition("/")[0] for m in messages],
            "queue": [m and queue_of(m.topic) for m in messages],
            "qos": [m and m.qos for m in messages],
            "retain": [m and m.retain for m in messages],
            "publisher": [m and m.publisher for m in messages],
            "version": [m and m.version for m in messages],
            "expires_at": [m.expires_ms * 1000 if m and m.expires_ms else None for m in messages],
            "payload_bytes": [m and len(m.payload) for m in messages],
            "stamps": stamps_array(
                [record.stamps if record else () for record in records], self._schema.field("stamps").type
            ),
            "payload": [m and m.payload for m in messages],
        }
        for name, is_had, column in (
            ("user_properties", any(m and m.properties for m in messages), self._properties),
            ("unknown_fields", any(r and r.unknown_fields for r in records), self._unknown_fields),
        ):
            if is_had or self.broken:
                found |= column()
            else:
                found[name] = _empty_lists(len(records), self._schema.field(name).type)
        if any(record and record.origin for record in records):
            found["origin"] = [
                {"generation": r.origin.generation, "packet_id": r.origin.packet_id}
                if r and r.origin
                else None
                for r in records
            ]
        return found

    def _properties(self) -> dict[str, list[object]]:
        properties = [record and (record.message.properties or _NO_PROPERTIES) for record in self.records]
        return {
            "payload_format_indicator": [p and p.payload_format_indicator for p in properties],
            "message_expiry_interval": [p and p.message_expiry_interval for p in properties],
            "content_type": [p and p.content_type for p in properties],
            "response_topic": [p and p.response_topic for p in properties],
            "correlation_data": [p and p.correlation_data for p in properties],
            "user_properties": [p and _pairs(p.user_properties) for p in properties],
        }

    def _unknown_fields(self) -> dict[str, list[object]]:
        return {
            "unknown_fields": [
                r and [{"tag": tag, "value": value} for tag, value in r.unknown_fields] for r in self.records
            ]
        }


def _check_time(unix_ms: int) -> None:
    """A time that no timestamp can hold would stop the query at its record for ever."""
    if not 0 <= unix_ms < _YEAR_10000_MS:
        raise RecordError(f"time {unix_ms} ms is not between the years 1970 and 9999")


def _pairs(user_properties: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in user_properties]


def stamps_array(rows: list[tuple[Stamp, ...]], arrow_type: pa.ListType) -> pa.Array:
    """Nested stamps from flat columns: building them from Python structures costs ten times as much."""
    struct = arrow_type.value_type
    flat = [stamp for row in rows for stamp in row]
    identifiers = [stamp.subscription_identifiers for stamp in flat]
    ids_type = struct.field("subscription_identifiers").type
    ids = pa.ListArray.from_arrays(
        _offsets(identifiers),
        pa.array([number for numbers in identifiers for number in numbers], ids_type.value_type),
        type=ids_type,
    )
    arrays = [
        pa.array([stamp.log for stamp in flat], struct.field("log").type),
        pa.array([stamp.generation for stamp in flat], struct.field("generation").type),
        pa.array([stamp.qos for stamp in flat], struct.field("qos").type),
        pa.array([stamp.retain_as_published for stamp in flat], struct.field("retain_as_published").type),
        ids,
    ]
    stamps = pa.StructArray.from_arrays(arrays, fields=list(struct))
    return pa.ListArray.from_arrays(_offsets(rows), stamps, type=arrow_type)


def _empty_lists(count: int, arrow_type: pa.ListType) -> pa.Array:
    return pa.ListArray.from_arrays(
        pa.array([0] * (count + 1), pa.int32()), pa.array([], arrow_type.value_type), type=arrow_type
    )


def _offsets(rows: "list[tuple[Stamp, ...]] | list[tuple[int, ...]]") -> pa.Array:
    return pa.array(accumulate(map(len, rows), initial=0), pa.int32())


@lru_cache(_CACHED_FIELDS)
def _cached_stamps(value: bytes) -> tuple[Stamp, ...]:
    """The same few sets of logs match over and over."""
    try:
        return decode_stamps(value)
    except (LayoutError, IndexError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot decode stamps of {len(value)} bytes: {error}") from error


@lru_cache(_CACHED_FIELDS)
def _check_properties(block: bytes) -> None:
    """A record that the archive would reject is rejected by dispatch too."""
    try:
        decode_properties(block, 0, PropertyPlace.PUBLISH)
    except ProtocolError as error:
        raise RecordError(f"cannot decode properties of {len(block)} bytes: {error}") from error
