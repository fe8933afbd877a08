"""Who holds back a log that the pipeline reads by (partition, offset): its queries, by what they have published.

APPLICATION clients are not among them: once dispatch has passed a record, it is in the logs of those who want it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from embermq.ports.application_log import ApplicationFloor, ApplicationLog
from embermq.ports.log_readers import LogReader, LogReaders
from embermq.ports.pipeline_progress import PipelineProgress


class PublishedReaders(LogReaders):
    """`queries` that have published something; `passed` makes a position of what they have."""

    def __init__(
        self, progress: PipelineProgress, passed: Callable[[Mapping[int, int]], int], queries: Iterable[str]
    ) -> None:
        self._progress = progress
        self._passed = passed
        self._queries = tuple(queries)

    def positions(self) -> list[LogReader]:
        return [
            LogReader(query, self._passed(found), 0)
            for query in self._queries
            if (found := self._progress.positions(query))
        ]


class NoEntries(ApplicationLog):
    """For who reads logs of applications out of the message log: there is nothing here that needs it."""

    def complete_offset(self) -> int:
        return 0

    def read(self, generation: int, from_offset: int, limit: int) -> list[int]:
        return []

    def floors(self) -> list[ApplicationFloor]:
        return []
