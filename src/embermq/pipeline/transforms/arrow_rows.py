"""The same as `transforms.archive`, of the rows of a Parquet file, without Java: what costs most is left out for
records that have no properties, and for payloads that cannot be JSON."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embermq.pipeline.transforms.archive import PROPERTIES

_PAIRS = "user_properties"
_LOOK = msgspec.json.Decoder(msgspec.Raw)
"""Reads all of it, and makes nothing of it: a number may be larger than any float."""
_JSON_STARTS = frozenset(b' \t\n\r"-0123456789[{tfn')


def stored_table(file: Path) -> pa.Table:
    """One row a record, in the columns of messages.db, with span and error beside them."""
    table = pq.read_table(file)
    kept = ("offset", "span", "error", "partition", "topic", "qos", "publisher", "version", "payload")
    columns = {name: table[name] for name in kept}
    columns["accepted_ms"] = _unix_ms(table["accepted_at"])
    columns["expires_ms"] = _unix_ms(table["expires_at"])
    columns["retain"] = table["retain"].cast(pa.int32())
    columns["properties"] = properties_json(table)
    return pa.table(columns)


def _unix_ms(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.divide(times.cast(pa.int64()), 1000)


def properties_json(table: pa.Table) -> pa.Array:
    """The MQTT 5 properties of each record as a JSON object, null when there are none."""
    columns = [table[name] for name in PROPERTIES]
    pairs = table[_PAIRS]
    has_some = [column.null_count < len(table) for column in columns]
    if not any(has_some) and not pc.max(pc.list_value_length(pairs)).as_py():
        return pa.nulls(len(table), pa.string())
    rows = zip(*(column.to_pylist() for column in columns), pairs.to_pylist(), strict=True)
    return pa.array([_object_of(values) for values in rows], pa.string())


def _object_of(values: tuple[object, ...]) -> str | None:
    named = zip((*PROPERTIES, _PAIRS), values, strict=True)
    found = {name: value for name, value in named if value is not None and value != []}
    return msgspec.json.encode(found).decode() if found else None


def payload_json(payload: bytes | None) -> str | None:
    """The payload as text when it is valid UTF-8 and valid JSON."""
    if not payload or payload[0] not in _JSON_STARTS:
        return None
    try:
        _LOOK.decode(payload)
        return payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def lake_table(rows: pa.Table, log_id: int, schema: pa.Schema) -> pa.Table:
    """The good ones of these rows in the columns of the lake."""
    good = rows.filter(pc.is_null(rows["error"]))
    made = {
        "log_id": pa.repeat(pa.scalar(log_id, pa.int64()), len(good)),
        "date": good["accepted_at"].cast(pa.timestamp("us")).cast(pa.date32()),
        "payload_json": pa.array(map(payload_json, good["payload"].to_pylist()), pa.string()),
    }
    arrays = [made[name] if name in made else good[name] for name in schema.names]
    return pa.Table.from_arrays(arrays, schema=schema)
