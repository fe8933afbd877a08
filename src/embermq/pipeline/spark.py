"""The message log for your own Spark programs: `format("embermq")`, streaming and batch. This module is public.

spark.dataSource.register(EmberMQSource)
messages = spark.readStream.format("embermq").option("data_dir", "/var/lib/embermq").load()

A log in Kafka is read by Spark's own source, and `messages_in_kafka` makes the same columns of it.
"""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from embermq.pipeline.errors import SourceOptionError
from embermq.pipeline.jars import connector_jars
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.places import Places
from embermq.pipeline.schema import record_schema
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.sources.log_file import LogFile
from embermq.pipeline.sources.message_log import MessageLogSource
from embermq.pipeline.transforms.kafka_records import records_from_kafka

FORMAT = "embermq"
RECORDS_MAX = 50_000
_OPTIONS = frozenset({"data_dir", "start", "end", "records_max"})


class EmberMQSource(DataSource):
    """Reads the embedded log of a data directory on this machine, while its broker runs or not.

    Options: `data_dir`; `start`, `earliest` (the default), `latest` or an offset, from where a new query reads; `end`,
    of a batch, the offset before which it ends; `records_max`, of a stream, records in one batch. The columns are
    those of `embermq.pipeline.schema.record_schema("all")`. Raises SourceOptionError, naming the option.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return record_schema("all")

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if "end" in self.options:
            raise SourceOptionError("end: a stream has none; use spark.read, or trigger(availableNow=True)")
        return self._source().streamReader(schema)

    def _source(self) -> MessageLogSource:
        given: dict[str, Any] = {name.lower(): value for name, value in self.options.items()}
        if unknown := sorted(given.keys() - _OPTIONS):
            raise SourceOptionError(
                f"{unknown[0]}: no option of {FORMAT}; it has {', '.join(sorted(_OPTIONS))}"
            )
        folder = Places(Path(given.get("data_dir", ""))).log
        if "data_dir" not in given or not folder.is_dir():
            raise SourceOptionError(
                f"data_dir: {given.get('data_dir', '')!r} has no embedded message log ({folder.name}/)"
            )
        options = {
            "path": str(folder),
            "records_max": str(_number(given, "records_max", RECORDS_MAX, least=1)),
        }
        start = given.get("start", "earliest")
        if start == "latest":
            options["start"] = str(_end_of(folder))
        elif start != "earliest":
            options["start"] = str(_number(given, "start", 0, least=0))
        if "end" in given:
            options["end"] = str(_number(given, "end", 0, least=0))
        return MessageLogSource(options)


def messages_in_kafka(rows: DataFrame, prefix: str = "embermq") -> DataFrame:
    """The columns of `EmberMQSource` of what Spark's source `kafka` has of `<prefix>.msg.all`, with the option
    `includeHeaders`: a stream or a batch, on any master."""
    return records_from_kafka(rows, KafkaLog(bootstrap="", prefix=prefix).application_prefix)


def kafka_jars() -> str:
    """What `spark.jars` needs for that, in the folder of `embermq pipeline fetch-jars`. Raises PipelineSettingsError
    when one is missing."""
    return ",".join(map(str, connector_jars(PipelineSettings())))


def _number(given: dict[str, Any], name: str, default: int, *, least: int) -> int:
    text = str(given.get(name, default))
    if not text.isdigit() or int(text) < least:
        raise SourceOptionError(f"{name}: {text!r} is not a whole number of at least {least}")
    return int(text)


def _end_of(folder: Path) -> int:
    log = LogFile(folder)
    try:
        return log.end() or 0
    finally:
        log.close()
