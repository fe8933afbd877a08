"""The tables of TBMQ 1.x as a Spark data source: `format("embermq_old_tables")`.

Options: `order` (path of a file with a `ReadOrder`; it has a password, so only its owner may read it), `numbers`
(pieces to read, comma-separated). A task is a piece. Its rows come by client; those of each begin with one of kind
`session`, and the last row of the piece is one of kind `end`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from embermq_migrate.old_tables import OldTables, Piece

if TYPE_CHECKING:
    from pyarrow import RecordBatch

FORMAT = "embermq_old_tables"
BATCH_ROWS = 2_000
BATCH_BYTES = 4 * 1024 * 1024

MESSAGE, SESSION, END = "message", "session", "end"
_MESSAGE_COLUMNS: dict[str, DataType] = {
    "client_id": StringType(),
    "serial_number": LongType(),
    "topic": StringType(),
    "time": LongType(),
    "packet_id": LongType(),
    "packet_type": StringType(),
    "qos": LongType(),
    "payload": BinaryType(),
    "payload_bytes": LongType(),
    "user_properties": StringType(),
    "retain": BooleanType(),
    "msg_expiry_interval": LongType(),
    "payload_format_indicator": LongType(),
    "content_type": StringType(),
    "response_topic": StringType(),
    "correlation_data": BinaryType(),
}
"""As `OldTables.messages` gives them."""
_WIDTH = len(_MESSAGE_COLUMNS)
_PAYLOAD = list(_MESSAGE_COLUMNS).index("payload")
_PACKET_TYPE = list(_MESSAGE_COLUMNS).index("packet_type")


class ReadOrder(Struct, frozen=True):
    """What to read. `queue_limit` messages of a client are wanted, the newest."""

    url: str
    schema: str
    queue_limit: int
    payload_bytes_max: int
    pieces: tuple[Piece, ...]


def old_schema() -> StructType:
    """The rows of the source. `repeated`: the row before it has the same client and serial number. `over_limit`: newer
    messages fill the client's queue; never a row whose PUBREC has come."""
    return StructType(
        [
            StructField("piece", IntegerType(), False),
            StructField("kind", StringType(), False),
            *(StructField(name, kind) for name, kind in _MESSAGE_COLUMNS.items()),
            StructField("last_packet_id", LongType()),
            StructField("repeated", BooleanType()),
            StructField("over_limit", BooleanType()),
        ]
    )


class PieceTask(InputPartition):
    """One piece for one task."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class OldTablesSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return old_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(dict(self.options), schema)


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._order = Path(options["order"])
        self._numbers = [int(number) for number in options["numbers"].split(",")]
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [PieceTask(number) for number in self._numbers]

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        order = msgspec.json.decode(self._order.read_bytes(), type=ReadOrder)
        piece = order.pieces[cast(PieceTask, partition).number]
        tables = OldTables(order.url, order.schema)
        try:
            yield from in_batches(piece_rows(tables, piece, order), self._schema)
        finally:
            tables.close()


def piece_rows(tables: OldTables, piece: Piece, order: ReadOrder) -> Iterator[tuple[Any, ...]]:
    """The rows of one piece, as the schema has them."""
    last_packet_ids = tables.sessions(piece)
    counts = tables.counts(piece)
    client: str | None = None
    serial: int | None = None
    over = 0
    for row in tables.messages(piece, order.payload_bytes_max):
        if row[0] and row[0] != client:
            client, serial = row[0], None
            over = counts.get(row[0], 0) - order.queue_limit
            yield _session(piece, row[0], last_packet_ids.pop(row[0], None))
        is_repeated = row[1] is not None and row[1] == serial and row[0] == client
        serial = row[1]
        yield (piece.number, MESSAGE, *row, None, is_repeated, over > 0 and row[_PACKET_TYPE] != "PUBREL")
        over -= 1
    for client_id, last_packet_id in last_packet_ids.items():
        yield _session(piece, client_id, last_packet_id)
    yield (piece.number, END, *(None,) * (_WIDTH + 3))


def _session(piece: Piece, client_id: str, last_packet_id: int | None) -> tuple[Any, ...]:
    return (piece.number, SESSION, client_id, *(None,) * (_WIDTH - 1), last_packet_id, None, None)


def in_batches(rows: Iterator[tuple[Any, ...]], schema: StructType) -> "Iterator[RecordBatch]":
    """Arrow batches of at most `BATCH_ROWS` rows, and no more after the row that reaches `BATCH_BYTES`."""
    held: list[tuple[Any, ...]] = []
    held_bytes = 0
    for row in rows:
        held.append(row)
        held_bytes += len(row[_PAYLOAD + 2] or b"")
        if len(held) >= BATCH_ROWS or held_bytes >= BATCH_BYTES:
            yield _batch(held, schema)
            held, held_bytes = [], 0
    if held:
        yield _batch(held, schema)


def _batch(rows: list[tuple[Any, ...]], schema: StructType) -> "RecordBatch":
    import pyarrow as pa

    arrow = to_arrow_schema(schema)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
