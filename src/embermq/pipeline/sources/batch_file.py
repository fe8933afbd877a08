"""Records of the embedded log as one Parquet file of this machine, written by a task of Spark's in Python.

Archive, lake and traffic read it from there, whole columns at a time: a record becomes an object of Python's once,
where it is decoded, and none of Java's. The file is forgotten with the batch, so nothing of it is synced.
"""

from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from embermq.pipeline.schema import record_schema
from embermq.pipeline.sources.log_file import LogFile
from embermq.pipeline.sources.message_log import PROBE_OFFSET, probe_rows
from embermq.pipeline.sources.record_rows import read_rows

REPEATED = ["topic", "root", "queue", "publisher"]
"""Columns that are worth a dictionary."""


def write_batch(spark: SparkSession, log: Path, start: int, end: int, path: Path) -> None:
    """Offsets [start, end), with those that are gone or damaged as rows with an error; the folder is there. What it has
    written when it fails takes no room: the disk may be full."""
    try:
        spark.sparkContext.parallelize([(start, end)], 1).foreach(partial(_write, log, path))
    except Exception:
        path.unlink(missing_ok=True)
        raise


def write_probe(spark: SparkSession, path: Path) -> None:
    """The probe alone."""
    write_batch(spark, Path(), PROBE_OFFSET, 0, path)


def _write(log: Path, path: Path, offsets: tuple[int, int]) -> None:
    schema = to_arrow_schema(record_schema(), timezone="UTC")
    options = {"compression": "lz4", "use_dictionary": REPEATED, "write_statistics": False}
    with pq.ParquetWriter(path, schema, **options) as file, closing(LogFile(log)) as reader:
        is_probe = offsets[0] == PROBE_OFFSET
        for batch in probe_rows(schema) if is_probe else read_rows(reader, *offsets, schema):
            file.write_batch(batch)
