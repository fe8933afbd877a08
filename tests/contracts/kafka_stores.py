"""The stores of the servers profile with a real Kafka as their log, for the contract suites."""

from __future__ import annotations

from pathlib import Path

from tests.contracts.servers_stores import ServersStores
from tests.contracts.stores import ANSWER_S
from tests.support.kafka_server import KafkaCluster, KafkaServer

from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.appender import KafkaAppender
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.log_producer import LogProducer
from embermq.adapters.kafka.log_topic import LogTopic, continue_behind, find_ends, known_end
from embermq.adapters.kafka.message_log import KafkaMessageLog
from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError
from embermq.ports.log_appender import LogAppender
from embermq.ports.message_log import MessageLog
from embermq.ports.tick_store import Receipt

PACKET_BYTES_MAX = 1024 * 1024


class KafkaStores(ServersStores):
    """See the module. `failures` are what made the appender end."""

    def __init__(
        self,
        kafka: KafkaServer | KafkaCluster,
        redis_url: str,
        folder: Path,
        settings: KafkaSettings | None = None,
        *,
        fence: str = "",
    ) -> None:
        self.fence = fence
        self.kafka = kafka
        self.settings = settings or KafkaSettings(prefix=kafka.prefix())
        self.address = parse_address(f"kafka://{kafka.bootstrap}")
        self.failures: list[StoreError] = []
        super().__init__(redis_url, folder)
        self.kind = "kafka"

    def _open_log(self) -> tuple[LogAppender, MessageLog, int]:
        self.admin = WatchedAdmin(self.address, self.settings)
        self.topic = LogTopic(self.admin, packet_bytes_max=PACKET_BYTES_MAX)
        name = self.topic.name
        known = self.notes.known()
        self.durability = self.topic.open(is_new=not known.is_any)
        log_id = self.topic.identity()
        producer = LogProducer(
            self.address, self.settings, record_bytes_max=self.topic.record_bytes_max, fence=self.fence
        )
        self.positions = find_ends(self.admin, self.topic, in_transactions=bool(self.fence))
        continue_behind(
            self.admin, self.topic, self.positions, known_end(self.admin, log_id, known, self.positions)
        )
        self.notes.open(log_id)
        self.appender = KafkaAppender(
            self.address,
            producer,
            name,
            self.positions,
            self.posted.put,
            record_bytes_max=self.topic.record_bytes_max,
        )
        self.appender.on_end.append(self.failures.append)
        self.kafka_log = KafkaMessageLog(self.admin, name, self.positions)
        return self.appender, self.kafka_log, self.positions.end

    def _close_servers(self) -> None:
        self.servers.finish()
        super()._close_servers()
        self.kafka_log.close()

    def submit(self, writes: TickWrites) -> list[Receipt | StoreError]:
        self._answers = super().submit(writes)
        return self._answers

    def answer(self) -> None:
        """Kafka posts its own, then comes the rest."""
        while not self._answers:
            self.posted.get(timeout=ANSWER_S)()
        super().answer()
