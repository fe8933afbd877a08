"""Threads that call the JVM and end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import SparkSession

from embermq.pipeline.jvm_thread import closing_connection


def test_a_thread_leaves_no_connection_when_its_work_is_over(spark: SparkSession) -> None:
    client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]

    def work(count: int) -> Any:
        assert spark.range(count).count() == count
        return client.get_thread_connection()

    with ThreadPoolExecutor(1) as thread:
        connections = [thread.submit(closing_connection(work), count).result() for count in (1, 2)]
    assert [one.socket for one in connections] == [None, None]
    assert client.get_thread_connection().socket is not None, "others keep theirs"
