"""What `transforms.traffic` makes, of an Arrow table instead of a DataFrame.

On the embedded log, whose batches are files of this machine, planning and compiling a query for Java costs more than
the sums.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embermq.pipeline.schema import COPY, MISSING, record_schema
from embermq.pipeline.transforms.traffic import BUCKETS_PER_DOUBLING

_KEYS = ["window_ms", "root", "queue", "client_type", "bucket", "partition"]
_SUMS = ("messages", "payload_bytes", "qos1", "qos2", "late", "missing", "rejected", "deliveries")
_OTHERS = {"max_us": "max", "first": "min", "next": "max", "newest_ms": "max"}


def traffic_rows(file: Path) -> pa.Table:
    """Rows of `traffic_schema` of a batch in a Parquet file."""
    rows = pq.read_table(file, columns=record_schema("traffic").names)
    for name, kind in {"latency_us": pa.int64(), "client_type": pa.int32()}.items():
        rows = rows.append_column(name, pa.nulls(len(rows), kind))
    return rows


def traffic_table(events: pa.Table, window_s: int, watermark_ms: int) -> pa.Table:
    """The columns of `transforms.traffic.traffic_windows`, of rows of `traffic_schema`."""
    accepted_ms = pc.divide(events["accepted_at"].cast(pa.int64()), 1000)
    window_ms = pc.multiply(pc.divide(accepted_ms, window_s * 1000), window_s * 1000)
    latency_us = events["latency_us"]
    is_receipt = pc.is_valid(latency_us)
    is_message = pc.and_(pc.is_valid(accepted_ms), pc.invert(is_receipt))
    is_late = pc.and_(is_message, _true(pc.less(accepted_ms, watermark_ms)))
    counts = pc.and_(is_message, pc.invert(is_late))
    doublings = pc.log2(pc.max_element_wise(latency_us, 1))
    error = events["error"]
    is_missing = _true(pc.starts_with(error, MISSING))
    is_copy = _true(pc.equal(error, COPY))
    is_rejected = pc.and_(pc.is_valid(error), pc.invert(pc.or_(is_missing, is_copy)))
    columns = {
        "window_ms": window_ms,
        "root": events["root"],
        "queue": events["queue"],
        "client_type": events["client_type"],
        "bucket": pc.floor(pc.multiply(doublings, BUCKETS_PER_DOUBLING)).cast(pa.int32()),
        "partition": events["partition"],
        "messages": counts.cast(pa.int64()),
        "payload_bytes": _where(counts, events["payload_bytes"]),
        "qos1": pc.and_(counts, _true(pc.equal(events["qos"], 1))).cast(pa.int64()),
        "qos2": pc.and_(counts, _true(pc.equal(events["qos"], 2))).cast(pa.int64()),
        "late": is_late.cast(pa.int64()),
        "missing": _where(is_missing, events["span"]),
        "rejected": _where(is_rejected, events["span"]),
        "deliveries": is_receipt.cast(pa.int64()),
        "max_us": latency_us,
        "first": events["offset"],
        "next": pc.add(events["offset"], events["span"]),
        "newest_ms": pc.if_else(is_message, accepted_ms, None),
    }
    how = [*((name, "sum") for name in _SUMS), *_OTHERS.items()]
    found = pa.table(columns).group_by(_KEYS, use_threads=False).aggregate(how)
    names = {f"{name}_{function}": name for name, function in how}
    return found.rename_columns([names.get(name, name) for name in found.column_names])


def _true(found: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(found, False)


def _where(condition: pa.ChunkedArray, values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(condition, pc.fill_null(values, 0), 0)
