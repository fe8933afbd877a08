"""The Spark session: local on loopback or with executors elsewhere, without UI and catalogue.

Who may speak to Spark's ports: everything that listens asks for a secret. Other accounts of this machine reach
loopback, too. Spark authenticates its own ports, and the JVM's end of py4j. The end in Python, where the JVM calls
what `foreachBatch` was given, is open in PySpark and is closed here.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaGateway, JavaObject
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from embermq.pipeline.errors import PipelineError, PipelineSettingsError
from embermq.pipeline.jars import connector_jars, lake_jars
from embermq.pipeline.java import JavaRuntime
from embermq.pipeline.places import Places
from embermq.pipeline.settings import (
    DriverSettings,
    PipelineSettings,
    is_local,
    is_on_loopback,
    is_standalone,
    slot_of_pipeline,
    spark_options,
    writes_lake,
)
from embermq.pipeline.sinks import held_table
from embermq.pipeline.sinks.delta_table import OPTIONS

SECRET_BYTES_MIN = 16
_CALLBACK_IDLE_S = 30
"""Py4j's own: a connection that the JVM has not used for so long is closed."""


def authentication_options(settings: PipelineSettings) -> dict[str, str]:
    """Of the session, secret excluded. Spark makes one by itself, in its memory, on a local master, YARN and
    Kubernetes."""
    options = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    if is_local(settings.master):  # nobody else is to connect, so nobody needs the older handshake
        options["spark.network.crypto.saslFallback"] = "false"
    return options


def cluster_secret(settings: PipelineSettings) -> str:
    """What a standalone master and its workers ask for, "" for other masters. Raises PipelineSettingsError."""
    if not is_standalone(settings.master):
        return ""
    path = settings.spark_secret_file
    try:
        secret = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineSettingsError(f"pipeline.spark_secret_file: cannot read {path!r}: {error}") from error
    if len(secret) < SECRET_BYTES_MIN:
        raise PipelineSettingsError(
            f"pipeline.spark_secret_file: {path!r} has {len(secret)} characters, a secret has at least "
            f"{SECRET_BYTES_MIN}"
        )
    return secret


def authenticate_callbacks(gateway: JavaGateway) -> None:
    """Start the server in Python that the JVM calls, and have it refuse whoever does not know the gateway's token.

    Py4j supports that, but the JVM forgets the token when it is told the server's port (`PythonClient.copyWith`), so it
    gets another client here.
    """
    token = gateway.gateway_parameters.auth_token
    assert token, "PySpark's launcher has made one"
    gateway.callback_server_parameters.auth_token = token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    java = gateway.jvm
    server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
    forgetful = server.getCallbackClient()
    client = java.py4j.PythonClient(
        server.getGateway(),
        None,
        forgetful.getPort(),
        forgetful.getAddress(),
        _CALLBACK_IDLE_S,
        java.java.util.concurrent.TimeUnit.SECONDS,
        java.javax.net.SocketFactory.getDefault(),
        server,
        True,
        forgetful.getReadTimeout(),
        token,
    )
    field = java.java.lang.Class.forName("py4j.Gateway").getDeclaredField("cbClient")
    field.setAccessible(True)
    field.set(server.getGateway(), client)


LOOPBACK = "127.0.0.1"
ARROW_BATCH_BYTES = 8 * 1024 * 1024
SHUFFLE_PARTITIONS = 2
"""Tasks after a shuffle; more only cost time on one machine."""
POOL = "bulk"
"""In which Spark schedules archive, lake and traffic."""
_EXTRA_SLOTS = 2
_FIRST_WEIGHT = 1_000
_LOGGING = Path(__file__).with_name("log4j2.properties")


def spark_home() -> Path:
    """Where the Spark of PySpark is."""
    return Path(pyspark.__file__).parent


def submitted_master() -> str:
    """What spark-submit was told, in whose JVM this process runs; "" for nothing."""
    SparkContext._ensure_initialized()
    return SparkConf().get("spark.master") or ""


def logging_flag() -> str:
    """By which Java logs what the pipeline wants to know."""
    return f"-Dlog4j2.configurationFile={_LOGGING}"


def start_session(
    settings: PipelineSettings, places: Places, java: JavaRuntime, socket_dir: Path, partitions: int = 0
) -> SparkSession:
    """Start the JVM and a session in it. Takes seconds; sets this process's environment for Spark.

    `partitions` of a log in Kafka each hold a task slot at all times in real-time mode, and all of them are needed at
    once when its next batch begins.

    `socket_dir` is an existing directory with a short path, for the sockets between the JVM and Python.
    """
    os.environ["JAVA_HOME"] = str(java.home)
    if is_local(settings.master) or "PYSPARK_PYTHON" not in os.environ:  # executors may have theirs elsewhere
        os.environ["PYSPARK_PYTHON"] = sys.executable  # or the workers take another Python from the path
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PIN_THREAD"] = "true"  # a query's thread has the query's pool
    if not is_local(settings.master):
        # As an option executors would take it for theirs, and it is a place on this machine.
        os.environ["SPARK_LOCAL_DIRS"] = str(places.scratch)
    if is_local(settings.master) or is_on_loopback(settings.master):
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["LC_ALL"] = "C.UTF-8"  # or the JVM cannot name a directory after a topic outside ASCII
    places.scratch.mkdir(parents=True, exist_ok=True)
    pools = places.scratch / "pools.xml"
    pools.write_text(scheduler_pools(partitions))
    options = session_options(settings, places, socket_dir)
    options["spark.scheduler.allocation.file"] = (
        f"file://{pools}"  # as Hadoop takes it: nothing is percent-encoded
    )
    options["spark.driver.extraJavaOptions"] += java_words(trust_flags(settings, java, places.scratch))
    options |= {"spark.app.name": "embermq-pipeline", "spark.master": _master(settings, partitions)}
    options |= spark_options(settings)
    secret = cluster_secret(settings)
    # The JVM is started with these options on its command line, which everybody may read.
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(options.items())))
    if secret:
        options["spark.authenticate.secret"] = secret
    builder = SparkSession.builder
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    authenticate_callbacks(spark.sparkContext._gateway)
    if held_table.OPTIONS.items() <= options.items():
        held_table.load_log_store(spark, places.scratch / "classes")
    return spark


def jvm_process(spark: SparkSession) -> subprocess.Popen[bytes]:
    """The JVM that PySpark started."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is None:
        raise PipelineError("PySpark runs on a JVM that it did not start: unset PYSPARK_GATEWAY_PORT")
    assert isinstance(process, subprocess.Popen)
    return process


def trust_flags(settings: PipelineSettings, java: JavaRuntime, folder: Path) -> list[str]:
    """By which Java knows who may have signed the certificates of Kafka's servers when no file says so: whom this
    machine trusts, as the broker does. A system's own Java has been told; writes into `folder` for the other one."""
    kafka = settings.kafka if isinstance(settings, DriverSettings) else None
    if kafka is None or not kafka.tls or kafka.tls_ca_file or not java.is_installed_with_us:
        return []
    from embermq.pipeline.java_trust import trust_of_the_machine  # loads what reads certificates

    return trust_of_the_machine(folder / "trust.p12")


def java_words(flags: list[str]) -> str:
    """For Spark's launcher, which takes them apart as a shell does: paths may have spaces."""
    quoted = [flag.replace("\\", r"\\").replace('"', r"\"") for flag in flags]
    return "".join(f' "{flag}"' for flag in quoted)


def _master(settings: PipelineSettings, partitions: int) -> str:
    """More slots than cores, so that dispatch finds one while the archive or the lake keep theirs. Each query on Kafka
    has a task for each partition: with fewer slots dispatch waits at the start of a batch until others are done."""
    if settings.master != "local":
        return settings.master
    return f"local[{(os.cpu_count() or 1) + _EXTRA_SLOTS + partitions * len(settings.queries)}]"


def scheduler_pools(partitions: int) -> str:
    """As Spark reads them: a slot that gets free is dispatch's before it is one of archive, lake and traffic."""
    pools = "".join(
        f'<pool name="{query}"><schedulingMode>FIFO</schedulingMode>'
        f"<weight>{_FIRST_WEIGHT if query == 'dispatch' else 1}</weight>"
        f"<minShare>{partitions if query == 'dispatch' else 0}</minShare></pool>"
        for query in ("dispatch", POOL)
    )
    return f'<?xml version="1.0"?><allocations>{pools}</allocations>'


def _place_options(settings: PipelineSettings, scratch: Path, socket_dir: Path) -> dict[str, str]:
    """What depends on where the executors are, on who may speak to them, and on which log they read."""
    options = authentication_options(settings)
    if is_local(settings.master):
        options |= {
            "spark.local.dir": str(scratch),
            # Over loopback TCP each batch waits 40 ms for a delayed acknowledgement between the JVM and its worker.
            "spark.python.unix.domain.socket.dir": str(socket_dir),
        }
    if is_local(settings.master) or is_on_loopback(settings.master):
        options |= {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
    jars: list[Path] = []
    if writes_lake(settings):
        with suppress(
            PipelineSettingsError
        ):  # the query itself says what is missing; the others need not wait for it
            jars += lake_jars(settings)
            options |= lake_options(settings)
    if isinstance(settings, DriverSettings) and settings.kafka is not None:
        jars += connector_jars(settings)
        options |= {
            # As in local mode: a task that is tried again would hide what the query has to die of, an application log
            # that is missing; the query begins anew from its progress instead.
            "spark.task.maxFailures": "1",
            # Of options of sources and sinks that Spark shows: no URL, as by default, and no login.
            "spark.sql.redaction.options.regex": "(?i)url|jaas|password|secret",
        }
    return options | {"spark.jars": ",".join(map(str, jars))}


def _compiler(settings: PipelineSettings) -> list[str]:
    """On the embedded log Python reads and writes the records, and Java plans and commits. Code of which each line runs
    seldom is never worth Java's second compiler, which otherwise takes more CPU than all else."""
    plans_only = isinstance(settings, DriverSettings) and settings.kafka is None and not settings.rules
    return ["-XX:TieredStopAtLevel=1"] if plans_only else []


def lake_options(settings: PipelineSettings) -> dict[str, str]:
    """What writing the lake takes, at the place that the settings name."""
    options, endpoint = OPTIONS, settings.lake_s3_endpoint
    if slot_of_pipeline(settings) is not None:
        options = options | held_table.OPTIONS
    if not endpoint:
        return options
    return options | {
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        # What is not Amazon's has no name for each bucket, and needs a region in signatures alone.
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    }


def session_options(settings: PipelineSettings, places: Places, socket_dir: Path) -> dict[str, str]:
    """Every Spark option that differs from its default, and why where it is not plain."""
    scratch = places.scratch
    # The sockets of executors elsewhere are in their own temporary directories, and those of this JVM then in its own.
    temporary = [f"-Djava.io.tmpdir={scratch}"] if is_local(settings.master) else []
    return _place_options(settings, scratch, socket_dir) | {
        "spark.driver.memory": f"{settings.heap_mb}m",
        "spark.driver.extraJavaOptions": java_words(
            ["-XX:+UseSerialGC", *_compiler(settings), *temporary, logging_flag()]
        ),
        # What fails in a task, an overflowing stack too, fails its query and not this JVM with all the others.
        "spark.executor.killOnFatalError.depth": "0",
        # A result that does not fit fails, before there is no memory for the others.
        "spark.driver.maxResultSize": f"{settings.heap_mb // 2}m",
        # Between these a task that reads kept rows notices that it was ended.
        "spark.sql.inMemoryColumnarStorage.batchSize": "1000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.python.unix.domain.socket.enabled": "true",
        # Small batches: adaptive planning costs more than it saves.
        "spark.sql.adaptive.enabled": "false",
        # What a worker in Python, and the JVM beside it, hold at a time: whichever of the two is reached first.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
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
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        # A batch in a file is one task.
        "spark.sql.files.minPartitionNum": "1",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        # A writer holds one row group a file in memory.
        "spark.hadoop.parquet.block.size": str(16 * 1024 * 1024),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.ui.retainedExecutions": "5",
        "spark.ui.retainedJobs": "5",
        "spark.ui.retainedStages": "5",
        "spark.ui.retainedTasks": "20",
        "spark.cleaner.periodicGC.interval": "10min",
    }
