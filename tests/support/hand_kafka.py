"""Application logs in a store of their own, and the pipeline that fills them, moved by hand. They outlive brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct, field

from embermq.formats.application_logs import ApplicationLogNames
from embermq.formats.log_record import LogRecord, decode_record, iter_frames
from embermq.model.position import OFFSET_END, offset_of, partition_of, position_of
from embermq.ports.application_feed import ApplicationFeed, ApplicationFeeds, FeedEntry, FeedTaker
from embermq.ports.application_logs import ApplicationLogs, FoundLog, LogSize, Place
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.message_log import MessageLog
from embermq.ports.pipeline_progress import PipelineProgress
from embermq.ports.source_records import FoundRecords, SourceRecords

ENTRY_BYTES = 100
BATCH = 7
UNREAD_BYTES_MAX = 1024 * 1024


class HandTopic(Struct):
    """One log; the first entry has offset `start`."""

    identity: str
    start: int = 0
    entries: list[FeedEntry] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    def add(self, source: int | None, record: LogRecord | None, problem: str = "") -> None:
        self.entries.append(FeedEntry(self.end, ENTRY_BYTES, source, record, problem))


class HandFeed(ApplicationFeed):
    """Brings entries in batches of `BATCH` until so many bytes are not released."""

    def __init__(self, feeds: HandFeeds, log: str, start: int, taker: FeedTaker) -> None:
        self.feeds = feeds
        self.log = log
        self.identity = feeds.kafka.topics[log].identity
        self.next_offset = start
        self.taker = taker
        self.unread_bytes = 0

    def release(self, size: int) -> None:
        self.unread_bytes -= size
        assert self.unread_bytes >= 0

    def close(self) -> None:
        if self in self.feeds.open_feeds:
            self.feeds.open_feeds.remove(self)

    def bring(self) -> bool:
        """The next batch; False when there is none."""
        topic = self.feeds.kafka.topics.get(self.log)
        if topic is None or topic.identity != self.identity:
            self.close()
            self.taker.gone(f"{self.log} was deleted")
            return True
        if self.next_offset < topic.start:
            self.next_offset = topic.start
            self.taker.begins(0, topic.start)
            return True
        first = self.next_offset - topic.start
        batch = topic.entries[first : first + BATCH]
        if not batch or self.unread_bytes >= self.feeds.unread_bytes_max:
            return False
        self.next_offset = batch[-1].offset + 1
        self.unread_bytes += sum(entry.size for entry in batch)
        self.taker.take(0, batch)
        return True


class HandFeeds(ApplicationFeeds):
    """Of one broker."""

    def __init__(self, kafka: HandKafka) -> None:
        self.kafka = kafka
        self.open_feeds: list[HandFeed] = []
        self.unread_bytes_max = UNREAD_BYTES_MAX
        self.trouble = ""

    def open(self, log: str, starts: Mapping[int, int], taker: FeedTaker) -> ApplicationFeed:
        assert [feed.log for feed in self.open_feeds].count(log) == 0, f"{log} is read twice"
        (start,) = starts.values()
        feed = HandFeed(self, log, start, taker)
        self.open_feeds.append(feed)
        return feed

    @property
    def failing(self) -> str:
        return self.trouble


class HandLogs(ApplicationLogs):
    """Answers come with `HandKafka.run`, unless they are held."""

    def __init__(self, kafka: HandKafka) -> None:
        self.kafka = kafka
        self.names = ApplicationLogNames("embermq")
        self.ended_logs: list[str] = []
        self.asked_for_ends: list[str] = []

    def name(self, client_id: str) -> str:
        return self.names.client_log(client_id)

    def shared_name(self, topic_filter: str) -> str:
        return self.names.shared_log(topic_filter)

    def objection_to_shared(self, topic_filter: str) -> str:
        return ""

    def shared_group(self, share: str, topic_filter: str) -> str:
        return self.names.shared_group(share, topic_filter)

    def ensure(self, log: str, partitions: int, then: Callable[[FoundLog | StoreError], None]) -> None:
        assert partitions == 1
        self.kafka.post(lambda: then(self.kafka.find(log)))

    def listed(self, then: Callable[[Collection[str] | StoreError], None]) -> None:
        raise NotImplementedError

    def ended(self, log: str) -> None:
        self.ended_logs.append(log)

    def ends(self, logs: Mapping[str, int], then: Callable[[Mapping[Place, int] | StoreError], None]) -> None:
        self.asked_for_ends += logs

        def answer() -> None:
            topics = self.kafka.topics
            if self.kafka.away:
                then(StoreUnavailable("away"))
            else:
                then({(log, 0): topics[log].end for log in logs if log in topics})

        self.kafka.post(answer)

    def trim(self, bases: Mapping[Place, int]) -> None:
        for (log, _), base in bases.items():
            topic = self.kafka.topics[log]
            del topic.entries[: base - topic.start]
            topic.start = max(topic.start, base)

    def sizes(self, then: Callable[[list[LogSize] | StoreError], None]) -> None:
        raise NotImplementedError

    def delete(self, logs: Collection[str], then: Callable[[StoreError | None], None]) -> None:
        raise NotImplementedError

    @property
    def failing(self) -> str:
        return "away" if self.kafka.away else ""


class HandRecords(SourceRecords):
    """Of the message log; those of `trimmed` are not there any more."""

    def __init__(self, kafka: HandKafka) -> None:
        self.kafka = kafka
        self.trimmed: set[int] = set()

    def fetch(self, positions: Collection[int], then: Callable[[FoundRecords | StoreError], None]) -> None:
        found = {
            source: record
            for number, (source, record) in enumerate(self.kafka.sources)
            if source in positions and number not in self.trimmed and number >= self.kafka.since
        }
        self.kafka.post(lambda: then(found))


class HandProgress(PipelineProgress):
    """What the pipeline has said."""

    def __init__(self) -> None:
        self.said: dict[int, int] = {}
        self.closed: set[int] = set()
        """Partitions of a log that was lost."""

    def positions(self, query: str) -> Mapping[int, int]:
        return self.said if query == "dispatch" else {}

    def complete(self, query: str) -> Mapping[int, int]:
        heard = self.positions(query)
        return {**heard, **dict.fromkeys(self.closed, OFFSET_END)} if heard else heard

    @property
    def failing(self) -> str:
        return ""


class HandKafka:
    """See the module. `away`: nothing is answered or brought."""

    def __init__(self) -> None:
        self.topics: dict[str, HandTopic] = {}
        self.since = 0
        """The first record that is not lost, by its place in `sources`."""
        self.away = False
        self.held: list[Callable[[], None]] = []
        self.progress = HandProgress()
        self.sources: list[tuple[int, LogRecord]] = []
        """The message log in the order of its records, each with its position."""
        self.carried = 0
        """So many of them have been dispatched."""
        self._partition = self._partition_start = 0
        self._read_to = 0
        self._made = 0
        self.begin()

    def begin(self) -> None:
        """A broker starts: feeds and answers of the one before are gone."""
        self.held.clear()
        self.feeds = HandFeeds(self)
        self.logs = HandLogs(self)
        self.records = HandRecords(self)

    def post(self, answer: Callable[[], None]) -> None:
        self.held.append(answer)

    def run(self) -> bool:
        """Answers, and a batch for each reader; False when there was nothing."""
        if self.away:
            return False
        held, self.held = self.held, []
        for answer in held:
            answer()
        brought = [feed.bring() for feed in list(self.feeds.open_feeds)]
        return bool(held) or any(brought)

    def find(self, log: str) -> FoundLog:
        is_new = log not in self.topics
        if is_new:
            self._made += 1
            self.topics[log] = HandTopic(f"id{self._made}")
        topic = self.topics[log]
        return FoundLog({0: topic.end}, topic.identity, is_new)

    def log_of(self, client_id: str) -> HandTopic:
        return self.topics[self.logs.name(client_id)]

    # The pipeline

    def begins_another_log(self) -> None:
        """The message log was lost, and goes on in other partitions. For brokers that start from now on."""
        self.since = len(self.sources)
        self.progress.closed.add(self._partition)
        self._partition += 1
        self._partition_start = self._read_to
        self.progress.said = {}

    def reads(self, log: MessageLog) -> None:
        """Take over what the message log has got, each record at the position that its broker knows."""
        for batch in log.read(self._read_to, records_max=10**6, bytes_max=2**30):
            for number, frame in enumerate(iter_frames(batch.body)):
                if batch.base_offset + number >= self._read_to:
                    record = decode_record(frame)
                    offset = batch.base_offset + number - self._partition_start
                    self.sources.append((position_of(self._partition, offset), record))
                    self._read_to = batch.base_offset + number + 1

    def carry(self, *numbers: int) -> None:
        """These records of the message log go to the logs that they are stamped for; a missing log is passed over."""
        for number in numbers:
            source, record = self.sources[number]
            for stamp in record.stamps:
                topic = self.topics.get(self.logs.name(stamp.log))
                if topic is not None:
                    topic.add(source, record)

    def report(self, until: int | None = None) -> None:
        """Everything below is where it belongs."""
        ends = {self._partition: 0}
        for source, _ in self.sources[self.since : until]:
            ends[partition_of(source)] = offset_of(source) + 1
        self.progress.said = ends
