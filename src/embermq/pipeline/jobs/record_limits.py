"""What the topics that dispatch writes to take of one record: raised where it is too little, known where that fails."""

import logging
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping

from embermq.pipeline.errors import KafkaLogError
from embermq.pipeline.sources.kafka_positions import KafkaPositions

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
