"""What the message log stands on: broker.db, or a Kafka with broker.db beside it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from embermq.adapters.segments.message_log import SegmentMessageLog
from embermq.adapters.segments.tick_store import SegmentTickStore
from embermq.adapters.segments.writer import SEGMENT_BYTES
from embermq.adapters.sqlite import connection as sqlite
from embermq.adapters.sqlite.application_log import SqliteApplicationLog
from embermq.adapters.sqlite.checkpoint import SqliteCheckpoint
from embermq.adapters.sqlite.log_readers import SqliteLogReaders
from embermq.adapters.sqlite.log_state import Post, SqliteLogState, is_log_apart
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.app.config import Settings
from embermq.app.errors import StartError
from embermq.app.message_archive import confirmed_offset
from embermq.app.settings import SQLITE
from embermq.delivery.application.fed_readers import FedReaders
from embermq.delivery.application.parking import Parking
from embermq.delivery.application.shared_readers import SharedReaders
from embermq.formats.segments import FOLDER
from embermq.pipeline.log_look import LogLook
from embermq.ports.application_log import ApplicationLog
from embermq.ports.application_logs import ApplicationLogs
from embermq.ports.errors import StoreError
from embermq.ports.log_readers import LogReaders
from embermq.ports.message_log import MessageLog
from embermq.ports.reader_positions import ReaderPositions
from embermq.ports.receipt_log import ReceiptStatistics
from embermq.ports.sessions import StoredState
from embermq.ports.shared_groups import SharedGroups
from embermq.ports.tick_store import TickStore
from embermq.sessions.session import Session
from embermq.sessions.state import NO_LIMIT
from embermq.sessions.tick import Tick

LOG = logging.getLogger("embermq")

SEGMENTS_KEPT_MIN = 8
"""In about so many files or more the log is kept."""
SEGMENT_BYTES_MIN = 256 * 1024
MEANING = {
    "fsync": "fsync: an acknowledged message is on disk",
    "os": "os: an acknowledged message survives the broker, not a power loss",
    "memory": "memory: an acknowledged message may be lost",
}


class RetainedLog(Struct, frozen=True):
    """What retention works on: the log, who still reads it, and what applications need of it."""

    log: MessageLog
    readers: LogReaders
    applications: ApplicationLog
    close: Callable[[], None]


class LogSide(ABC):
    """The log of one broker, from its opening on. At the start: `behind`, `begin`; then `ticks`. `log` is for the
    broker's own thread."""

    log: MessageLog
    ticks: TickStore
    is_apart: bool
    """Records are stored before the rest of their tick: what they say may be missing beside them after a crash."""
    is_shared_by_threads = True
    """Whether other threads see what has been logged."""
    kept_to = 0
    """Where that is so: everything of the ticks with records below this number was stored when the broker ended."""
    place = ""
    """Where records are, without credentials; "" in the data directory."""
    meaning: str
    """What an acknowledgement means, for people."""
    on_end: list[Callable[[StoreError], None]]
    """Called once when nothing can be logged any more in this process."""
    application_logs: ApplicationLogs | None = None
    """Where the logs of APPLICATION clients are beside it; None where they are a part of it."""

    @property
    def bytes_sure(self) -> int:
        """Every record of so many bytes can be logged; of a larger one `objection` tells."""
        return NO_LIMIT

    def objection(self, _record: bytes) -> str:
        """Why a record cannot be logged; "" when it can."""
        return ""

    @abstractmethod
    def behind(self, stored: StoredState) -> StoredState:
        """What broker.db holds, with the end of the log as it is. Raises StoreError."""

    @abstractmethod
    def begin(self, stored: StoredState) -> StoredState:
        """All that is stored is read: numbers go on behind `log_end`. Returns it with the number that comes next."""

    @property
    @abstractmethod
    def dispatcher_floor(self) -> int:
        """Every record below it may be trimmed, as far as the broker goes."""

    @property
    @abstractmethod
    def failing(self) -> str:
        """Why a tick waits for the log, "" when none does."""

    @property
    def failures(self) -> int:
        """Errors that nobody foresaw, on threads of its own; they have been logged and the work goes on."""
        return 0

    @property
    def receipts(self) -> ReceiptStatistics | None:
        """What became of samples of latency that go to a place of their own; None when they do not."""
        return None

    @abstractmethod
    def open_for_retention(self) -> RetainedLog:
        """For another thread."""

    @abstractmethod
    def open_reader(self) -> tuple[MessageLog, Callable[[], None]]:
        """The log for another thread that reads in it, and how to close it. Raises StoreError."""

    @abstractmethod
    def look(self, queries: Iterable[str]) -> LogLook | None:
        """Where the pipeline's queries stand; None where their files say it. Does not wait."""

    @abstractmethod
    def holding(self, sessions: Iterable[Session]) -> tuple[str, ...]:
        """The pipeline's queries that hold back the log even before their first word."""

    def feed_applications(self, store: ReaderPositions, parking: Parking) -> FedReaders | None:
        """Delivery from the application logs that are beside the message log; None where they are a part of it."""
        return None

    def share_applications(self, store: SharedGroups, parking: Parking) -> SharedReaders | None:
        """The same for shared subscriptions."""
        return None

    @abstractmethod
    def close(self) -> None:
        """The last tick is over."""


class EmbeddedLog(LogSide):
    """In segment files, with broker.db as their checkpoint."""

    is_apart = False

    def __init__(
        self, settings: Settings, data_dir: Path, tables: TickTables, store: SegmentTickStore
    ) -> None:
        self._settings = settings
        self._path = data_dir / "broker.db"
        self._tables = tables
        self._store = self.ticks = store
        self.log = SegmentMessageLog(store)
        self.meaning = MEANING[settings.log.durability]
        self.is_shared_by_threads = settings.log.durability != "memory"
        self.on_end = store.on_end

    def behind(self, stored: StoredState) -> StoredState:
        return stored

    def begin(self, stored: StoredState) -> StoredState:
        confirmed = confirmed_offset(self._settings, sqlite.log_identity(self._tables.connection))
        self._store.begin_at(max(confirmed, stored.log_end))
        return replace(stored, log_end=self._store.log_end)

    @property
    def dispatcher_floor(self) -> int:
        return self._store.dispatcher_floor

    @property
    def failing(self) -> str:
        return ""  # a tick is answered, with an error or without

    def open_for_retention(self) -> RetainedLog:
        connection = sqlite.open_reader(self._path)
        applications = SqliteApplicationLog(connection, self._path.with_name("applications.db"))

        log = SegmentMessageLog(self._store, own_thread=True)

        def close() -> None:
            log.close()
            applications.close()
            connection.close()

        return RetainedLog(log, SqliteLogReaders(self._path.parent), applications, close)

    def open_reader(self) -> tuple[MessageLog, Callable[[], None]]:
        if not self.is_shared_by_threads:
            return self.log, lambda: None
        log = SegmentMessageLog(self._store, own_thread=True)
        return log, log.close

    def look(self, queries: Iterable[str]) -> LogLook | None:
        return None

    def holding(self, sessions: Iterable[Session]) -> tuple[str, ...]:
        pipeline = self._settings.pipeline
        return pipeline.queries if pipeline.enabled else ()

    def close(self) -> None:
        self._store.close()


def open_log_side(
    settings: Settings,
    data_dir: Path,
    tables: TickTables,
    *,
    tick: Tick,
    post: Post,
    accept_loss: bool = False,
) -> LogSide:
    """The log that the settings name. `accept_loss`: go on without what is damaged or missing. Raises StartError for
    settings that cannot be, StoreError."""
    durability = settings.log.durability
    if settings.stores.log == SQLITE:
        if is_log_apart(tables):
            raise StartError(
                f"stores.log: the message log of {data_dir} is not in it but in a Kafka; name that, or take "
                "another data directory"
            )
        checkpoint = SqliteCheckpoint(tables, data_dir / "broker.db")
        store = SegmentTickStore(
            data_dir / FOLDER,
            checkpoint,
            durability=durability,
            post=post,
            now_ms=tables.now_ms,
            accept_loss=accept_loss,
            segment_bytes=_segment_bytes(settings.log.retention_bytes),
        )
        for lost in store.lost:
            LOG.error("lost, and accepted: %s", lost)
        return EmbeddedLog(settings, data_dir, tables, store)
    if (data_dir / FOLDER).exists():
        raise StartError(
            f"stores.log: the message log of {data_dir} is in its folder {FOLDER} and is not moved to "
            f"{settings.stores.shown().log}; take another data directory"
        )
    try:
        from embermq.app.kafka_log import KafkaLogSide
    except ImportError as error:
        raise StartError(
            f"stores.log: {settings.stores.shown().log} needs {error.name}, which is not installed: "
            "pip install 'embermq[servers]', or make servers"
        ) from error
    try:
        return KafkaLogSide(settings, SqliteLogState(tables, durability=durability, post=post), tick, post)
    except StoreError as error:
        raise StartError(f"stores.log: {error}") from error


def _segment_bytes(retention_bytes: int) -> int:
    """Retention removes whole files, so a small log has small ones."""
    return min(SEGMENT_BYTES, max(SEGMENT_BYTES_MIN, retention_bytes // SEGMENTS_KEPT_MIN))


def log_worth(settings: Settings) -> str:
    """What an acknowledgement is worth with a log in a Kafka, from what the cluster has, or why that cannot be told; ""
    for the data directory, whose settings say it. Raises StartError for settings that cannot be."""
    if settings.stores.log == SQLITE:
        return ""
    try:
        from embermq.app.kafka_log import kafka_worth
    except ImportError as error:
        return f"{settings.stores.shown().log} needs {error.name}, which is not installed"
    return kafka_worth(settings)
