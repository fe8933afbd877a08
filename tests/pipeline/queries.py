"""Running jobs in tests: as a batch over chosen offsets, or as the streaming query that they are."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.waiting import wait_until

from embermq.pipeline.jobs.dispatch import Dispatch
from embermq.pipeline.places import Places

DEADLINE_S = 60


def log_rows(spark: SparkSession, places: Places, start: int, end: int, columns: str = "all") -> DataFrame:
    """Offsets [start, end) of the log through the batch reader."""
    source = spark.read.format("embermq_log")
    return source.options(path=str(places.log), columns=columns, start=str(start), end=str(end)).load()


@contextmanager
def running(spark: SparkSession, job: Dispatch) -> Iterator[StreamingQuery]:
    """The job as a streaming query, stopped at the end."""
    query = job.start(spark)
    try:
        yield query
    finally:
        query.stop()
        job.file.close()


def wait_for_position(job: Dispatch, query: StreamingQuery, end: int) -> None:
    """Until the sink has confirmed everything below `end`; fails at once when the query dies."""

    def arrived() -> bool:
        error = query.exception()
        assert error is None, str(error)
        return (job.file.position() or 0) >= end

    wait_until(arrived, DEADLINE_S, f"{job.name} at {end}", poll_s=0.1)


def rows_of(path: Path, statement: str) -> list[tuple[object, ...]]:
    """All rows of a statement over one of the pipeline's files."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()
