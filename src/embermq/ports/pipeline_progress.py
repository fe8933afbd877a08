"""How far the pipeline's queries are, by partition of the message log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping


class PipelineProgress(ABC):
    """Guarantees: the positions of a query only grow, and belong to the message log that this broker writes; what was
    said of an earlier one in its place is not told. A call never waits and is safe from any thread."""

    @abstractmethod
    def positions(self, query: str) -> Mapping[int, int]:
        """The next offset of each partition below which the query's effect is complete; {} before its first word, and
        while nobody has listened yet."""

    @abstractmethod
    def complete(self, query: str) -> Mapping[int, int]:
        """The same, where a partition that gets nothing more, and has been passed, is complete at every offset."""

    @property
    @abstractmethod
    def failing(self) -> str:
        """Why nothing new is heard, "" while something could be. That nobody has ever spoken is no failure."""
