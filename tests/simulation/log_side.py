"""What a node's wiring gets in place of Kafka: the log of the simulation, and application logs that nobody fills."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from tests.simulation.loop import Process
from tests.simulation.message_log import (
    LogServer,
    SimulatedAppender,
    SimulatedMessageLog,
    SimulatedSourceRecords,
)
from tests.support.hand_kafka import HandKafka, HandLogs
from tests.support.stand_in_shared import HandFeeds

from embermq.app import kafka_log
from embermq.app.config import Settings
from embermq.app.log_side import LogSide, Post, RetainedLog
from embermq.delivery.application.fed_readers import FedReaders
from embermq.delivery.application.log_place import LogPlace, OwnPlace
from embermq.delivery.application.parking import Parking
from embermq.delivery.application.shared_readers import SharedPlace, SharedReaders
from embermq.durability.log_first import NEVER, LogFirstStore
from embermq.ports.application_logs import LogSize
from embermq.ports.errors import StoreError
from embermq.ports.known_log import KnownLog
from embermq.ports.message_log import MessageLog
from embermq.ports.reader_positions import ReaderPositions
from embermq.ports.shared_groups import SharedGroups
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState


class NoLogs(HandLogs):
    """There is no application, so no log of one."""

    def listed(self, then: Callable[[Collection[str] | StoreError], None]) -> None:
        then([])

    def sizes(self, then: Callable[[list[LogSize] | StoreError], None]) -> None:
        then([])


class SimulatedLogSide(LogSide):
    """Opening it makes its process the one producer of the log."""

    has_dates = True
    application_logs: NoLogs
    ticks: LogFirstStore | None = None
    meaning = "simulated"
    receipt_log = None
    readers: tuple[str, ...] = ()
    kept_from: Callable[[], int] = staticmethod(lambda: NEVER)

    def __init__(
        self, server: LogServer, process: Process, settings: Settings, known: KnownLog, post: Post
    ) -> None:
        self._server = server
        self._kafka = HandKafka()
        self.log_id = settings.kafka.prefix
        self.application_logs = NoLogs(self._kafka)
        epoch = server.take_over() if kafka_log.log_fence(settings) else server.epoch
        self.appender = SimulatedAppender(server, process, epoch)
        self.on_end = self.appender.on_end
        self.log = SimulatedMessageLog(server)
        self.records = SimulatedSourceRecords(server)
        self.log_end = server.end
        assert not known.is_any or known.identity == self.log_id
        self.continue_behind(known.end)

    def continue_behind(self, known: int) -> None:
        """The log of the simulation loses nothing."""
        assert known <= self.log_end, f"somebody knows of {known} records, and there are {self.log_end}"

    @property
    def dispatcher_floor(self) -> int:
        return min(self.ticks.dispatcher_floor, self.kept_from()) if self.ticks is not None else 0

    def trim(self) -> None:
        """Let go of what nobody needs, as retention does when all is old."""
        told = self._server.told
        self._server.trim(min(self.dispatcher_floor, *(told.get(name, 0) for name in self.readers), NEVER))

    @property
    def failing(self) -> str:
        return self.ticks.failing if self.ticks is not None else ""

    def open_for_retention(self) -> RetainedLog:
        raise NotImplementedError

    def open_reader(self) -> tuple[MessageLog, Callable[[], None]]:
        return self.log, lambda: None

    def look(self, queries: Iterable[str]) -> None:
        return None

    def holding(self, sessions: Iterable[Session]) -> tuple[str, ...]:
        return ()

    def end(self, error: StoreError) -> None:
        """Nothing can be stored any more in this process."""
        for call in self.on_end:
            call(error)

    def feed_applications(self, state: BrokerState, store: ReaderPositions, parking: Parking) -> FedReaders:
        kafka = self._kafka
        place = OwnPlace(self.application_logs, kafka.progress, kafka.records)
        return FedReaders(state, LogPlace(kafka.feeds, store, place), parking)

    def share_applications(
        self, state: BrokerState, store: SharedGroups, parking: Parking, own: FedReaders
    ) -> SharedReaders:
        place = SharedPlace(HandFeeds(), self.application_logs, self._kafka.progress, store)
        return SharedReaders(state, place, parking, own.gave_ids)

    def close(self) -> None:
        """The process ends."""
