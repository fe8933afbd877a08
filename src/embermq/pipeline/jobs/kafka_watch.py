"""What dispatch on Kafka watches besides its records: leaders, limits of topics, what is carried, and standstill.

How far dispatch has carried the message log, where not all application logs take what is for them.

A log that has a partition without a leader takes nothing, and one producer that waits for it would hold up everybody.
So a run may leave logs out. They lag then: what is for them is carried later, from where they were left, and the others
do not get it once more. What is published is what every log has got, so a driver that dies meanwhile repeats, and
loses nothing.
"""

import logging
import shutil
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from pyspark.sql import SparkSession

from embermq.pipeline.errors import KafkaLogError
from embermq.pipeline.sources.kafka_positions import KafkaPositions, Positions


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


LEADER_S = 10.0
"""So long a partition has no leader, and nothing gets done for a batch and as long, before a log is left out: the
servers that are there need some seconds to find a new leader."""
SHOWN = 3


class Leaders:
    """Since when each log lacks one, and whether that holds up the query, over all its runs: what cannot be sent fills
    the memory for it, and the run may die of that sooner than it is given up."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._standstill = Standstill()

    def begin(self) -> None:
        """It is not known what is behind."""
        self._standstill.begin()

    def went_on(self) -> None:
        self._standstill.went_on()

    def to_leave_out(
        self, now_s: float, without: Mapping[str, int], behind: Mapping[int, int], batch_s: float
    ) -> list[str]:
        """Logs that hold up what is `behind`. `without` names those that have no leader, with the partition."""
        self._since_s = {log: self._since_s.get(log, now_s) for log in without}
        lasting = [log for log, since_s in self._since_s.items() if now_s - since_s >= LEADER_S]
        if not lasting or not self._standstill.too_long_s(now_s, behind, batch_s, LEADER_S):
            return []
        return lasting


def told_of(logs: Mapping[str, int]) -> str:
    """Logs and the partition of each in words for log lines, the first few of them by name."""
    shown = [f"{log} (partition {partition})" for log, partition in sorted(logs.items())[:SHOWN]]
    more = len(logs) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


REFUSED = "RecordTooLargeException"
"""In what Spark says of a record that Kafka did not take."""
REJECTED_ROOM = 64 * 1024
"""A rejected record is larger than the one of the log: by its reason."""
LOOKED_MAX = 500
"""Topics whose limits are asked for at one look."""
RAISED_S = 60.0
"""So long what the query dies of may be a limit that has been raised: not all servers know it at once."""

log = logging.getLogger(__name__)


class RecordLimits:
    """Kafka says neither which record it has refused nor for which topic. So all are looked at then; and each log once
    before, so that one of an older setting is no surprise."""

    def __init__(self, positions: KafkaPositions) -> None:
        self._positions = positions
        self._narrow: dict[str, int] = {}
        """What may not be raised, with what it takes."""
        self._known: Mapping[str, int] = {}
        """The same, as the query that runs knows it."""
        self._in_turn: deque[str] = deque()
        self._looked: set[str] = set()
        self._has_told = False
        self._raised_s = -RAISED_S

    def begin(self) -> Mapping[str, int]:
        """A run begins: the topics that take too little, with what they take. Larger records are to be rejected."""
        self._known = dict(self._narrow)
        self._in_turn = deque(self._known)
        return self._known

    def look_at_new(self, there: Collection[str]) -> None:
        """Logs that were not there before, some at a time."""
        self._looked.intersection_update(there)
        needed = self._positions.kafka.record_bytes_max
        new = [topic for topic in there if topic not in self._looked][:LOOKED_MAX] if needed else []
        if new:
            self._looked.update(new)
            try:
                self._widen(new, needed)
            except KafkaLogError as error:
                level = logging.DEBUG if self._has_told else logging.WARNING
                log.log(level, "whether application logs take the largest record is not known: %s", error)
                self._has_told = True

    def have_changed(self) -> bool:
        """Whether a topic takes something else than the query that runs knows; some at a time."""
        some = [self._in_turn.popleft() for _ in range(min(LOOKED_MAX, len(self._in_turn)))]
        self._in_turn.extend(some)
        try:
            found = self._positions.record_limits(some)
        except KafkaLogError as error:
            log.info("what application logs take is not known: %s", error)
            return False
        self._narrow |= found
        return any(limit != self._known[topic] for topic, limit in found.items())

    def heal(self, there: Iterable[str]) -> bool:
        """Something was too large for one of these, or for the rejected records. Whether the next run need not die of
        it. Raises KafkaLogError."""
        kafka = self._positions.kafka
        needed = self._positions.record_limits([kafka.log_topic]).get(kafka.log_topic, 0)
        topics = {*there, kafka.rejected_topic}
        self._widen(topics, needed)
        self._narrow = {topic: limit for topic, limit in self._narrow.items() if topic in topics}
        return self._narrow != self._known or time.monotonic() - self._raised_s < RAISED_S

    def _widen(self, topics: Collection[str], needed: int) -> None:
        rejected = self._positions.kafka.rejected_topic
        found = self._positions.record_limits(topics)
        wanted = {topic: needed + (REJECTED_ROOM if topic == rejected else 0) for topic in found}
        small = {topic: wanted[topic] for topic, limit in found.items() if limit < wanted[topic]}
        refused = self._positions.raise_record_limits(small)
        for topic in found:
            self._narrow.pop(topic, None)
        self._narrow |= {topic: found[topic] for topic in refused}
        if refused:
            topic, why = next(iter(refused.items()))
            log.warning(
                "%d topics take too little of a record (max.message.bytes) and may not take more, so what is too large "
                "for them is rejected; the first is %s, with %d bytes: %s",
                len(refused),
                topic,
                found[topic],
                why,
            )
        raised = [topic for topic in small if topic not in refused]
        if raised:
            self._raised_s = time.monotonic()
            log.warning(
                "%d topics took too little of a record (max.message.bytes) and take %d bytes now; the first, %s, "
                "took %d",
                len(raised),
                small[raised[0]],
                raised[0],
                found[raised[0]],
            )


class Carried(Struct, frozen=True):
    """What a run need not carry: nothing for logs that are `left_out`, nothing below the positions of a log in
    `lagging`, nothing below `most` for all others."""

    most: Mapping[int, int]
    lagging: Mapping[str, Mapping[int, int]]
    left_out: Collection[str]


class Carrying:
    """What one query leaves out and carries later. What is left out changes between two runs alone."""

    def __init__(self) -> None:
        self.most: Positions = {}
        """Below these every log has everything that is for it, but those that lag."""
        self._lagging: dict[str, Positions] = {}
        """Below which positions each of them has everything."""
        self._left_out: frozenset[str] = frozenset()
        self._log_id = ""

    @property
    def left_out(self) -> frozenset[str]:
        """Logs that get nothing now."""
        return self._left_out

    def leave_out(self, logs: Collection[str]) -> None:
        """From the next run on nothing is carried to these, the ones before are carried to again."""
        self._left_out = frozenset(logs)
        for log in logs:
            self._lagging.setdefault(log, dict(self.most))

    def begin(self, published: Positions, log_id: str = "") -> Positions:
        """A run begins, with so much published of the message log of this id; where it reads from."""
        is_other, self._log_id = log_id != self._log_id, log_id
        if is_other or any(published.get(partition, 0) < at for partition, at in self.complete().items()):
            # Another message log, or what was to be published has not been: what is known means nothing, and repeats
            # do no harm.
            self._lagging.clear()
            self._left_out = frozenset()
        if not self._lagging:
            self.most = dict(published)
            return published
        starts = [self.most, *(at for log, at in self._lagging.items() if log not in self._left_out)]
        return {
            partition: max(first, min(start.get(partition, first) for start in starts))
            for partition, first in published.items()
        }

    def carried(self) -> Carried | None:
        """For the run that begins; None when it carries everything that it reads."""
        return Carried(self.most, self._lagging, self._left_out) if self._lagging else None

    def reached(self, ends: Mapping[int, int]) -> None:
        """All that the run reads below these has arrived."""
        _raise(self.most, ends)
        for log, positions in self._lagging.items():
            if log not in self._left_out:
                _raise(positions, ends)
        self._lagging = {
            log: positions
            for log, positions in self._lagging.items()
            if log in self._left_out
            or any(positions.get(partition, 0) < at for partition, at in self.most.items())
        }

    def complete(self) -> Positions:
        """Below these every log has everything."""
        return {
            partition: min([at, *(one.get(partition, 0) for one in self._lagging.values())])
            for partition, at in self.most.items()
        }


def _raise(positions: Positions, ends: Mapping[int, int]) -> None:
    for partition, end in ends.items():
        positions[partition] = max(end, positions.get(partition, 0))
