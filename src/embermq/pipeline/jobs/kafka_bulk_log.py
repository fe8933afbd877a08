"""The message log in Kafka as archive, lake and traffic read it: by Spark's source, with starting and ending offsets.

How far the log is, is what `KafkaLags` saw last: the loop waits for no answer of Kafka.
"""

import math
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.jobs.bulk_log import BulkBatch, BulkLog
from embermq.pipeline.jobs.kafka_ranges import read_ranges
from embermq.pipeline.kafka_lags import KafkaLags
from embermq.pipeline.log_look import Bounds, Positions
from embermq.pipeline.schema import no_rows, record_schema, traffic_schema
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sources.kafka_positions import KafkaPositions
from embermq.pipeline.sources.lost_ends import begin_within
from embermq.pipeline.transforms.kafka_records import receipts_from_kafka, records_from_kafka

CLOCK_SLACK_MS = 60_000
"""By how much the times of Kafka's records may differ from when messages were accepted."""
FIRST_RECORDS = 1_000
"""In the first batch, before it is known how large records are."""
RECORD_BYTES = 128
"""What a record has beside its payload, about."""


class KafkaBulkLog(BulkLog):
    """One topic with partitions, and the topic of receipts beside it."""

    is_partitioned = True

    def __init__(
        self, positions: KafkaPositions, lags: KafkaLags, settings: DriverSettings, spark: SparkSession
    ) -> None:
        self._positions = positions
        self._kafka = positions.kafka
        self._lags = lags
        self._settings = settings
        self._spark = spark
        self._record_bytes = settings.max_bytes_per_batch // FIRST_RECORDS
        if "traffic" in settings.queries:
            lags.watch(self._kafka.receipts_topic)

    def look(self) -> None:
        self.bounds = self._lags.bounds

    def identity(self) -> int:
        return self._positions.archive_id()

    def starts(self, query: str, done: Positions) -> dict[int, int]:
        return begin_within(query, self._kafka.log_topic, done, self.bounds)

    def since(self, time_ms: int) -> dict[int, int]:
        ends = {number: bounds.end for number, bounds in self.bounds.items()}
        # Kafka finds by the time of its record, which the clock of the broker made.
        return {**self._positions.offsets_since(time_ms - CLOCK_SLACK_MS, ends)}

    def bounded(self, starts: Positions, ends: Positions) -> dict[int, int]:
        """Of each partition as many as it has a share of what waits."""
        settings = self._settings
        most = min(settings.max_records_per_batch, settings.max_bytes_per_batch // self._record_bytes)
        waiting = {number: ends[number] - at for number, at in starts.items()}
        share = min(1.0, max(1, most) / max(1, sum(waiting.values())))
        return {number: at + math.ceil(waiting[number] * share) for number, at in starts.items()}

    def read(self, begin: Positions, end: Positions) -> DataFrame:
        rows = self._read(self._kafka.log_topic, begin, end)
        if rows is None:
            return no_rows(self._spark, record_schema())
        return records_from_kafka(rows, self._kafka.application_prefix, has_copies=self._kafka.has_copies)

    def probe(self, starts: Positions) -> BulkBatch:
        """The last record before, where there is one."""
        before = {number: max(self.bounds[number].first, at - 1) for number, at in starts.items()}
        return BulkBatch(self.read(before, starts))

    def receipt_bounds(self) -> Mapping[int, Bounds]:
        """The broker makes their topic; without it latencies are missing, and nothing else."""
        return self._lags.watched.get(self._kafka.receipts_topic, {})

    def read_receipts(self, begin: Positions, end: Positions) -> DataFrame:
        rows = self._read(self._kafka.receipts_topic, begin, end)
        if rows is None:
            return no_rows(self._spark, traffic_schema())
        return receipts_from_kafka(rows)

    def measure(self, rows: DataFrame) -> None:
        """Offsets do not tell it: the next batch goes by the mean of this one."""
        payload = F.coalesce("payload_bytes", F.octet_length("body"), F.lit(0))
        (mean,) = rows.agg(F.avg(payload)).collect()[0]
        if mean is not None:
            self._record_bytes = RECORD_BYTES + round(mean)

    def publish(self, query: str, positions: Positions) -> None:
        self._positions.publish(query, positions)

    def _read(self, topic: str, begin: Positions, end: Positions) -> DataFrame | None:
        return read_ranges(self._spark, self._kafka, topic, begin, end)
