"""What dispatch on Kafka watches besides its records: whether anything gets done, and what its topics take."""

import logging
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from embermq.pipeline.sources.kafka_positions import KafkaPositions


def fresh_checkpoint(spark: SparkSession, folder: str, query: str) -> str:
    """The place of a query's checkpoint below `folder`, with nothing in it."""
    if "://" not in folder:
        place = Path(folder) / query
        shutil.rmtree(place, ignore_errors=True)
        return str(place)
    url = f"{folder.rstrip('/')}/{query}"
    context = spark.sparkContext
    path: Any = context._jvm.org.apache.hadoop.fs.Path(url)  # type: ignore[union-attr]
    path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)
    return url


DOUBLED_MAX = 4


class Standstill:
    """How long the same positions have been behind. `look_s` is when to look next.

    Patience doubles with each run that was held up: a batch may take long because there is too little CPU as well, and
    would never end if it were begun anew each time.
    """

    def __init__(self) -> None:
        self.look_s = 0.0
        self._behind: Mapping[int, int] = {}
        self._since_s = 0.0
        self._held_up = 0

    def begin(self) -> None:
        """A run begins, or it is not known what is behind."""
        self.look_s = 0.0
        self._behind = {}

    def went_on(self) -> None:
        self._held_up = 0

    def too_long_s(self, now_s: float, behind: Mapping[int, int], batch_s: float, patience_s: float) -> float:
        """Seconds for which none of `behind` has moved, when these are more than a batch and the patience; else 0.

        `behind` is the next offset of each partition that is not at its end.
        """
        if not behind or behind != self._behind:
            self._behind, self._since_s = behind, now_s
        lasts_s = now_s - self._since_s
        if lasts_s <= batch_s + patience_s * (1 << min(self._held_up, DOUBLED_MAX)):
            return 0.0
        self._held_up += 1
        return lasts_s


SHOWN = 3


def told_of(logs: Mapping[str, int]) -> str:
    """Logs and the partition of each in words for log lines, the first few of them by name."""
    shown = [f"{log} (partition {partition})" for log, partition in sorted(logs.items())[:SHOWN]]
    more = len(logs) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


REFUSED = "RecordTooLargeException"
"""In what Spark says of a record that Kafka did not take."""
REJECTED_ROOM = 64 * 1024
"""A rejected record is larger than the one of the log: by its reason."""
RAISED_S = 60.0
"""So long what the query dies of may be a limit that has been raised: not all servers know it at once."""

log = logging.getLogger(__name__)


class RecordLimits:
    """Kafka says neither which record it has refused nor for which topic: all are looked at then."""

    def __init__(self, positions: KafkaPositions) -> None:
        self._positions = positions
        self._raised_s = -RAISED_S

    def heal(self, topics: Collection[str]) -> bool:
        """Something was too large for one of these, or for the rejected records: have each take what the message log
        takes. Whether the next run need not die of it. Raises KafkaLogError."""
        kafka = self._positions.kafka
        needed = self._positions.record_limits([kafka.log_topic]).get(kafka.log_topic, 0)
        wanted = dict.fromkeys(topics, needed) | {kafka.rejected_topic: needed + REJECTED_ROOM}
        found = self._positions.record_limits(wanted)
        small = {topic: wanted[topic] for topic, limit in found.items() if limit < wanted[topic]}
        refused = self._positions.raise_record_limits(small)
        for topic, why in refused.items():
            log.error(
                "%s takes records of %d bytes (max.message.bytes) and may not take more: give it %d by hand, dispatch "
                "waits until then: %s",
                topic,
                found[topic],
                wanted[topic],
                why,
            )
        if raised := sorted(small.keys() - refused.keys()):
            self._raised_s = time.monotonic()
            log.warning("%d topics take larger records now, %s the first", len(raised), raised[0])
        return time.monotonic() - self._raised_s < RAISED_S
