"""What broker and dispatch have stored about deliveries, as Parquet files that Spark reads beside the records.

The order in which it is read is what makes it one picture while the broker goes on. What the log has let go of is
looked at first, then bodies that were kept aside, then the entries of application logs, and the broker's file last:
floors only rise, and nothing that is needed above a floor is taken away before the floor passes it. So what is missing
here, and is above the floor that was read after it, is missing.

What an audit has to know of sessions and queues on servers, as Parquet files that Spark reads beside the records.
Whoever can ask the session store fills them, when progress of dispatch and application logs have been read: floors
only rise, and what is needed above a floor stays until the floor has passed it. The places of a session are read
before its exceptions, which are stored before the place that counts them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from embermq.formats.log_record import is_sound
from embermq.model.unacknowledged import WhyUnacknowledged
from embermq.pipeline.errors import AuditError
from embermq.pipeline.places import Places
from embermq.pipeline.sources.log_file import LogFile, connect_readonly

ROWS_A_TIME = 50_000
ENTRIES, REJECTED, BODIES, SESSIONS, MARKS, UNACKNOWLEDGED, STORED, PARKED, QUEUES, QUEUED = (
    "entries",
    "rejected",
    "bodies",
    "sessions",
    "marks",
    "unacknowledged",
    "stored",
    "parked",
    "queues",
    "queued",
)
"""Names of the tables."""
_POSITIONS = [("generation", pa.int64()), ("offset", pa.int64())]

_OF_PARKED = {BODIES: ('SELECT generation, "offset" FROM parked_record', pa.schema(_POSITIONS))}
_OF_DISPATCH = {
    ENTRIES: ('SELECT generation, "offset" FROM application_log', pa.schema(_POSITIONS)),
    REJECTED: ('SELECT "offset", reason FROM rejected', pa.schema([_POSITIONS[1], ("reason", pa.string())])),
}
_OF_BROKER = {
    SESSIONS: (
        f"""
SELECT session.generation, client_id, client_type, created_ms, COALESCE(committed_offset, 0), COALESCE(settled, 0), 0
FROM session LEFT JOIN application_position ON application_position.generation = session.generation
UNION ALL SELECT generation, '', 1, 0, "offset", 0, 1 FROM application_unacknowledged
WHERE why = {int(WhyUnacknowledged.ENDED)}
""",
        pa.schema(
            [
                _POSITIONS[0],
                ("client", pa.string()),
                ("client_type", pa.int32()),
                ("created_ms", pa.int64()),
                ("floor", pa.int64()),
                ("settled", pa.int64()),
                ("has_ended", pa.int32()),
            ]
        ),
    ),
    MARKS: (
        'SELECT generation, "offset", state FROM application_inflight',
        pa.schema([*_POSITIONS, ("state", pa.int32())]),
    ),
    UNACKNOWLEDGED: (
        (
            'SELECT generation, "offset", MAX(why), MIN(written_ms) FROM application_unacknowledged'
            f' WHERE why <> {int(WhyUnacknowledged.ENDED)} GROUP BY generation, "offset"'
        ),
        pa.schema([*_POSITIONS, ("why", pa.int32()), ("written_ms", pa.int64())]),
    ),
    PARKED: (
        "SELECT generation, COUNT(*), SUM(stage = 0) FROM parked_message GROUP BY generation",
        pa.schema([_POSITIONS[0], ("messages", pa.int64()), ("waiting", pa.int64())]),
    ),
    STORED: (
        'SELECT generation, "offset", seq, state, record FROM device_queue WHERE state < 3',
        pa.schema([*_POSITIONS, ("seq", pa.int64()), ("state", pa.int32()), ("is_sound", pa.bool_())]),
    ),
    QUEUES: (
        (
            "SELECT name, (SELECT COUNT(*) FROM queue_entry WHERE queue = generation),"
            " (SELECT COUNT(*) FROM queue_delayed WHERE queue = generation) FROM queue"
        ),
        pa.schema([("queue", pa.string()), ("entries", pa.int64()), ("delayed", pa.int64())]),
    ),
    QUEUED: (
        """
SELECT name, sequence, e."offset", EXISTS (SELECT 1 FROM queue_body b WHERE b."offset" = e."offset")
FROM (SELECT queue, sequence, "offset" FROM queue_entry UNION ALL SELECT queue, ticket, "offset" FROM queue_delayed) e
JOIN queue ON queue.generation = e.queue
""",
        pa.schema(
            [
                ("queue", pa.string()),
                ("sequence", pa.int64()),
                ("offset", pa.int64()),
                ("has_body", pa.int32()),
            ]
        ),
    ),
}


class Settlements(Struct, frozen=True):
    """Where the log and its readers are: the log has records from `log_first` on; `broker.db` knows what came before
    `log_end`, dispatch has carried what came before `dispatched`, and what came before `dispatcher_floor` is delivered
    or stored for every other session."""

    log_id: int
    log_first: int
    log_end: int
    dispatched: int
    dispatcher_floor: int


def read_settlements(places: Places, into: Path) -> Settlements:
    """Write every table into the folder as `NAME.parquet`. Raises AuditError."""
    into.mkdir(parents=True)
    log = LogFile(places.log)
    try:
        bounds = log.bounds()
    finally:
        log.close()
    _copy(places.data_dir / "parked.db", _OF_PARKED, into)
    progress = _copy(
        places.applications,
        _OF_DISPATCH,
        into,
        "SELECT reader, next_offset FROM progress WHERE reader = 'dispatch'",
    )
    about = _copy(
        places.broker,
        _OF_BROKER,
        into,
        "SELECT name, value FROM meta WHERE name IN ('log_id', 'log_end', 'dispatcher_floor')",
    )
    if not about:
        raise AuditError(f"{places.broker} is not there, or has nothing yet")
    log_end = about.get("log_end", 0)
    return Settlements(
        log_id=about["log_id"],
        log_first=bounds.first if bounds is not None else log_end,
        log_end=log_end,
        dispatched=progress.get("dispatch", 0),
        dispatcher_floor=about.get("dispatcher_floor", 0),
    )


def _copy(
    path: Path, tables: dict[str, tuple[str, pa.Schema]], into: Path, numbers: str = ""
) -> dict[str, int]:
    """All tables of one file as they are at one moment; a file that is not there has none. Returns `numbers`."""
    connection = connect_readonly(path)
    found: dict[str, int] = {}
    if connection is not None:
        connection.execute("BEGIN")
    try:
        if connection is not None and numbers:
            found = dict(connection.execute(numbers).fetchall())
        for name, (statement, schema) in tables.items():
            with pq.ParquetWriter(into / f"{name}.parquet", schema) as writer:
                if connection is None:
                    continue
                cursor = connection.execute(statement)
                while rows := cursor.fetchmany(ROWS_A_TIME):
                    columns = list(zip(*(_checked(rows) if name == STORED else rows), strict=True))
                    writer.write_table(
                        pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema)
                    )
    finally:
        if connection is not None:
            connection.close()
    return found


def _checked(rows: list[tuple[int, int, int, int, bytes]]) -> Iterator[tuple[int, int, int, int, bool]]:
    """Of a stored delivery whether its record is what was written; what was released needs none any more."""
    for generation, offset, seq, state, record in rows:
        yield generation, offset, seq, state, (not record and state == 2) or is_sound(record)


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
