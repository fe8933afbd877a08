"""The message log in Kafka, everything else in SQLite, as one set of stores for the contract suites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.contracts.stores import ANSWER_S, Stores
from tests.support.kafka_server import KafkaCluster, KafkaServer

from embermq.adapters.kafka.address import parse_address
from embermq.adapters.kafka.appender import KafkaAppender
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.dispatcher_group import DispatcherGroup
from embermq.adapters.kafka.log_end import continue_behind, find_ends, known_end
from embermq.adapters.kafka.log_topic import LogTopic
from embermq.adapters.kafka.message_log import KafkaMessageLog
from embermq.adapters.kafka.settings import KafkaSettings
from embermq.adapters.sqlite.log_state import SqliteLogState
from embermq.adapters.sqlite.sessions import SqliteSessionStore
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.durability.log_apart.start import behind_records
from embermq.durability.log_apart.store import LogThenState
from embermq.model.session import RetainedRow
from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError
from embermq.ports.sessions import SessionStore, StoredState
from embermq.ports.tick_store import Receipt
from embermq.sessions.tick import Tick

PACKET_BYTES_MAX = 1024 * 1024


class _BehindRecords(SessionStore):
    """What SQLite holds, with the end of the log in Kafka."""

    def __init__(self, sessions: SessionStore, log: KafkaMessageLog) -> None:
        self._sessions = sessions
        self._log = log

    def load(self) -> StoredState:
        return behind_records(self._sessions.load(), self._log.statistics().end_offset)

    def load_retained(self) -> list[RetainedRow]:
        return self._sessions.load_retained()


class KafkaStores(Stores):
    """See the module. `failures` are what made the appender end."""

    has_log_by_offset = False

    def __init__(
        self, kafka: KafkaServer | KafkaCluster, folder: Path, settings: KafkaSettings | None = None
    ) -> None:
        self.kafka = kafka
        self.settings = settings or KafkaSettings(prefix=kafka.prefix())
        self.address = parse_address(f"kafka://{kafka.bootstrap}")
        self.tick = Tick()
        self.failures: list[StoreError] = []
        super().__init__("os", folder)
        self.kind = "kafka"

    def _open_log_store(self, tables: TickTables, path: Path) -> list[Callable[[], None]]:
        self.state = state = SqliteLogState(tables, durability="os", post=self.posted.put)
        self.admin = WatchedAdmin(self.address, self.settings)
        self.topic = LogTopic(self.admin, packet_bytes_max=PACKET_BYTES_MAX)
        name = self.topic.name
        self.durability = self.topic.open(is_new=not state.log_end)
        log_id = self.topic.identity()
        self.positions = find_ends(self.admin, self.topic)
        known = known_end(self.admin, log_id, state.known_log(), self.positions)
        continue_behind(self.admin, self.topic, self.positions, known)
        state.open_log(log_id)
        self.group = group = DispatcherGroup(self.address, self.settings, name, self.positions)
        self.appender = KafkaAppender(
            self.address,
            self.settings,
            name,
            self.positions,
            self.posted.put,
            record_bytes_max=self.topic.record_bytes_max,
            group=group,
        )
        self.appender.on_end.append(self.failures.append)
        self.log = self.kafka_log = KafkaMessageLog(self.admin, name, self.positions)
        self.store = self.composed = LogThenState(self.appender, state, self.positions.end, self.tick)
        self._answers: list[Receipt | StoreError] = []
        return [self.log.close, self.store.close]

    def _open(self) -> None:
        super()._open()
        self.sessions = _BehindRecords(SqliteSessionStore(self.writer), self.kafka_log)

    def submit(self, writes: TickWrites) -> list[Receipt | StoreError]:
        self._answers = super().submit(writes)
        return self._answers

    def answer(self) -> None:
        """Each store posts its own."""
        while not self._answers:
            self.posted.get(timeout=ANSWER_S)()
