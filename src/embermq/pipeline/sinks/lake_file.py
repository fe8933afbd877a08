"""A batch of the embedded log as one file of the lake, made in a task in Python: no row of it becomes one of Java's."""

from collections.abc import Iterable
from datetime import date, datetime
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from embermq.pipeline.schema import COPY, MISSING, PARTITION
from embermq.pipeline.sinks.delta_table import OF_MESSAGES
from embermq.pipeline.sinks.positioned_table import Covered
from embermq.pipeline.sources.batch_file import REPEATED
from embermq.pipeline.transforms.archive import lake_schema
from embermq.pipeline.transforms.arrow_rows import lake_table

_TEXT_MAX = 256
"""Longer ones are cut as the least of a file, and left out as its greatest: a prefix is no bound there."""


class LakeFile(Struct, frozen=True):
    """`statistics` as Delta has them, by which readers skip files."""

    covered: Covered
    path: Path
    statistics: str


def make_lake_file(spark: SparkSession, rows: Path, log_id: int, done: int) -> LakeFile | None:
    """Of what is at `done` and behind it in a batch's file; None when there is nothing. It is beside that file, unless
    that fails."""
    path = rows.with_suffix(".lake")
    task = spark.sparkContext.parallelize([done], 1).map(partial(_made, rows, path, log_id))
    try:
        found: LakeFile | None = task.collect()[0]
    except Exception:
        path.unlink(missing_ok=True)
        raise
    return found


def _made(rows: Path, path: Path, log_id: int, done: int) -> LakeFile | None:
    table = pq.read_table(rows)
    table = table.filter(pc.greater_equal(table["offset"], done))
    if not len(table):
        return None
    errors = table.filter(pc.is_valid(table["error"]))
    is_missing = pc.starts_with(errors["error"], MISSING)
    is_rejected = pc.invert(pc.or_(is_missing, pc.equal(errors["error"], COPY)))
    good = lake_table(table, log_id, to_arrow_schema(lake_schema(), timezone="UTC"))
    pq.write_table(
        good, path, compression="zstd", use_dictionary=REPEATED, write_statistics=list(OF_MESSAGES.measured)
    )
    covered = Covered(
        partition=PARTITION,
        first=pc.min(table["offset"]).as_py(),
        end=pc.max(pc.add(table["offset"], table["span"])).as_py(),
        good=len(good),
        late=0,
        rejected=pc.sum(errors.filter(is_rejected)["span"]).as_py() or 0,
        missing=pc.sum(errors.filter(is_missing)["span"]).as_py() or 0,
        data_bytes=pc.sum(table["payload_bytes"]).as_py() or 0,
        newest_ms=None,
    )
    return LakeFile(covered, path, statistics_of(good, OF_MESSAGES.measured))


def statistics_of(table: pa.Table, names: Iterable[str]) -> str:
    """What Delta keeps of a file in the commit that adds it."""
    least: dict[str, object] = {}
    greatest: dict[str, object] = {}
    for name in names:
        bounds = pc.min_max(table[name]).as_py()
        if bounds["min"] is None:
            continue
        least[name] = _bound(bounds["min"])
        if not isinstance(bounds["max"], str) or len(bounds["max"]) <= _TEXT_MAX:
            greatest[name] = _bound(bounds["max"])
    nulls = {name: table[name].null_count for name in names}
    found = {"numRecords": len(table), "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return msgspec.json.encode(found).decode()


def _bound(value: object) -> object:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"
    if isinstance(value, date):
        return value.isoformat()
    return value[:_TEXT_MAX] if isinstance(value, str) else value
