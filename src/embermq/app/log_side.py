"""What the message log stands on, in either profile."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from msgspec import Struct

from embermq.app.config import Settings
from embermq.app.errors import missing
from embermq.app.settings import SQLITE
from embermq.pipeline.log_look import LogLook
from embermq.ports.application_log import ApplicationLog
from embermq.ports.application_logs import ApplicationLogs
from embermq.ports.errors import StoreError
from embermq.ports.log_readers import LogReaders
from embermq.ports.message_log import MessageLog
from embermq.ports.receipt_log import ReceiptStatistics
from embermq.sessions.session import Session
from embermq.sessions.state import NO_LIMIT

LOG = logging.getLogger("embermq")

Post = Callable[[Callable[[], None]], object]
"""Runs a callable soon on the broker's thread; may be called from any thread."""


class RetainedLog(Struct, frozen=True):
    """What retention works on: the log, who still reads it, and what applications need of it."""

    log: MessageLog
    readers: LogReaders
    applications: ApplicationLog
    close: Callable[[], None]


class LogSide(ABC):
    """The log of one broker, from its opening on. `log` is for the broker's own thread."""

    log: MessageLog
    has_dates: bool
    """Whether records have dates, for broker time."""
    is_shared_by_threads = True
    """Whether other threads see what has been logged."""
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
        """Open the log once more, for the thread that deletes what is too old."""

    @abstractmethod
    def open_reader(self) -> tuple[MessageLog, Callable[[], None]]:
        """The log for another thread that reads in it, and how to close it. Raises StoreError."""

    @abstractmethod
    def look(self, queries: Iterable[str]) -> LogLook | None:
        """Where the pipeline's queries stand; None where their files say it. Does not wait."""

    @abstractmethod
    def holding(self, sessions: Iterable[Session]) -> tuple[str, ...]:
        """The pipeline's queries that hold back the log even before their first word."""

    @abstractmethod
    def close(self) -> None:
        """Close the log. Called when the last tick is over."""


def log_worth(settings: Settings) -> str:
    """What an acknowledgement is worth with a log in a Kafka, from what the cluster has, or why that cannot be told; ""
    for the data directory, whose settings say it. Raises StartError for settings that cannot be."""
    if settings.stores.log == SQLITE:
        return ""
    try:
        from embermq.app.kafka_log import kafka_worth
    except ImportError as error:
        return f"{settings.stores.shown().log} needs {missing(error)}"
    return kafka_worth(settings)
