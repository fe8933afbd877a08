"""A Spark session for one job that a person waits for: started, used, and gone at the end, whatever happened."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from embermq.pipeline.driver import wait_or_kill
from embermq.pipeline.errors import PipelineError, SparkEndedError
from embermq.pipeline.jars import lake_jars
from embermq.pipeline.java import find_java
from embermq.pipeline.places import Places
from embermq.pipeline.session import jvm_process, start_session
from embermq.pipeline.settings import PipelineSettings, QueryName, is_local

TASKS_MAX = 8
"""Unless more are asked for: the stores at both ends are not faster for it."""
ENDING_S = 10.0
"""How long a JVM may take to end."""
SEEN_S = 1.0
"""A connection to a JVM is lost a moment before the system says that it has ended."""
LINE_CHARACTERS_MAX = 300
_LOG = "spark.log"
_ERROR = re.compile(r"^(?:Error|Exception)\b|\w(?:Error|Exception): ")
_LOST = (PySparkException, Py4JError, ConnectionError, EOFError)
"""How PySpark tells that its JVM is gone, depending on what it was about to do."""


def job_master(master: str, tasks: int, elsewhere: bool) -> str:
    """Where a job runs whose settings say `master`."""
    if not is_local(master) and elsewhere:
        return master
    if not tasks and is_local(master) and master != "local":
        return master
    return f"local[{tasks or min(os.cpu_count() or 1, TASKS_MAX)}]"


@contextmanager
def batch_session(
    settings: PipelineSettings,
    tasks: int,
    work: Path,
    *,
    lake: bool = False,
    spill: Path | None = None,
    elsewhere: bool = False,
) -> Iterator[SparkSession]:
    """So many tasks at a time, 0 for what `pipeline.master` says; with what `lake` needs. Spark keeps its files in
    `work`, a directory with a short path, or those that may be large in `spill`. What reads no file of this machine may
    run `elsewhere`, where `pipeline.master` is. Raises SparkEndedError, and PipelineSettingsError for a missing jar."""
    places = Places(spill or work)
    if lake:
        lake_jars(settings)
    java = find_java(places.java_wrapper)
    try:
        with _stderr_in(work / _LOG):
            queries: tuple[QueryName, ...] = ("lake",) if lake else ()
            job = msgspec.structs.replace(
                settings, master=job_master(settings.master, tasks, elsewhere), queries=queries
            )
            spark = start_session(job, places, java, work)
    except _LOST as error:
        raise SparkEndedError(f"Spark does not start: {_last_words(work, _first_line(error))}") from error
    jvm = jvm_process(spark)
    try:
        _say_nothing(spark.sparkContext)
        yield spark
        spark.stop()
    except _LOST as error:
        if not _has_ended(jvm):
            if isinstance(error, Py4JError):  # with no memory left Java cannot even say what was wrong
                raise SparkEndedError(
                    "Spark has failed; more memory may help, pipeline.heap_mb gives it"
                ) from error
            raise
        code = f"exit code {jvm.returncode}" if jvm.returncode >= 0 else f"signal {-jvm.returncode}"
        raise SparkEndedError(f"Spark has ended in the midst of it: {_last_words(work, code)}") from error
    finally:
        jvm.terminate()
        wait_or_kill(jvm, ENDING_S)
        shutil.rmtree(places.work, ignore_errors=True)


@contextmanager
def spark_failures(told: Callable[[str], PipelineError]) -> Iterator[None]:
    """What Spark raises is told as the error that this makes of its first line."""
    try:
        yield
    except PySparkException as error:
        raise told(_first_line(error)) from error


def _say_nothing(context: SparkContext) -> None:
    """What goes wrong is an exception here, and nothing is said of it on standard error besides."""
    context.setLogLevel("OFF")
    context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(SEEN_S)
    return process.returncode is not None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _last_words(work: Path, otherwise: str) -> str:
    """What the JVM's standard error says of its end, `otherwise` when it names no error."""
    try:
        told = (work / _LOG).read_text(errors="replace")
    except FileNotFoundError:
        return otherwise
    if "OutOfMemoryError" in told:
        return "its memory was not enough, pipeline.heap_mb gives it more"
    errors = [line.strip() for line in told.splitlines() if _ERROR.search(line)]
    return errors[0][:LINE_CHARACTERS_MAX] if errors else otherwise


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
