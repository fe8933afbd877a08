"""Every place where session data may be kept, for the one contract suite that all of them pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from tests.contracts.stores import ANSWER_S, Reading, tick_writes
from tests.support.step_link import StepLink

from embermq.adapters.redis.address import RedisSettings, parse_address
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.device_queue import RedisDeviceQueue, RedisDeviceQueueHistory
from embermq.adapters.redis.owners import Owners
from embermq.adapters.redis.sessions import RedisSessionStore
from embermq.adapters.redis.state_writer import RedisStateWriter
from embermq.adapters.segments.tick_store import SegmentTickStore
from embermq.adapters.sqlite.checkpoint import SqliteCheckpoint
from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer, wall_ms
from embermq.adapters.sqlite.device_queue import SqliteDeviceQueue, SqliteQueueHistory
from embermq.adapters.sqlite.sessions import SqliteSessionStore
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.model.session_writes import QueueRow, SessionWrites
from embermq.model.tick_writes import TickWrites
from embermq.ports.device_queue import DeviceQueue, DeviceQueueHistory
from embermq.ports.sessions import SessionStore
from embermq.ports.tick_store import Receipt


class SessionStores(ABC):
    """`write` is the session data of a tick, durable when it returns; `reopen` is a broker that starts anew."""

    queue: DeviceQueue
    history: DeviceQueueHistory
    sessions: SessionStore

    def __init__(self) -> None:
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.log_end = 0
        self.last: dict[str, object] = {}
        self.base = 0

    def write(self, *, records: int = 0, **writes: object) -> None:
        """`records`: how many records the tick has in the log."""
        self.last = writes
        self.base = self.log_end
        self._write(records, SessionWrites(**writes))  # type: ignore[arg-type]
        self.log_end += records

    @abstractmethod
    def _write(self, records: int, writes: SessionWrites) -> None: ...

    @abstractmethod
    def forget_below(self, floor: int) -> None:
        """The dispatcher's floor moves."""

    @abstractmethod
    def reopen(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @property
    def reading(self) -> SteppedReading:
        return SteppedReading(self)

    def page(
        self, generation: int, after_seq: int, limit: int, bytes_max: int | None = None
    ) -> list[QueueRow]:
        return self.reading.page(generation, after_seq, limit, bytes_max=bytes_max)

    def in_flight(self, generation: int) -> list[QueueRow]:
        return self.reading.in_flight(generation)

    def oldest(self, generation: int, after_seq: int, limit: int) -> list[tuple[int, int]]:
        return self.reading.oldest(generation, after_seq, limit)

    def settle(self) -> None:
        """Let all that was posted happen."""
        while not self.posted.empty():
            self.posted.get()()


class SteppedReading(Reading):
    """Answers that come by way of what was posted."""

    def __init__(self, stores: SessionStores) -> None:
        super().__init__(stores.queue)
        self._stores = stores

    def _settle(self) -> None:
        self._stores.settle()


class InSqlite(SessionStores):
    """In broker.db, beside the log."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._open()

    def _open(self) -> None:
        path = self.folder / "broker.db"
        writer = open_writer(path, synchronous="NORMAL")
        apply_broker_schema(writer)
        tables = TickTables(writer)
        self.store = SegmentTickStore(
            self.folder / "log",
            SqliteCheckpoint(tables, path),
            durability="os",
            post=self.posted.put,
            now_ms=wall_ms,
            reserve_bytes=4096,
        )
        self.queue = SqliteDeviceQueue(tables)
        self.history = SqliteQueueHistory(tables)
        self.sessions = SqliteSessionStore(tables)

    def _write(self, records: int, writes: SessionWrites) -> None:
        self._submit(TickWrites(records=[b""] * records, session=writes))

    def _submit(self, writes: TickWrites) -> None:
        answers: list[object] = []
        self.store.submit(writes, answers.append)
        self.posted.get(timeout=ANSWER_S)()
        assert isinstance(answers[0], Receipt), answers

    def forget_below(self, floor: int) -> None:
        self._submit(tick_writes(dispatcher_floor=floor))

    def reopen(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self.store.close()


class InRedis(SessionStores):
    """In a real Redis or Redis Cluster, by a link that goes step by step. `raw` sees the keys as they are; `all_keys`
    and `ask` name them without the prefix of a slot."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self._open()

    def another(self) -> InRedis:
        """As another broker has it."""
        return InRedis(self.url)

    def _connect(self) -> BlockingRedis:
        return BlockingRedis(parse_address(self.url), RedisSettings())

    def _open(self) -> None:
        self.raw = self._connect()
        self.link = StepLink(self.raw, self.posted.put)
        self.owners = Owners(self.raw.prefix)
        self.writer = RedisStateWriter(self.link, self.owners, self.posted.put, "here", mark_s=0)
        self.queue = RedisDeviceQueue(self.link, self.owners)
        self.history = RedisDeviceQueueHistory(self.raw, self.owners)
        self.sessions = RedisSessionStore(self.raw, self.owners)

    def _write(self, records: int, writes: SessionWrites) -> None:
        stored: list[bool] = []
        self.writer.submit(
            TickWrites(session=writes), self.log_end, self.log_end + records, lambda: stored.append(True)
        )
        assert not stored
        self.settle()
        assert stored == [True]

    def forget_below(self, floor: int) -> None:
        self.writer.forget_below(floor)
        self.settle()

    def reopen(self) -> None:
        self.close()
        self._open()
        self.sessions.load()

    def close(self) -> None:
        self.writer.close()
        self.raw.close()

    def all_keys(self) -> dict[str, str]:
        """Every key with its type."""
        return every_key(self.raw)

    def ask(self, key: str, command: str, name: str, *words: str | bytes | int) -> object:
        """One command about the key `name`, at the node that has `key`."""
        return self.raw.command(self.raw.prefix + key, command, self.raw.prefix + name, *words)


def every_key(raw: BlockingRedis) -> dict[str, str]:
    """What there is without the prefix of its slot, with its type. Nothing else may be there."""
    found: dict[str, str] = {}
    for master in raw.masters:
        for key in master.keys("*"):
            assert key.startswith(raw.prefix.encode()), key
            found[key.decode().removeprefix(raw.prefix)] = master.type(key).decode()
    return found
