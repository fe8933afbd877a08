"""Who knows which application logs there have to be: asked when a record is for one that is not there."""

from collections.abc import Mapping
from typing import Protocol

from embermq.pipeline.sources.kafka_positions import KafkaPositions


class ApplicationTopics(Protocol):
    """Answered by whoever knows the sessions. May raise KafkaLogError; then it is asked again."""

    def restore(self, topic: str) -> int | None:
        """Make the log again when a session still wants it, and return None.

        Otherwise the newest session generation there has been: what is stamped for that log and a generation up to
        it is rejected, since nobody will ever read it; a later one is of a new session, whose log is made for it.
        """


class EveryLogWanted:
    """Makes each log again that is asked for: nothing is lost, at the price of logs that nobody reads."""

    def __init__(
        self, positions: KafkaPositions, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        self._positions = positions
        self._partitions = partitions
        self._settings = dict(settings or {})

    def restore(self, topic: str) -> int | None:
        self._positions.ensure_topic(topic, self._partitions, self._settings)
        return None
