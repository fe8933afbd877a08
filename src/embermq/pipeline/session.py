"""The Spark session of the embedded profile: local, loopback, no UI, no catalogue, nothing outside the data directory."""

import os
import sys

from pyspark.sql import SparkSession

from embermq.pipeline.java import JavaRuntime
from embermq.pipeline.places import Places
from embermq.pipeline.settings import PipelineSettings

_EXTRA_SLOTS = 2


def start_session(settings: PipelineSettings, places: Places, java: JavaRuntime) -> SparkSession:
    """Start the JVM and a session in it. Takes seconds; sets this process's environment for Spark."""
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_PYTHON"] = sys.executable  # or the workers take another Python from the path
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    places.scratch.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.appName("embermq-pipeline").master(_master(settings.master))
    for name, value in session_options(settings, places).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _master(master: str) -> str:
    """More slots than cores, so that dispatch finds one while the archive or the lake keep theirs."""
    return f"local[{(os.cpu_count() or 1) + _EXTRA_SLOTS}]" if master == "local" else master


def session_options(settings: PipelineSettings, places: Places) -> dict[str, str]:
    """Every Spark option that differs from its default, and why where it is not plain."""
    scratch = places.scratch
    return {
        "spark.driver.memory": f"{settings.heap_mb}m",
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -Djava.io.tmpdir={scratch}",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        # Small batches: adaptive planning costs more than it saves.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        # How often Spark asks a source again after it had nothing; the sources wait by themselves.
        "spark.sql.streaming.pollingDelay": "1ms",
        "spark.sql.streaming.noDataProgressEventInterval": "60000",
        "spark.sql.streaming.numRecentProgressUpdates": "2",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.stopTimeout": "3000",
        # The default one forks a chmod for every file, four times a batch.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.sql.ui.retainedExecutions": "5",
        "spark.ui.retainedJobs": "5",
        "spark.ui.retainedStages": "5",
        "spark.ui.retainedTasks": "20",
        "spark.cleaner.periodicGC.interval": "10min",
    }
