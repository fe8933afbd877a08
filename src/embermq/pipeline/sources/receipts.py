"""Delivery receipts as Arrow batches: samples of the time from accept to delivery, written by the broker."""

from collections.abc import Iterator
from struct import error as LayoutError

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from embermq.formats.receipts import SAMPLE
from embermq.pipeline.schema import RECEIPTS, traffic_schema
from embermq.pipeline.sources.log_file import BrokerFile

_END = "SELECT MAX(id) + 1 FROM receipt_batch"
_FIRST = "SELECT MIN(id) FROM receipt_batch"
_BODIES = "SELECT id, 0, body FROM receipt_batch WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
_BATCHES_PER_READ = 200

Sample = tuple[int, int, int, str]
"""(accepted_ms, latency_us, client type, first topic level)."""


class ReceiptError(ValueError):
    """A batch of receipts that ends inside a sample."""


def decode_samples(body: bytes) -> list[Sample]:
    """The samples of one batch: repeated i64 accepted_ms, u32 latency_us, u8 client type, u8 length, first level."""
    samples: list[Sample] = []
    at = 0
    try:
        while at < len(body):
            accepted_ms, latency_us, client_type, length = SAMPLE.unpack_from(body, at)
            at += SAMPLE.size + length
            if at > len(body):
                raise ReceiptError(f"a sample needs {at} bytes, the batch has {len(body)}")
            samples.append((accepted_ms, latency_us, client_type, body[at - length : at].decode()))
    except (LayoutError, UnicodeDecodeError) as error:
        raise ReceiptError(f"cannot decode receipts of {len(body)} bytes: {error}") from error
    return samples


class ReceiptFile(BrokerFile):
    """Reads receipt_batch by id."""

    def first(self) -> int:
        """The oldest batch that is there, 0 when there is none."""
        rows = self.query(_FIRST)
        return rows[0][0] or 0 if rows else 0

    def end(self) -> int:
        """The id after the newest batch, 0 when there is none."""
        rows = self.query(_END)
        return rows[0][0] or 0 if rows else 0

    def table(self, start: int, end: int) -> pa.Table:
        """Batches [start, end) as rows of `schema.traffic_schema`."""
        schema = to_arrow_schema(traffic_schema(), timezone="UTC")
        return pa.Table.from_batches(self._rows(start, end, schema), schema)

    def _rows(self, start: int, end: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Ids may have holes."""
        while start < end:
            found = self.query(_BODIES, (start, end, _BATCHES_PER_READ)) or []
            if found:
                yield _arrow(found, schema)
            if len(found) < _BATCHES_PER_READ:
                break
            start = found[-1][0] + 1
        # Says that the range is read even where it holds no sample any more.
        yield _row_batch([(end - 1, None, "end of the range")], schema)


_Row = tuple[int, Sample | None, str | None]


def _arrow(found: list[tuple[int, int, bytes]], schema: pa.Schema) -> pa.RecordBatch:
    rows: list[_Row] = []
    for number, _, body in found:
        try:
            rows.extend((number, sample, None) for sample in decode_samples(body))
        except ReceiptError as error:
            rows.append((number, None, str(error)))
    return _row_batch(rows, schema)


def _row_batch(rows: list[_Row], schema: pa.Schema) -> pa.RecordBatch:
    count = len(rows)
    columns: dict[str, list[object]] = {
        "partition": [RECEIPTS] * count,
        "offset": [number for number, _, _ in rows],
        "span": [1] * count,
        "accepted_at": [sample and sample[0] * 1000 for _, sample, _ in rows],
        "latency_us": [sample and sample[1] for _, sample, _ in rows],
        "client_type": [sample and sample[2] for _, sample, _ in rows],
        "root": [sample and sample[3] for _, sample, _ in rows],
        "error": [error for _, _, error in rows],
    }
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
