"""Groups of shared subscriptions in memory, and logs that a test makes by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from embermq.model.application_logs import ApplicationLogNames
from embermq.model.application_positions import StoredPositions
from embermq.model.session_writes import QueueState
from embermq.model.shared_logs import SharedGroupRow, SharedMark
from embermq.model.tick_writes import TickWrites
from embermq.ports.application_logs import ApplicationLogs, FoundLog, LogSize, Place
from embermq.ports.errors import StoreError
from embermq.ports.shared_groups import SharedGroups, StoredShared


class StandInShared(SharedGroups):
    """Groups of shared subscriptions, with what they have in flight."""

    def __init__(self) -> None:
        self.groups: dict[int, SharedGroupRow] = {}
        self.positions: dict[tuple[int, int], StoredPositions] = {}
        self.marks: dict[tuple[int, int, int], SharedMark] = {}

    def apply(self, tick: TickWrites) -> None:
        writes = tick.shared
        self.groups |= {row.generation: row for row in writes.groups}
        for mark in writes.marks:
            self._mark(mark)
        self.positions |= writes.positions
        for generation in writes.ended_groups:
            self.groups.pop(generation, None)
            self.positions = {key: value for key, value in self.positions.items() if key[0] != generation}
        for mark in list(self.marks.values()):
            if mark.session in tick.ended_applications:
                self._mark(msgspec.structs.replace(mark, session=0, state=QueueState.DONE, record=b""))
        self.marks = {key: mark for key, mark in self.marks.items() if self._is_needed(mark)}

    def _mark(self, mark: SharedMark) -> None:
        key = (mark.group, mark.partition, mark.offset)
        before = self.marks.get(key)
        if before is not None:
            mark = msgspec.structs.replace(mark, identifiers=before.identifiers, retain=before.retain)
        self.marks[key] = mark

    def _is_needed(self, mark: SharedMark) -> bool:
        if mark.state != QueueState.DONE:
            return True
        stored = self.positions.get((mark.group, mark.partition), StoredPositions())
        return mark.group in self.groups and mark.offset >= stored.committed_offset

    def load(self) -> StoredShared:
        claims = [(mark.group, mark.partition, mark.offset) for mark in self.marks.values()]
        return StoredShared(list(self.groups.values()), dict(self.positions), claims)

    def in_flight(self, session: int) -> list[SharedMark]:
        marks = self.marks.values()
        return [mark for mark in marks if mark.session == session and mark.state != QueueState.DONE]


class HandLogs(ApplicationLogs):
    """Logs that are made when a test says so: at once while `answers`, else with `answer`."""

    def __init__(self, *, shared_topic_validation: bool = True) -> None:
        self._names = ApplicationLogNames("p", shared_topic_validation=shared_topic_validation)
        self.answers = True
        self.found = FoundLog({0: 0, 1: 0}, "made once")
        self.asked: list[tuple[str, int, Callable[[FoundLog | StoreError], None]]] = []
        self.ensured: list[str] = []
        self.over: list[str] = []
        self.trimmed: dict[Place, int] = {}
        self.end: dict[Place, int] = {}

    def ensure(self, log: str, partitions: int, then: Callable[[FoundLog | StoreError], None]) -> None:
        self.ensured.append(log)
        if self.answers:
            then(self.found)
        else:
            self.asked.append((log, partitions, then))

    def answer(self, answer: FoundLog | StoreError | None = None) -> None:
        """To all that has been asked."""
        asked, self.asked = self.asked, []
        for _, _, then in asked:
            then(answer or self.found)

    def name(self, client_id: str) -> str:
        return self._names.client_log(client_id)

    def shared_name(self, topic_filter: str) -> str:
        return self._names.shared_log(topic_filter)

    def shared_group(self, share: str, topic_filter: str) -> str:
        return self._names.shared_group(share, topic_filter)

    def ended(self, log: str) -> None:
        self.over.append(log)

    def ends(self, logs: Mapping[str, int], then: Callable[[Mapping[Place, int] | StoreError], None]) -> None:
        then({place: end for place, end in self.end.items() if place[0] in logs})

    def trim(self, bases: Mapping[Place, int]) -> None:
        self.trimmed |= bases

    def sizes(
        self, groups: Mapping[str, tuple[str, ...]], then: Callable[[list[LogSize] | StoreError], None]
    ) -> None:
        then([])

    def delete(self, logs: Collection[str], then: Callable[[StoreError | None], None]) -> None:
        then(None)

    @property
    def failing(self) -> str:
        return ""
