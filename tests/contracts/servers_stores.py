"""The stores of the servers profile as one set for the contract suites: a log in this process before a real Redis."""

from __future__ import annotations

from pathlib import Path

from tests.contracts.session_stores import every_key
from tests.contracts.stores import Reading, Stores
from tests.support.log_in_process import LogInProcess
from tests.support.step_link import StepLink

from embermq.adapters.redis.address import RedisSettings, parse_address
from embermq.adapters.redis.applications import (
    RedisParkedMessages,
    RedisReaderPositions,
    RedisSharedGroups,
)
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.device_queue import RedisDeviceQueue, RedisDeviceQueueHistory
from embermq.adapters.redis.log_notes import RedisLogNotes
from embermq.adapters.redis.owners import Owners
from embermq.adapters.redis.queue_owners import QueueOwners
from embermq.adapters.redis.queue_store import RedisQueueStore
from embermq.adapters.redis.sessions import RedisSessionStore
from embermq.adapters.redis.state_writer import RedisStateWriter
from embermq.durability.log_first import LogFirstStore
from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError
from embermq.ports.log_appender import LogAppender
from embermq.ports.message_log import MessageLog
from embermq.ports.tick_store import Receipt
from embermq.sessions.settings import MqttSettings
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Tick


class _Stepped(Reading):
    """Answers come by way of what was posted."""

    def __init__(self, stores: ServersStores) -> None:
        super().__init__(stores.link_queue)
        self._stores = stores

    def _settle(self) -> None:
        self._stores.settle()


class ServersStores(Stores):
    """See the module. Readers of what a part has written stand in `_open`, by the part."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        super().__init__("os", folder)
        self.kind = "servers"

    def _open_log(self) -> tuple[LogAppender, MessageLog, int]:
        """Where records go and are read, and the position of the next one."""
        if not hasattr(self, "in_process"):
            self.in_process = LogInProcess(self.posted.put)
        return self.in_process, self.in_process, self.in_process.end

    def _connect(self) -> BlockingRedis:
        return BlockingRedis(parse_address(self.url), RedisSettings())

    def _open(self) -> None:
        self.raw = self._connect()
        self.link = StepLink(self.raw, self.posted.put)
        self.owners = Owners(self.raw.prefix)
        queue_owners = QueueOwners(self.raw.prefix)
        self.notes = RedisLogNotes(self.raw, "redis")
        self.writer_of_state = RedisStateWriter(
            self.link, self.owners, self.posted.put, "here", queues=queue_owners, mark_s=0
        )
        self.tick = Tick()
        self.state = BrokerState(MqttSettings(), self.tick)
        appender, self.log, end = self._open_log()
        self.state.log_end = end
        self.store = self.servers = LogFirstStore(
            appender,
            self.writer_of_state,
            self.state,
            self.posted.put,
            log_end=end,
        )
        self.link_queue = RedisDeviceQueue(self.link, self.owners)
        self.queue = _Stepped(self)
        self.history = RedisDeviceQueueHistory(self.raw, self.owners)
        self.sessions = RedisSessionStore(self.raw, self.owners)
        self.sessions.load()  # who is whose is known from there
        writer = self.writer_of_state
        self.readers = RedisReaderPositions(self.link, self.owners)
        self.parked = RedisParkedMessages(self.raw, self.link, self.owners)
        self.shared = RedisSharedGroups(self.raw, self.link, self.owners, writer.groups, writer.applications)
        self.shared.load()
        self.queues = self.redis_queues = RedisQueueStore(self.raw, self.link, queue_owners, self.posted.put)
        self.queues.load()
        self._closing = [self._close_servers]

    def _close_servers(self) -> None:
        self.settle()
        self.store.close()
        self.raw.close()

    def settle(self) -> None:
        """Let all that was posted happen."""
        while not self.posted.empty():
            self.posted.get()()

    def all_keys(self) -> dict[str, str]:
        """Every key of Redis with its type."""
        return every_key(self.raw)

    def submit(self, writes: TickWrites) -> list[Receipt | StoreError]:
        answers: list[Receipt | StoreError] = []

        def logged(answer: Receipt | StoreError) -> None:
            answers.append(answer)
            if isinstance(answer, Receipt):
                self.state.log_end = answer.base_offset + answer.record_count

        self.store.submit(writes, logged)
        return answers

    def answer(self) -> None:
        """The answer, and whatever was still to be stored."""
        self.settle()
        self.store.settle()
        self.settle()

    def write(self, **writes: object) -> Receipt:
        receipt = super().write(**writes)
        return Receipt(receipt.base_offset, receipt.record_count)
