"""Groups of shared subscriptions in memory, and logs that a test makes by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

import msgspec

from embermq.formats.application_logs import ApplicationLogNames, NoApplicationLog
from embermq.formats.log_record import decode_record, iter_frames
from embermq.model.application_positions import StoredPositions
from embermq.model.session_writes import QueueState
from embermq.model.shared_logs import SharedGroupRow, SharedMark
from embermq.model.tick_writes import TickWrites
from embermq.ports.application_feed import (
    FeedEntry,
    KnownPositions,
    SharedFeed,
    SharedFeeds,
    SharedTaker,
    unknown,
)
from embermq.ports.application_logs import ApplicationLogs, FoundLog, LogSize, Place
from embermq.ports.errors import StoreError
from embermq.ports.message_log import MessageLog
from embermq.ports.pipeline_progress import PipelineProgress
from embermq.ports.shared_groups import MarksFound, SharedGroups, StoredShared


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

    def in_flight(self, session: int, then: MarksFound) -> None:
        marks = self.marks.values()
        then([mark for mark in marks if mark.session == session and mark.state != QueueState.DONE])


class HandLogs(ApplicationLogs):
    """Logs that are made when a test says so: at once while `answers`, else with `answer`."""

    def __init__(self, *, shared_topic_validation: bool = True) -> None:
        self.names = ApplicationLogNames("p")
        self.strict_names = ApplicationLogNames("p", shared_topic_validation=shared_topic_validation)
        self.answers = True
        self.found = FoundLog({0: 0, 1: 0}, "made once")
        self.lengths: Callable[[str], dict[int, int]] = lambda _log: {}
        """Ends that are known otherwise."""
        self.asked: list[tuple[str, int, Callable[[FoundLog | StoreError], None]]] = []
        self.ensured: list[str] = []
        self.over: list[str] = []
        self.trimmed: dict[Place, int] = {}
        self.end: dict[Place, int] = {}

    def ensure(self, log: str, partitions: int, then: Callable[[FoundLog | StoreError], None]) -> None:
        self.ensured.append(log)
        if self.answers:
            then(self._as_it_is(log))
        else:
            self.asked.append((log, partitions, then))

    def answer(self, answer: FoundLog | StoreError | None = None, *, count: int | None = None) -> None:
        """To what has been asked, or to the first `count` of it."""
        asked = self.asked[:count]
        del self.asked[:count]
        for log, _, then in asked:
            then(answer or self._as_it_is(log))

    def _as_it_is(self, log: str) -> FoundLog:
        return msgspec.structs.replace(self.found, ends={**self.found.ends, **self.lengths(log)})

    def name(self, client_id: str) -> str:
        return self.names.client_log(client_id)

    def shared_name(self, topic_filter: str) -> str:
        return self.names.shared_log(topic_filter)

    def objection_to_shared(self, topic_filter: str) -> str:
        try:
            self.strict_names.shared_log(topic_filter)
        except NoApplicationLog as error:
            return str(error)
        return ""

    def shared_group(self, share: str, topic_filter: str) -> str:
        return self.names.shared_group(share, topic_filter)

    def listed(self, then: Callable[[Collection[str] | StoreError], None]) -> None:
        raise NotImplementedError

    def ended(self, log: str) -> None:
        self.over.append(log)

    def ends(self, logs: Mapping[str, int], then: Callable[[Mapping[Place, int] | StoreError], None]) -> None:
        then({place: end for place, end in self.end.items() if place[0] in logs})

    def trim(self, bases: Mapping[Place, int]) -> None:
        self.trimmed |= bases

    def sizes(self, then: Callable[[list[LogSize] | StoreError], None]) -> None:
        then([])

    def delete(self, logs: Collection[str], then: Callable[[StoreError | None], None]) -> None:
        then(None)

    @property
    def failing(self) -> str:
        return ""


class HandMember(SharedFeed):
    """One member of a group; what it has committed and released."""

    def __init__(
        self, feeds: HandFeeds, group: str, log: str, taker: SharedTaker, known: KnownPositions
    ) -> None:
        self.feeds = feeds
        self.group = group
        self.log = log
        self.taker = taker
        self.known = known
        self.read: dict[int, int] = {}
        """By partition, the offset that comes next."""
        self.committed: dict[int, StoredPositions] = {}
        self.unreleased = 0
        self.closed = False

    def release(self, size: int) -> None:
        self.unreleased -= size

    def commit(self, partition: int, positions: StoredPositions) -> None:
        self.committed[partition] = self.feeds.told[self.group, partition] = positions

    def close(self) -> None:
        self.closed = True
        self.feeds.members.remove(self)

    def bring(self) -> None:
        """Everything that is there, from where it has come."""
        for partition, offset in list(self.read.items()):
            entries = self.feeds.logs[self.log][partition][offset:]
            if entries and not self.closed and partition in self.read:
                self.read[partition] = offset + len(entries)
                self.unreleased += sum(entry.size for entry in entries)
                self.taker.take(partition, entries)


class HandFeeds(SharedFeeds):
    """Logs of two partitions, and groups whose partitions a test gives to members."""

    def __init__(self) -> None:
        self.logs: dict[str, list[list[FeedEntry]]] = defaultdict(lambda: [[], []])
        self.members: list[HandMember] = []
        self.told: dict[tuple[str, int], StoredPositions] = {}
        """What groups have committed."""
        self._dispatched: set[int] = set()

    def join(self, group: str, log: str, taker: SharedTaker, known: KnownPositions = unknown) -> SharedFeed:
        member = HandMember(self, group, log, taker, known)
        self.members.append(member)
        return member

    @property
    def failing(self) -> str:
        return ""

    def lengths(self, log: str) -> dict[int, int]:
        """By partition; {} without the log."""
        return {number: len(entries) for number, entries in enumerate(self.logs.get(log, []))}

    def give(self, member: HandMember, *partitions: int) -> None:
        """Partitions go from whoever has them to this one, as Kafka moves them."""
        for partition in partitions:
            for other in self.members:
                if other.group == member.group and partition in other.read:
                    del other.read[partition]
                    other.taker.revoked(partition)
            told = self.told.get((member.group, partition), StoredPositions())
            stored = member.known(partition) or told
            member.read[partition] = stored.base_offset
            member.taker.assigned(partition, stored)
        member.bring()

    def dispatch(self, log: MessageLog, names: ApplicationLogNames, *, again: bool = False) -> None:
        """What the pipeline does, records that it has written once included when it begins `again`."""
        for batch in log.read(0, records_max=10**6, bytes_max=2**30):
            for index, frame in enumerate(iter_frames(batch.body)):
                number = batch.base_offset + index
                if number in self._dispatched and not again:
                    continue
                self._dispatched.add(number)
                record = decode_record(frame)
                for stamp in record.stamps:
                    name = names.stamped_log(stamp.log)
                    partitions = self.logs[name]
                    at = partitions[partition_of(record.message.topic)]
                    at.append(FeedEntry(len(at), len(frame), number, record))
        for member in list(self.members):
            member.bring()


def partition_of(topic: str) -> int:
    """ "t/0" goes to partition 0, "t/1" to 1."""
    return int(topic[-1]) % 2


class HandProgress(PipelineProgress):
    """What a test says of the pipeline."""

    def __init__(self) -> None:
        self.reported: dict[int, int] = {}

    def positions(self, query: str) -> Mapping[int, int]:
        return dict(self.reported)

    def complete(self, query: str) -> Mapping[int, int]:
        return self.positions(query)

    @property
    def failing(self) -> str:
        return ""
