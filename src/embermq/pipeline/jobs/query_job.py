"""What the keeper needs of a query, whichever log it reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings, QueryName

if TYPE_CHECKING:  # Kafka's client is not there in every installation
    from embermq.pipeline.jobs.application_topics import SessionTopics
    from embermq.pipeline.sources.kafka_positions import KafkaPositions


class LastBatch(Struct, frozen=True):
    """The newest batch that had its effect: positions covered, how long the sink took, when it ended."""

    records: int
    duration_ms: int
    at_ms: int


class KafkaSide(Struct, frozen=True):
    """What jobs on a log in Kafka have besides."""

    positions: KafkaPositions
    topics: SessionTopics


class JobSetup(Struct, frozen=True):
    """What every job is made of. `kafka` is None for the embedded log."""

    settings: DriverSettings
    places: Places
    kafka: KafkaSide | None = None


class QueryJob(ABC):
    """One query: started, looked after, started again after it has died."""

    name: QueryName
    mode: str = "microbatch"
    last_batch: LastBatch | None = None
    totals: Mapping[str, int] = MappingProxyType({})
    """On Kafka: what the sink has counted, as it was seen last."""

    @classmethod
    @abstractmethod
    def create(cls, setup: JobSetup) -> QueryJob:
        """Open the sink, and return the job that writes to it."""

    @abstractmethod
    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start from the progress of the sink, whatever became of the query before."""

    def has_begun(self, query: StreamingQuery) -> bool:
        """Whether something has gone all the way through `query`, which `start` has returned."""
        return query.lastProgress is not None

    @abstractmethod
    def upkeep(self, now_ms: int) -> None:
        """Once a second while the query runs; what it raises ends the query."""

    def begins_anew(self) -> bool:
        """Whether the query is to be started again, asked behind each `upkeep`: that is no failure."""
        return False

    @abstractmethod
    def quiesce(self, timeout_s: float) -> None:
        """Wait until no batch is being written, and let none begin."""

    def heal(self, reason: str) -> bool:
        """Whether what the query died of is put right, so that it need not wait; `reason` is all that Spark said."""
        return False
