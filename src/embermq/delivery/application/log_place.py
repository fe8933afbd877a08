"""What readers of the application logs of clients stand on."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from embermq.ports.application_feed import ApplicationFeeds
from embermq.ports.application_logs import ApplicationLogs, FoundLog
from embermq.ports.pipeline_progress import PipelineProgress
from embermq.ports.reader_positions import ReaderPositions
from embermq.ports.source_records import SourceRecords
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState


class LogProvider(Protocol):
    """Makes sure that a session's log is there."""

    def name(self, session: Session) -> str:
        """What the session's log is called in its store."""

    def recall(self, session: Session, then: Callable[[FoundLog], None]) -> None:
        """`then` is called once when the log can be read and written; not at all when it cannot be had."""


class OwnPlace(Struct, frozen=True):
    """Logs in a store of their own, each with offsets of its own."""

    logs: ApplicationLogs
    progress: PipelineProgress
    records: SourceRecords


class LogPlace(Struct, frozen=True):
    """What readers stand on. `own` is None for logs that are a part of the message log."""

    feeds: ApplicationFeeds
    store: ReaderPositions
    own: OwnPlace | None = None


class PartOfLog(LogProvider):
    """The embedded message log: it is there."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def name(self, session: Session) -> str:
        return str(session.generation)

    def recall(self, session: Session, then: Callable[[FoundLog], None]) -> None:
        then(FoundLog({0: self._state.log_end}, ""))
