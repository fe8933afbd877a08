"""How far each query is behind the log in Kafka: looked at beside the driver's own work, since Kafka may not answer."""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping

from msgspec import Struct

from embermq.pipeline.errors import KafkaLogError
from embermq.pipeline.jvm_thread import closing_connection
from embermq.pipeline.log_look import Bounds, behind, records_at
from embermq.pipeline.sources.kafka_positions import KafkaPositions, Positions

LOOK_S = 2.0
_REMEMBERED = 1_800
"""Looks: an hour."""

log = logging.getLogger(__name__)


class Lag(Struct, frozen=True):
    """`messages` of the log are not known to have had their effect, the oldest of them for `seconds`."""

    messages: int
    seconds: float


class _Look(Struct, frozen=True):
    at_s: float
    ends: Positions


class KafkaLags:
    """Looks at the ends of the log every `LOOK_S`, and remembers them: when an end was seen tells the age of a lag."""

    def __init__(self, positions: KafkaPositions, stopping: threading.Event, look_s: float = LOOK_S) -> None:
        self._positions = positions
        self._stopping = stopping
        self._look_s = look_s
        self._looks: deque[_Look] = deque(maxlen=_REMEMBERED)
        self.bounds: Mapping[int, Bounds] = {}
        """Of each partition of the log at the last look; {} before the first."""
        self.watched: dict[str, Mapping[int, Bounds]] = {}
        """Other topics, as the log; {} for one that is not there."""
        self._ages: dict[str, tuple[Positions, int | None]] = {}
        self._undated: dict[str, Positions] = {}
        self._missed: set[str] = set()
        self.problem = ""

    def start(self) -> None:
        """Start the thread; returns at once."""
        # It calls no JVM, but objects of Spark that the garbage collector finds here are let go of by a call.
        looking = closing_connection(self._keep_looking)
        threading.Thread(target=looking, name="kafka-lags", daemon=True).start()

    def first(self) -> int:
        """All oldest offsets together, as they were last seen."""
        return sum(bounds.first for bounds in self.bounds.values())

    def end(self) -> int:
        """All ends together, as they were last seen."""
        return sum(bounds.end for bounds in self.bounds.values())

    def lag(self, query: str, done: Positions) -> Lag:
        """Of a query that has published these positions."""
        bounds = self.bounds  # the next look may come meanwhile
        waiting = behind(bounds, done)
        if not waiting:
            return Lag(0, 0.0)
        return Lag(records_at(bounds, waiting), self._age_s(query, waiting))

    def _age_s(self, query: str, waiting: Positions) -> float:
        """Since the last look at which nothing of it was there; before the first look its record is asked for, by
        the next look: this one waits for nobody."""
        for look in reversed(self._looks.copy()):  # the next look may come meanwhile
            if all(look.ends.get(number, 0) <= at for number, at in waiting.items()):
                return max(0.0, time.monotonic() - look.at_s)
        known, accepted_ms = self._ages.get(query, ({}, None))
        if known != waiting:
            self._undated[query] = waiting
        return 0.0 if accepted_ms is None else max(0.0, time.time() - accepted_ms / 1000)

    def look(self) -> None:
        """One look. Raises KafkaLogError."""
        self.bounds = self._positions.bounds()
        ends = {number: bounds.end for number, bounds in self.bounds.items()}
        self._looks.append(_Look(time.monotonic(), ends))
        for topic in list(self.watched):
            self._look_beside(topic)
        while self._undated:
            query, waiting = self._undated.popitem()
            self._ages[query] = waiting, self._positions.accepted_ms(waiting)

    def watch(self, topic: str) -> None:
        """Look at another topic, too."""
        self.watched.setdefault(topic, {})

    def _look_beside(self, topic: str) -> None:
        """What waits for the log does not wait for a topic beside it."""
        found: Mapping[int, Bounds] = {}
        try:
            if self.watched[topic] or topic in self._positions.topics():  # asking for it may make it
                found = self._positions.bounds(topic)
            problem = "it is not there"
        except KafkaLogError as error:
            problem = str(error)
        if not found and topic not in self._missed:
            log.warning("%s cannot be read: %s", topic, problem)
            self._missed.add(topic)
        self.watched[topic] = found

    def _keep_looking(self) -> None:
        while not self._stopping.is_set():
            try:
                self.look()
                self.problem = ""
            except KafkaLogError as error:
                if not self.problem:
                    log.warning("%s", error)
                self.problem = str(error)
            self._stopping.wait(self._look_s)
