"""Where records stand for those outside the broker, where the log has partitions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping


class SourcePositions(ABC):
    """Between the broker's sequence numbers and (partition, offset). Waits for the log's store; raises StoreError."""

    @abstractmethod
    def positions_of(self, number: int) -> Mapping[int, int]:
        """For each partition an offset at or, by a little, before its first record with that number or a greater one;
        its end when it has none."""

    @abstractmethod
    def number_of(self, positions: Mapping[int, int]) -> int:
        """The smallest sequence number that stands at or behind the offset of its partition: everything below it has
        been passed. Partitions that are not named have passed nothing. The log's end when everything is passed."""
