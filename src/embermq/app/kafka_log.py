"""The message log in Kafka. Imported only when needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from embermq.adapters.kafka.appender import KafkaAppender
from embermq.adapters.kafka.application_feeds import KafkaApplicationFeeds
from embermq.adapters.kafka.application_logs import KafkaApplicationLogs
from embermq.adapters.kafka.application_topics import ApplicationTopics, LogProperties
from embermq.adapters.kafka.client import Failures, WatchedAdmin
from embermq.adapters.kafka.log_producer import LogProducer
from embermq.adapters.kafka.log_topic import LogTopic, continue_behind, find_ends, known_end
from embermq.adapters.kafka.message_log import KafkaMessageLog
from embermq.adapters.kafka.pipeline_progress import KafkaPipelineProgress
from embermq.adapters.kafka.positions import LogPositions
from embermq.adapters.kafka.reading import KafkaSourceRecords
from embermq.adapters.kafka.receipt_topic import ReceiptTopic
from embermq.adapters.kafka.shared_feeds import KafkaSharedFeeds
from embermq.app.config import Settings
from embermq.app.log_side import LogSide, Post, RetainedLog
from embermq.app.store_addresses import kafka_address
from embermq.delivery.application.fed_readers import FedReaders
from embermq.delivery.application.log_place import LogPlace, OwnPlace
from embermq.delivery.application.parking import Parking
from embermq.delivery.application.shared_readers import SharedPlace, SharedReaders
from embermq.durability.log_first import NEVER, LogFirstStore
from embermq.durability.retention import DISPATCH, NoEntries, PublishedReaders
from embermq.formats.application_logs import ApplicationLogNames
from embermq.formats.kafka_record import KafkaEncoder
from embermq.pipeline.log_look import Bounds, LogLook, SeenEnds, ToldReport, told_report
from embermq.pipeline.settings import QUERIES
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.known_log import KnownLog
from embermq.ports.message_log import MessageLog
from embermq.ports.reader_positions import ReaderPositions
from embermq.ports.receipt_log import ReceiptStatistics
from embermq.ports.shared_groups import SharedGroups
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState

CONNECT_WAIT_S = 5.0
"""How long a CONNECT with a session to be kept, or with a will, waits for Redis, and that of an APPLICATION client for
its log; then it is refused with 0x88, in 3.x with return code 3."""
WORTH_S = 2.0
"""How long a report waits for an answer of Kafka, and three times as long for Kafka itself."""


class KafkaLogSide(LogSide):
    """One topic. Raises StartError for settings that cannot be, StoreError for a Kafka that does not answer or whose
    topic is not fit."""

    has_dates = True
    application_logs: KafkaApplicationLogs
    ticks: LogFirstStore | None = None
    """None until the broker takes its first tick."""
    readers: tuple[str, ...] = ()
    """Nodes that read this log, by the names that they go by among readers."""
    kept_from: Callable[[], int] = staticmethod(lambda: NEVER)
    """From where on the log is needed for what is taken in from other logs."""

    def __init__(self, settings: Settings, known: KnownLog, post: Post) -> None:
        self._settings = settings
        self._post = post
        self._feeds: KafkaApplicationFeeds | None = None
        self._shared_feeds: KafkaSharedFeeds | None = None
        self._retained: KafkaMessageLog | None = None
        self._ages = SeenEnds()
        self._report: tuple[tuple[bytes, int] | None, ToldReport | None] = None, None
        self._failures = Failures()
        kafka = settings.kafka
        address = kafka_address(settings.stores.log)
        self._admin = WatchedAdmin(address, kafka)
        self._topic = LogTopic(self._admin, packet_bytes_max=settings.mqtt.packet_bytes_max)
        names = ApplicationLogNames(kafka.prefix)
        self.meaning = str(self._topic.open(is_new=not known.is_any))
        self.place = f"{address}, topic {self._topic.name}"
        self.log_id = self._topic.identity()
        # Before it is seen where the log ends: from now on nobody else writes behind that.
        fence = log_fence(settings)
        producer = LogProducer(address, kafka, record_bytes_max=self._topic.record_bytes_max, fence=fence)
        self._positions = positions = find_ends(self._admin, self._topic, in_transactions=bool(fence))
        if not kafka.adopt_log:
            check_is_ours(known, self._positions, self.log_id, self.place)
        self.continue_behind(known_end(self._admin, self.log_id, known, positions))
        self.log = self._log = KafkaMessageLog(self._admin, self._topic.name, self._positions)
        self.appender = appender = KafkaAppender(
            address,
            producer,
            self._topic.name,
            self._positions,
            post,
            record_bytes_max=self._topic.record_bytes_max,
            encoder=KafkaEncoder(names.stamped_log),
        )
        self.on_end = appender.on_end
        self.receipt_log = ReceiptTopic(address, kafka, self._failures)
        self.records = KafkaSourceRecords(address, kafka, self._topic.name, post, self._failures)
        self.progress = KafkaPipelineProgress(
            address, kafka, self.log_id, self._failures, closed=self._positions.closed
        )
        self.application_logs = self._applications = KafkaApplicationLogs(
            ApplicationTopics(WatchedAdmin(address, kafka), names, log_properties(settings)),
            ApplicationLogNames(
                kafka.prefix,
                client_id_validation=settings.application.client_id_validation,
                shared_topic_validation=settings.application.shared_topic_validation,
            ),
            post,
            log_ends=self._positions.ends,
            dispatched=lambda: self.progress.positions("dispatch"),
            patience_s=CONNECT_WAIT_S,
            failures=self._failures,
        )

    @property
    def log_end(self) -> int:
        """The position of the next record. It stays until the broker takes its first tick."""
        return self._positions.end

    def continue_behind(self, known: int) -> None:
        """No record gets a position below this one. Before the first tick."""
        continue_behind(self._admin, self._topic, self._positions, known)

    @property
    def bytes_sure(self) -> int:
        return self.appender.bytes_sure

    def objection(self, record: bytes) -> str:
        return self.appender.objection(record)

    @property
    def dispatcher_floor(self) -> int:
        return min(self.ticks.dispatcher_floor, self.kept_from()) if self.ticks is not None else 0

    @property
    def failing(self) -> str:
        return self.ticks.failing if self.ticks is not None else ""

    @property
    def failures(self) -> int:
        return self._failures.count

    @property
    def receipts(self) -> ReceiptStatistics:
        return self.receipt_log.statistics()

    def open_for_retention(self) -> RetainedLog:
        log = self._retained = KafkaMessageLog(self._admin, self._topic.name, self._positions)
        return RetainedLog(
            log,
            PublishedReaders(self.progress, log.passed, (*QUERIES, *self.readers)),
            NoEntries(),
            log.close,
        )

    def open_reader(self) -> tuple[MessageLog, Callable[[], None]]:
        log = KafkaMessageLog(self._admin, self._topic.name, self._positions)
        return log, log.close

    def look(self, queries: Iterable[str]) -> LogLook | None:
        log = self._retained
        if log is None:
            return None
        bounds = {one: Bounds(first, end) for one, (first, end) in log.bounds().items()}
        now_ms = time.time_ns() // 1_000_000
        self._ages.look({one: found.end for one, found in bounds.items()}, now_ms)
        done = {query: self.progress.positions(query) for query in queries}
        return LogLook(bounds, done, self._ages.accepted_ms, self._told(now_ms))

    def _told(self, now_ms: int) -> ToldReport | None:
        """A record is heard once, and ages from then on."""
        heard = self.progress.report
        if heard is not None and heard != self._report[0]:
            self._report = heard, told_report(*heard, now_ms)
        return self._report[1]

    def holding(self, sessions: Iterable[Session]) -> tuple[str, ...]:
        """A pipeline that somebody else starts counts from its first word; dispatch also while it is wanted."""
        pipeline = self._settings.pipeline
        held: set[str] = set(self.readers) | {
            query for query in pipeline.queries if pipeline.enabled or self.progress.positions(query)
        }
        if DISPATCH not in held and any(session.is_application for session in sessions):
            held.add(DISPATCH)
        return tuple(sorted(held))

    def end(self, error: StoreError) -> None:
        """Nothing can be stored any more in this process."""
        for call in self.on_end:
            call(error)

    def feed_applications(self, state: BrokerState, store: ReaderPositions, parking: Parking) -> FedReaders:
        address, kafka = self._admin.address, self._settings.kafka
        feeds = self._feeds = KafkaApplicationFeeds(address, kafka, self._post, failures=self._failures)
        place = LogPlace(feeds, store, OwnPlace(self._applications, self.progress, self.records))
        return FedReaders(state, place, parking)

    def share_applications(
        self, state: BrokerState, store: SharedGroups, parking: Parking, own: FedReaders
    ) -> SharedReaders:
        address, kafka = self._admin.address, self._settings.kafka
        feeds = self._shared_feeds = KafkaSharedFeeds(address, kafka, self._post, failures=self._failures)
        place = SharedPlace(feeds, self._applications, self.progress, store)
        return SharedReaders(state, place, parking, own.gave_ids)

    def close(self) -> None:
        if self._shared_feeds is not None:
            self._shared_feeds.close()
        if self._feeds is not None:
            self._feeds.close()
        self._applications.close()
        self.progress.close()
        self._log.close()
        if self.ticks is not None:
            self.ticks.close()
        else:
            self.appender.close()
            self.receipt_log.close()


def log_fence(settings: Settings) -> str:
    """The name of transactions by which the log is taken over, in a cluster."""
    return f"{settings.kafka.prefix}-log" if settings.cluster.etcd else ""


def log_properties(settings: Settings) -> LogProperties:
    """What the settings say of the topics of application logs."""
    kafka = settings.kafka
    return LogProperties(
        packet_bytes_max=settings.mqtt.packet_bytes_max,
        replicas=kafka.replication_factor,
        min_insync_replicas=kafka.min_insync_replicas,
    )


def check_is_ours(known: KnownLog, positions: LogPositions, identity: str, place: str) -> None:
    """Two brokers on one log would write over one another's state. Raises StoreUnavailable for a log with records that
    the Redis has nothing to do with."""
    if not any(positions.ends().values()):
        return
    if not known.is_any:
        raise StoreUnavailable(
            f"{place}: has messages, and the Redis of stores.session knows no log: two brokers on one topic would lose "
            "messages; give this one a kafka.prefix of its own, or set kafka.adopt_log when what knew it is lost"
        )
    if identity != known.identity:
        raise StoreUnavailable(
            f"{place}: is another log than the one that stores.session belongs to (topic id {identity}, not "
            f"{known.identity}); "
            "set kafka.adopt_log when it was restored from a copy"
        )


def kafka_worth(settings: Settings) -> str:
    """One sentence, also when Kafka does not answer."""
    kafka = replace(settings.kafka, request_timeout_s=min(WORTH_S, settings.kafka.request_timeout_s))
    try:
        admin = WatchedAdmin(kafka_address(settings.stores.log), kafka)
        topic = LogTopic(admin, packet_bytes_max=settings.mqtt.packet_bytes_max)
        found = topic.durability()
    except StoreError as error:
        return str(error)
    return f"topic {topic.name} is not there yet, the first start makes it" if found is None else str(found)
