"""Past messages of whichever log there is, by what a job asks of it: a stretch of positions or of time."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from embermq.pipeline.jobs.past_records import PastRecords, begins_before, log_bounds
from embermq.pipeline.jobs.replay_values import ReplayRange
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings, PipelineSettings


class PastMessages(Protocol):
    """A log as it was when it was looked at last, and the lake for what that has let go of."""

    @property
    def log_end(self) -> int:
        """The position of the next record."""
        ...

    def look(self) -> bool:
        """Look again; whether the log has let go of something since."""
        ...

    def begins_before(self, wanted: ReplayRange) -> bool:
        """Whether the range may have something that the log has not."""
        ...

    def let_go(self, wanted: ReplayRange) -> int:
        """How many positions of a range with a `start` the log does not have any more."""
        ...

    def in_log(self, spark: SparkSession, wanted: ReplayRange) -> DataFrame:
        """What the log has of it, in its order."""
        ...

    def in_lake(self, spark: SparkSession, wanted: ReplayRange) -> DataFrame:
        """What the log does not have, in any order. Raises ReplayError when there is no lake."""
        ...

    def close(self) -> None:
        """Let go of what is open; nothing is asked afterwards."""
        ...


def past_messages(settings: PipelineSettings, places: Places) -> PastMessages:
    """Those of the log that the settings name. Raises KafkaLogError."""
    if isinstance(settings, DriverSettings) and settings.kafka is not None:
        from embermq.pipeline.jobs.kafka_past_messages import KafkaPastMessages  # not in every installation

        return KafkaPastMessages(settings, settings.kafka, places)
    return PastInFiles(settings, places)


class PastInFiles:
    """Past messages of the embedded log and its lake."""

    def __init__(self, settings: PipelineSettings, places: Places) -> None:
        self._settings = settings
        self._places = places
        self._bounds = log_bounds(places)

    @property
    def log_end(self) -> int:
        return self._bounds.end

    def look(self) -> bool:
        before, self._bounds = self._bounds, log_bounds(self._places)
        return self._bounds.first != before.first

    def begins_before(self, wanted: ReplayRange) -> bool:
        return begins_before(self._places, wanted, self._bounds)

    def let_go(self, wanted: ReplayRange) -> int:
        return max(0, min(self._bounds.first, wanted.end) - (wanted.start or 0))

    def in_log(self, spark: SparkSession, wanted: ReplayRange) -> DataFrame:
        return PastRecords(spark, self._settings, self._places).in_log(wanted, self._bounds)

    def in_lake(self, spark: SparkSession, wanted: ReplayRange) -> DataFrame:
        return PastRecords(spark, self._settings, self._places).in_lake(wanted, self._bounds)

    def close(self) -> None:
        return
