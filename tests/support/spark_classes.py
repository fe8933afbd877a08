"""How the tests' Java starts: with its first compiler alone, and Spark with the classes of an earlier start."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

CLASSES = Path(__file__).resolve().parents[2] / "build" / "spark" / "classes.jsa"
"""Made by scripts/spark-classes; it serves the Java and the jars that it was made with, others start without it."""
_JAVA, _SUBMIT, _LAUNCHER = "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"


def spark_jars() -> Path:
    """The folder of the jars that come with PySpark, which is not imported for that."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None, "PySpark is not installed"
    return Path(spec.origin).with_name("jars")


def fast_start() -> dict[str, str]:
    """Variables for the environment. Spark lives for seconds in a test: compiling it well costs more than it gains, 23
    CPU s a start instead of 13."""
    options = {_JAVA: "-XX:TieredStopAtLevel=1", _LAUNCHER: "-XX:+UseSerialGC"}
    if CLASSES.exists():
        options[_SUBMIT] = f"-XX:SharedArchiveFile={CLASSES} -Xlog:cds=off"
    return options


def archiving() -> dict[str, str]:
    """The same for the one start that makes the archive, at its end."""
    return fast_start() | {_SUBMIT: f"-XX:ArchiveClassesAtExit={CLASSES}"}
