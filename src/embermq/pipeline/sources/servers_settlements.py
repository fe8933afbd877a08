"""What an audit has to know of sessions and queues on servers, as Parquet files that Spark reads beside the records.

Whoever can ask the session store fills them, when progress of dispatch and application logs have been read: floors only
rise, and what is needed above a floor stays until the floor has passed it. The places of a session are read before its
exceptions, which are stored before the place that counts them.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from embermq.pipeline.sources.settlements import QUEUED, QUEUES, ROWS_A_TIME, SESSIONS, STORED, UNACKNOWLEDGED

OPEN = "open"
"""By position what a session has marked and is above its floor, or early; `state` is a `QueueState`."""
LOGS = "logs"
"""Which topic each application log is, by its name behind the prefix."""
_AT = [("generation", pa.int64()), ("offset", pa.int64())]
_SPAN = pa.struct([("start", pa.int64()), ("end", pa.int64())])
SCHEMAS: dict[str, pa.Schema] = {
    SESSIONS: pa.schema(
        [
            _AT[0],
            ("client", pa.string()),
            ("client_type", pa.int32()),
            ("created_ms", pa.int64()),
            ("log_id", pa.string()),
            ("floor", pa.int64()),
            ("spans", pa.list_(_SPAN)),
            ("settled", pa.int64()),
            ("dropped", pa.int64()),
            ("below", pa.int64()),
            ("has_ended", pa.int32()),
        ]
    ),
    LOGS: pa.schema([("log", pa.string()), ("topic_id", pa.string())]),
    OPEN: pa.schema([*_AT, ("state", pa.int32())]),
    UNACKNOWLEDGED: pa.schema([*_AT, ("why", pa.int32())]),
    STORED: pa.schema([*_AT, ("seq", pa.int64()), ("state", pa.int32()), ("is_sound", pa.bool_())]),
    QUEUES: pa.schema([("queue", pa.string()), ("entries", pa.int64()), ("delayed", pa.int64())]),
    QUEUED: pa.schema(
        [("queue", pa.string()), ("sequence", pa.int64()), ("offset", pa.int64()), ("has_body", pa.int32())]
    ),
}
"""Offsets are positions. `floor` is one of the session's own log, `log_id` says which; all within `spans` of the
message log is settled, unless it is open. `settled` is negative when nobody has counted; below the position `below`
so many reasons were `dropped`."""


def write_rows(into: Path, name: str, rows: Iterable[Sequence[object]]) -> None:
    """The whole of one of the tables."""
    schema = SCHEMAS[name]
    with pq.ParquetWriter(into / f"{name}.parquet", schema) as writer:
        left = iter(rows)
        while some := list(islice(left, ROWS_A_TIME)):
            columns = zip(*some, strict=True)
            arrays = [pa.array(column, one.type) for column, one in zip(columns, schema, strict=True)]
            writer.write_table(pa.table(arrays, schema))
