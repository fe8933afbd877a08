"""Settings of the pipeline; composed by app into the broker's one schema (section `pipeline`)."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal

from msgspec import Struct, field

from embermq.database.database_url import SqlSettings
from embermq.pipeline.errors import PipelineSettingsError
from embermq.pipeline.kafka_log import KafkaLog, check_kafka
from embermq.pipeline.rules.settings import RuleSettings

QueryName = Literal["dispatch", "archive", "lake", "traffic"]
Mode = Literal["auto", "microbatch", "realtime"]
PinPolicy = Literal["refuse", "drop-oldest", "pause"]
QueryPin = Literal[
    "archive:pause", "archive:refuse", "lake:pause", "lake:refuse", "traffic:pause", "traffic:refuse"
]

QUERIES: tuple[QueryName, ...] = ("dispatch", "archive", "lake", "traffic")
RESTARTS_MAX = 5
BACKOFF_FIRST_MS = 500
PINNED = ("archive", "lake", "traffic")
"""Queries for which nobody waits, so that each has a policy of its own."""


def is_spark_installed() -> bool:
    """Whether PySpark is there: it is an extra."""
    return find_spec("pyspark") is not None


class PipelineSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Spark pipeline and its bounds; what the embedded stores cannot run is refused."""

    enabled: bool = field(default_factory=is_spark_installed)
    """Whether the broker starts Spark; without it application logs wait. `false` by default where Spark is not
    installed."""
    queries: tuple[QueryName, ...] = QUERIES
    """Which queries run. Without `dispatch` application logs wait. With it alone Spark starts with the first
    APPLICATION session."""
    mode: Mode = "auto"
    """`auto` is `realtime` for dispatch on Kafka and `microbatch` on the embedded log, where real-time mode is
    refused."""
    master: str = "local"
    """`local` (as many task slots as cores, two more, and one for each query and partition of a log in Kafka) or
    `local[N]`. On Kafka also `spark://...`, `yarn` or `k8s://...`, with the message store on a server and the lake in
    object storage."""
    checkpoints_dir: str = ""
    """Where Spark keeps the checkpoints of queries on Kafka: a folder, or a URL such as `hdfs://...`; "" for
    `pipeline/checkpoints` in the data directory. They are made anew at each start of a query, below
    `kafka.prefix`."""
    spark_secret_file: str = ""
    """File with the secret that a standalone master (`spark://...`) and its workers have as
    `spark.authenticate.secret`, 16 characters or more; other masters need none."""
    spark_options: tuple[str, ...] = ()
    """Options of Spark's own, `spark.NAME=VALUE` each: `spark.ui.enabled=true`, `spark.eventLog.enabled=true`,
    `spark.executor.memory=2g`. They win over EmberMQ's; those that decide who may enter or what is exact are
    refused."""
    jars_dir: str = ""
    """Where the jars for Kafka and the lake are (`embermq pipeline fetch-jars`); else `share/embermq/jars` of the
    Python environment in which EmberMQ is installed."""
    heap_mb: int = 512
    """The largest heap of the JVM, MiB; Spark starts with no less than 480."""
    nice: int = 5
    """Niceness of the pipeline's processes, 0 to 19: with too little CPU, clients come first."""

    lake_dir: str = ""
    """Where the lake is: a folder, or `s3a://BUCKET/PATH`; "" for `lake` in the data directory. Keys for S3 come from
    the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`) or the machine's role."""
    lake_s3_endpoint: str = ""
    """URL (http or https) of storage that speaks S3 and is not Amazon's."""
    lake_retention_days: int = 0
    """How many days the lake keeps records; 0: for ever."""

    pin_policies: tuple[QueryPin, ...] = ()
    """Queries under which the log does not simply go on when they hold back more of it than readers may (four fifths of
    `log.disk_budget_bytes`), and count what they missed: `lake:pause` stops the query as well, until `embermq pipeline
    resume lake`; `archive:refuse` refuses all QoS 1 and 2 publishes instead. Dispatch goes by `log.pin_policy`."""
    retention_hours: int = 168
    """How long the message store keeps a message, and `traffic.db` a window."""

    counts_for_ready: bool = False
    """Whether `/ready` is 503 while the pipeline is `failed` or `down`. MQTT is served without it."""


class DriverSettings(PipelineSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the broker hands to the driver, over its standard input: the settings, where other stores are, and bounds
    whose defaults are what every broker runs with. No setting changes these; tests hand over narrower ones."""

    message_store: str = ""
    """URL of the server that holds the message store, its password included; "" for messages.db."""
    sql: SqlSettings = SqlSettings()
    """How that server is spoken to."""
    kafka: KafkaLog | None = None
    """Where the message log is in Kafka; None for the embedded one."""

    rules: Mapping[str, RuleSettings] = {}
    """Those that run."""
    has_waited: bool = False
    """Whether there was no APPLICATION session until now: what is not in the log any more was owed to nobody, and
    dispatch does not count it as missing."""
    elsewhere: bool = False
    """Whether the driver runs without the broker's data directory: then it says in Kafka how it is."""
    executors_wait_s: float = 15.0
    """How long dispatch in real-time mode waits for executors with enough task slots before it says that there are too
    few."""
    target_wait_ms: int = 5_000
    """How long dispatch waits for an application log in Kafka that is not there, before it has it made again."""
    producer_bytes_max: int = 64 * 1024 * 1024
    """Records on their way to application logs in Kafka, for each task; never less than the largest message."""
    max_records_per_batch: int = 50_000
    """Records of the message log read for one batch."""
    bulk_records_per_batch: int = 150_000
    """The same of archive, lake and traffic, which keep them on disk: so many come in `bulk_trigger_ms` at 5,000 a
    second, and each batch costs CPU however many it has."""
    max_bytes_per_batch: int = 32 * 1024 * 1024
    """Bodies read for one batch. One tick of the embedded log is always read, however large. On Kafka archive, lake and
    traffic go by the mean of the batch before; dispatch has no such limit, since it collects no records."""
    split_records: int = 10_000
    """A batch of at least twice this many records is read by two tasks."""
    dispatch_trigger_ms: int = 1_000
    """From the start of one micro-batch of dispatch to the start of the next, unless a full one waits. Clients that are
    there and have all before do not wait for it, and each batch costs CPU."""
    dispatch_rest_ms: int = 10_000
    """The same while no record has a stamp: only its progress is written."""
    bulk_trigger_ms: int = 30_000
    """From the start of one batch of archive, lake and traffic to the start of the next, unless a full one waits:
    each batch costs CPU, and a commit and a file of the lake."""
    realtime_batch_s: int = 5
    """Length of a batch in real-time mode, the shortest that Spark takes: records go on at once, progress is written at
    its end. Longer ones repeat more after a kill, and have fewer spikes of latency, one at each end."""
    rest_after_s: float = 120.0
    """When nothing has come for so long, batches of real-time mode have the length `rest_batch_s` until one has a
    record: each costs CPU, whether it has one or not."""
    rest_batch_s: int = 30
    rule_trigger_ms: int = 1_000
    """From the start of one batch of a rule to the start of the next."""
    rule_timeout_s: float = 60.0
    """How long a rule may take for a batch, before it is halved, and for a message, before that is set aside."""
    idle_wait_ms: int = 1_000
    """How long a source waits for a first record before it returns an empty batch to Spark."""
    poll_ms: int = 10
    """How often a waiting source looks at the log."""
    archive_timeout_s: int = 60
    """Where the message store is on a server: how long a statement of a batch may take before it counts as away."""
    traffic_window_s: int = 10
    """Length of a traffic window."""
    prune_rows_max: int = 20_000
    """Rows deleted in one round of trimming or pruning."""
    restarts_max: int = RESTARTS_MAX
    backoff_first_ms: int = BACKOFF_FIRST_MS
    """Pause before the first restart of a query or of the driver; it doubles each time."""
    restart_window_s: int = 300
    """More than `restarts_max` restarts of the driver in this time: state `failed`, in which it is restarted
    at growing intervals."""
    backoff_max_ms: int = 30_000
    """The longest such pause; 20 times that while the state is `failed`."""
    progress_timeout_s: int = 120
    """A query without progress for so long, and the time between two of its batches, while records wait: the
    pipeline counts as down, and its driver is restarted. Doubles with each restart that did not help."""
    stop_timeout_s: float = 4.0
    """How long the driver may take to stop before it is killed with all that it started."""
    driver_log_bytes_max: int = 4 * 1024 * 1024
    """Past this size `driver.log` is moved to `driver.log.1`, in place of the one before."""

    def __repr__(self) -> str:
        store = "message_store on a server" if self.message_store else "message_store in a file"
        return f"DriverSettings({store}, log: {self.kafka or 'embedded'})"


def pin_policies(settings: PipelineSettings) -> dict[str, PinPolicy]:
    """What becomes of each query that holds back too much of the log; dispatch goes by the log's own policy."""
    found: dict[str, PinPolicy] = dict.fromkeys(PINNED, "drop-oldest")
    for pin in settings.pin_policies:
        query, _, policy = pin.partition(":")
        found[query] = "pause" if policy == "pause" else "refuse"
    return found


NICE_MAX = 19
_OURS = (
    ("spark.master", "is pipeline.master"),
    ("spark.driver.memory", "is pipeline.heap_mb"),
    ("spark.jars", "comes with EmberMQ (pipeline.jars_dir); other jars may read what the queries read"),
    ("spark.authenticate", "says who may enter Spark's ports"),
    ("spark.network.crypto", "says who may enter Spark's ports"),
    ("spark.task.maxFailures", "decides what a query dies of"),
    ("spark.speculation", "would write records of an application log twice"),
    ("spark.scheduler", "gives dispatch its task slots"),
    ("spark.sql.extensions", "is the lake's"),
    ("spark.sql.catalog", "is the lake's"),
    ("spark.sql.session.timeZone", "decides the dates of the lake"),
)
"""Beginnings of options that nobody else may set, and why."""
_SECRET = re.compile(r"secret|passw|token|access\.?key|credential", re.IGNORECASE)
_SECRET_INSIDE = re.compile(
    rf"(?P<name>-D[^\s=]*(?:{_SECRET.pattern})[^\s=]*)=\S|(?P<url>[a-z][a-z0-9+.-]*://)[^\s/@]+@",
    re.IGNORECASE,
)
"""In a value: an option of Java's, or a URL with a user."""
_S3 = "s3a://"
_REMOTE = ("spark://", "yarn", "k8s://")

_AT_LEAST: dict[str, int] = {
    "heap_mb": 480,
    "nice": 0,
    "retention_hours": 1,
    "lake_retention_days": 0,
}


def check_settings(settings: PipelineSettings) -> None:
    """Raise PipelineSettingsError, naming the setting, for what this log and these stores cannot run."""
    kafka = settings.kafka if isinstance(settings, DriverSettings) else None
    if kafka is None:
        _check_embedded(settings)
    else:
        check_kafka(kafka)
        _check_on_kafka(settings)
    if len(set(settings.queries)) != len(settings.queries):
        raise PipelineSettingsError(f"pipeline.queries = {list(settings.queries)}: a query is named twice")
    pinned = [pin.partition(":")[0] for pin in settings.pin_policies]
    if len(set(pinned)) != len(pinned):
        raise PipelineSettingsError(
            f"pipeline.pin_policies = {list(settings.pin_policies)}: a query is named twice"
        )
    for name, least in _AT_LEAST.items():
        value = getattr(settings, name)
        if value < least:
            raise PipelineSettingsError(f"pipeline.{name} = {value}: must be at least {least}")
    _check_lake(settings)
    spark_options(settings)
    if settings.nice > NICE_MAX:
        raise PipelineSettingsError(f"pipeline.nice = {settings.nice}: must be at most {NICE_MAX}")


def spark_options(settings: PipelineSettings) -> dict[str, str]:
    """Spark's own options that the settings name. Raises PipelineSettingsError for those that are none, are EmberMQ's
    own, or would show a secret: the JVM has them on its command line."""
    found: dict[str, str] = {}
    for option in settings.spark_options:
        name, equals, value = option.partition("=")
        name = name.strip()
        if _SECRET.search(name):
            raise PipelineSettingsError(
                f"pipeline.spark_options: {name} is a secret, which everybody could read on a command line; give it "
                "to Spark in its environment or in SPARK_CONF_DIR"
            )
        if inside := _SECRET_INSIDE.search(value):
            what = f"{inside['name']}=..." if inside["name"] else f"{inside['url']}...@..."
            raise PipelineSettingsError(
                f"pipeline.spark_options: {name} has {what} in its value, a secret that everybody could read on a "
                "command line; give it to Spark in its environment or in SPARK_CONF_DIR"
            )
        if not equals or not name.startswith("spark."):
            raise PipelineSettingsError(f"pipeline.spark_options: {option!r} is not spark.NAME=VALUE")
        if why := next((why for ours, why in _OURS if name == ours or name.startswith(f"{ours}.")), ""):
            raise PipelineSettingsError(f"pipeline.spark_options: {name} cannot be set here, it {why}")
        found[name] = value.strip()
    return found


def writes_lake(settings: PipelineSettings) -> bool:
    """Whether a query or a rule does."""
    return "lake" in settings.queries or _writes_beside_lake(settings)


def _writes_beside_lake(settings: PipelineSettings) -> bool:
    rules = settings.rules.values() if isinstance(settings, DriverSettings) else ()
    return any(rule.to == "lake" for rule in rules) or has_traffic_table(settings)


def has_traffic_table(settings: PipelineSettings) -> bool:
    """Whether traffic is a table beside the lake, of several slots, and no file."""
    return "traffic" in settings.queries and slot_of_pipeline(settings) is not None


def is_s3(settings: PipelineSettings) -> bool:
    """Whether the lake is in object storage."""
    return settings.lake_dir.startswith(_S3)


def slot_of_pipeline(settings: PipelineSettings) -> int | None:
    """Of a cluster with several slots, whose drivers write the same tables, each what is of its slot; None without."""
    kafka = settings.kafka if isinstance(settings, DriverSettings) else None
    return None if kafka is None else kafka.slot


def _check_lake(settings: PipelineSettings) -> None:
    if "://" in settings.lake_dir and not is_s3(settings):
        raise PipelineSettingsError(
            f"pipeline.lake_dir = {settings.lake_dir!r}: must be a folder, or {_S3}BUCKET/PATH"
        )
    endpoint = settings.lake_s3_endpoint
    for name, url in {"lake_dir": settings.lake_dir, "lake_s3_endpoint": endpoint}.items():
        if "://" in url and "@" in url:  # and is not shown
            raise PipelineSettingsError(
                f"pipeline.{name}: keys for S3 do not belong in a URL; they come from the environment"
            )
    if endpoint and not is_s3(settings):
        raise PipelineSettingsError(
            f"pipeline.lake_s3_endpoint = {endpoint!r}: pipeline.lake_dir = {settings.lake_dir!r} is not in S3"
        )
    if endpoint and endpoint.partition("://")[0] not in ("http", "https"):
        raise PipelineSettingsError(
            f"pipeline.lake_s3_endpoint = {endpoint!r}: must be a URL of http or https"
        )
    if (
        is_s3(settings)
        and "/" not in settings.lake_dir.removeprefix(_S3).strip("/")
        and _writes_beside_lake(settings)
    ):
        raise PipelineSettingsError(
            f"pipeline.lake_dir = {settings.lake_dir!r}: a rule to the lake, and traffic of a cluster, need a PATH "
            "behind the bucket, beside which their tables are"
        )


def _check_embedded(settings: PipelineSettings) -> None:
    if settings.mode == "realtime":
        raise PipelineSettingsError(
            "pipeline.mode = 'realtime': Spark's real-time mode reads Kafka only, and this broker's message log is "
            "the embedded one; use 'auto' or 'microbatch'"
        )
    if not is_local(settings.master):
        raise PipelineSettingsError(
            f"pipeline.master = {settings.master!r}: the embedded source and sinks are files of this machine, so a "
            "remote Spark master cannot reach them; use 'local' or 'local[N]'"
        )


def _check_on_kafka(settings: PipelineSettings) -> None:
    assert isinstance(settings, DriverSettings)
    if is_local(settings.master):
        return
    if not settings.master.startswith(_REMOTE):
        raise PipelineSettingsError(
            f"pipeline.master = {settings.master!r}: use 'local', 'local[N]', 'spark://...', 'yarn' or 'k8s://...'"
        )
    files = {
        "lake": ""
        if is_s3(settings)
        else f"{settings.lake_dir or 'lake/'}; set pipeline.lake_dir to {_S3}BUCKET/PATH",
        "archive": "" if settings.message_store else "messages.db; set stores.static to an SQL server",
    }
    for query in settings.queries:
        if file := files.get(query):
            name, _, instead = file.partition("; ")
            raise PipelineSettingsError(
                f"pipeline.master = {settings.master!r}: the query {query} writes {name}, a file of this machine that "
                f"a remote Spark master cannot reach; {instead}, use a local master, or leave it out of "
                "pipeline.queries"
            )
    for name, rule in settings.rules.items():
        if rule.to == "lake" and not is_s3(settings):
            raise PipelineSettingsError(
                f"pipeline.master = {settings.master!r}: rules.{name} writes a table in a folder of this machine, "
                f"which a remote Spark master cannot reach; set pipeline.lake_dir to {_S3}BUCKET/PATH, or use a local "
                "master"
            )
        if rule.tables:
            raise PipelineSettingsError(
                f"pipeline.master = {settings.master!r}: rules.{name}.tables are files of this machine that a remote "
                "Spark master cannot read; use a local master"
            )
    if is_standalone(settings.master) and not settings.spark_secret_file:
        raise PipelineSettingsError(
            f"pipeline.master = {settings.master!r} needs pipeline.spark_secret_file: the file with the "
            "spark.authenticate.secret of that master and its workers, without which Spark runs what anybody sends it"
        )


def is_standalone(master: str) -> bool:
    """Whether it is Spark's own cluster, where nobody hands out a secret."""
    return master.startswith("spark://")


def is_on_loopback(master: str) -> bool:
    """Whether a standalone master is on this machine's loopback address."""
    servers = [server.rpartition(":")[0] for server in master.removeprefix("spark://").split(",")]
    return is_standalone(master) and all(host == "localhost" or host.startswith("127.") for host in servers)


def is_local(master: str) -> bool:
    """Whether Spark runs inside the driver's own JVM."""
    slots = master.removeprefix("local[").removesuffix("]")
    return master == "local" or (
        master == f"local[{slots}]" and (slots == "*" or (slots.isdigit() and int(slots) > 0))
    )
