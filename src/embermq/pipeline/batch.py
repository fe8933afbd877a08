"""A Spark session for one job that a person waits for: started, used, and gone at the end, whatever happened."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from embermq.pipeline.driver import jvm_process
from embermq.pipeline.java import find_java
from embermq.pipeline.places import Places
from embermq.pipeline.session import start_session
from embermq.pipeline.settings import PipelineSettings

TASKS_MAX = 8
"""Unless more are asked for: the stores at both ends are not faster for it."""


@contextmanager
def batch_session(
    settings: PipelineSettings, tasks: int, work: Path, spill: Path | None = None
) -> Iterator[SparkSession]:
    """So many tasks at a time, 0 for one a core. Spark keeps its files in `work`, a directory with a short path, or
    those that may be large in `spill`."""
    places = Places(spill or work)
    slots = tasks or min(os.cpu_count() or 1, TASKS_MAX)
    java = find_java(places.java_wrapper, settings.java_home)
    with _stderr_in(work / "spark.log"):
        spark = start_session(msgspec.structs.replace(settings, master=f"local[{slots}]"), places, java, work)
    jvm = jvm_process(spark)
    spark.sparkContext.setLogLevel("OFF")  # what goes wrong is an exception here
    try:
        yield spark
        spark.stop()
    finally:
        jvm.terminate()
        jvm.wait()
        shutil.rmtree(places.work, ignore_errors=True)


@contextmanager
def _stderr_in(path: Path) -> Iterator[None]:
    """What is started inside keeps that file as its standard error: the JVM and its workers say nothing to people."""
    sys.stderr.flush()
    kept = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
