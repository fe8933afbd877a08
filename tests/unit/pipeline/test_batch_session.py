"""A job's JVM that dies: the person who waits is told so in a sentence, whatever PySpark makes of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkRuntimeError, PySparkValueError

from embermq.pipeline import batch
from embermq.pipeline.errors import AuditError, PipelineSettingsError, SparkEndedError
from embermq.pipeline.settings import PipelineSettings


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """Stands for it; it ends with the session."""
    process = subprocess.Popen(["sleep", "600"])
    stopped: list[bool] = []
    session = SimpleNamespace(
        sparkContext=SimpleNamespace(setLogLevel=lambda _: None, _accumulatorServer=SimpleNamespace()),
        stop=lambda: stopped.append(True),
    )
    monkeypatch.setattr(batch, "find_java", lambda *_: None)
    monkeypatch.setattr(batch, "start_session", lambda *_: session)
    monkeypatch.setattr(batch, "jvm_process", lambda _: process)
    yield process
    assert process.poll() is not None


@pytest.mark.parametrize(
    "lost", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "x"), EOFError()]
)
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("WARNING: Using incubator modules\n", "signal 9"),
        (
            "java.lang.OutOfMemoryError: Java heap space\n at a.b\n",
            "its memory was not enough, pipeline.heap_mb gives it more",
        ),
        (
            "WARNING: x\n# There is no room\njava.io.IOException: No space left on device\n at a.b",
            "java.io.IOException: No space left on device",
        ),
    ],
)
@pytest.mark.promise("pipeline-12")
def test_one_that_dies_in_the_midst_is_told(
    jvm: subprocess.Popen[bytes], tmp_path: Path, lost: Exception, said: str, told: str
) -> None:
    def job() -> None:
        with batch.batch_session(PipelineSettings(), 1, tmp_path) as spark:
            server: Any = spark.sparkContext._accumulatorServer
            server.handle_error(None, "a traceback of PySpark's own is not shown besides")
            (tmp_path / "spark.log").write_text(said)
            os.kill(jvm.pid, 9)
            raise lost

    with pytest.raises(SparkEndedError) as found:
        job()
    assert str(found.value) == f"Spark has ended in the midst of it: {told}"


def test_an_error_beside_a_jvm_that_lives_is_told_as_it_is(
    jvm: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "SEEN_S", 0.01)
    for error in (PySparkValueError("a column"), ConnectionResetError(104, "somebody else")):
        with pytest.raises(type(error)) as found, batch.batch_session(PipelineSettings(), 1, tmp_path):
            raise error
        assert found.value is error
        monkeypatch.setattr(batch, "jvm_process", lambda _: subprocess.Popen(["sleep", "600"]))


def test_a_jvm_that_has_no_memory_left_to_say_what_is_wrong_is_told(
    jvm: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "SEEN_S", 0.01)
    with (
        pytest.raises(SparkEndedError, match="more memory may help"),
        batch.batch_session(PipelineSettings(), 1, tmp_path),
    ):
        raise Py4JError("An error occurred while calling o81.toString")


@pytest.mark.parametrize(
    ("master", "tasks", "elsewhere", "expected"),
    [
        ("local", 3, False, "local[3]"),
        ("local[5]", 0, False, "local[5]"),
        ("local[5]", 2, True, "local[2]"),
        ("spark://one:7077", 0, True, "spark://one:7077"),
        ("spark://one:7077", 2, False, "local[2]"),
    ],
)
@pytest.mark.promise("pipeline-15")
@pytest.mark.usefixtures("jvm")
def test_a_job_runs_where_the_settings_say(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    master: str,
    tasks: int,
    elsewhere: bool,
    expected: str,
) -> None:
    started: list[str] = []
    starts: Any = vars(batch)["start_session"]

    def start(settings: PipelineSettings, *more: Any) -> Any:
        started.append(settings.master)
        return starts(settings, *more)

    monkeypatch.setattr(batch, "start_session", start)
    with batch.batch_session(PipelineSettings(master=master), tasks, tmp_path, elsewhere=elsewhere):
        pass
    assert started == [expected]


def test_one_that_does_not_start_is_told(
    jvm: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        (tmp_path / "spark.log").write_text("Error occurred during initialization of VM\nToo small heap\n")
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    jvm.kill()
    monkeypatch.setattr(batch, "start_session", fails)
    with (
        pytest.raises(SparkEndedError, match=r"^Spark does not start: Error occurred during"),
        batch.batch_session(PipelineSettings(), 1, tmp_path),
    ):
        raise AssertionError("it has not started")
    jvm.wait()


def told(reason: str) -> AuditError:
    return AuditError(f"the messages cannot be read: {reason}")


def test_a_failure_of_spark_is_told_in_a_sentence() -> None:
    with (
        pytest.raises(AuditError, match=r"the messages cannot be read: \[SOME\] thing$"),
        batch.spark_failures(told),
    ):
        raise AnalysisException("[SOME] thing\nat line 2")


def test_what_is_told_already_stays() -> None:
    with pytest.raises(SparkEndedError, match="its memory"), batch.spark_failures(told):
        raise SparkEndedError("its memory was not enough")


def test_without_the_jars_of_a_lake_nothing_is_started(tmp_path: Path) -> None:
    settings = PipelineSettings(jars_dir=str(tmp_path))
    with (
        pytest.raises(PipelineSettingsError, match="Spark needs it to write the lake"),
        batch.batch_session(settings, 1, tmp_path, lake=True),
    ):
        pass
