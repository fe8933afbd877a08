"""Who holds back a log that the pipeline reads by (partition, offset): its queries, by what they have published.

APPLICATION clients are not among them: once dispatch has passed a record, it is in the logs of those who want it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from embermq.ports.application_log import (
    ApplicationContext,
    ApplicationEntry,
    ApplicationFloor,
    ApplicationLog,
)
from embermq.ports.log_readers import LogReader, LogReaders
from embermq.ports.pipeline_progress import PipelineProgress
from embermq.ports.source_positions import SourcePositions


class PublishedReaders(LogReaders):
    """`queries` that have published something, as numbers of the log. Waits for the log's store; for one thread."""

    def __init__(
        self, progress: PipelineProgress, positions: SourcePositions, queries: Iterable[str]
    ) -> None:
        self._progress = progress
        self._positions = positions
        self._queries = tuple(queries)
        self._known: dict[str, tuple[Mapping[int, int], int]] = {}

    def positions(self) -> list[LogReader]:
        return [
            LogReader(query, self._number(query, found), 0)
            for query in self._queries
            if (found := self._progress.positions(query))
        ]

    def _number(self, query: str, found: Mapping[int, int]) -> int:
        """Asked for when the positions are others: what was passed stays passed."""
        known = self._known.get(query)
        if known is None or known[0] != found:
            known = self._known[query] = (found, self._positions.number_of(found))
        return known[1]


class NoEntries(ApplicationLog):
    """For who reads logs of applications out of the message log: there is nothing here that needs it."""

    def complete_offset(self) -> int:
        return 0

    def read(self, generation: int, from_offset: int, limit: int) -> list[ApplicationEntry]:
        return []

    def context(self, generation: int) -> ApplicationContext | None:
        return None

    def floors(self) -> list[ApplicationFloor]:
        return []
