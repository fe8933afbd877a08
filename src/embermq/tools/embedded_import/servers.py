"""The Kafka and the Redis that get what an embedded broker has. Imported only when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import Struct

from embermq.adapters.kafka.appender import KafkaAppender
from embermq.adapters.kafka.application_logs import KafkaApplicationLogs
from embermq.adapters.kafka.application_topics import ApplicationTopics
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.log_producer import LogProducer
from embermq.adapters.kafka.log_topic import LogTopic, find_ends
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.log_notes import RedisLogNotes
from embermq.adapters.redis.queue_writer import GENERATION
from embermq.adapters.redis.state_writer import NOTE_LOG
from embermq.app.config import Settings
from embermq.app.errors import UserError
from embermq.app.kafka_log import log_properties
from embermq.app.redis_state import RedisState
from embermq.app.slots import cluster_of
from embermq.app.store_addresses import kafka_address, redis_address
from embermq.delivery.application.log_lifecycle import PARTITIONS
from embermq.formats.application_logs import ApplicationLogNames
from embermq.formats.kafka_record import KafkaEncoder
from embermq.formats.redis_layout import LOG_KEY
from embermq.formats.redis_queues import GENERATION_KEY
from embermq.model.position import offset_of, position_of
from embermq.model.tick_writes import TickWrites
from embermq.ports.application_logs import FoundLog
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.tick_store import Receipt
from embermq.tools.embedded_import.source import Counts

GOES_ON = 1
"""The partition in which the log goes on: the one before stands for the embedded log, whose positions it has."""
LOOK_S = 30.0
"""A server that says nothing for so long, and is known to fail, ends the import."""
UNDER_WAY = 4
"""Ticks that Redis has not answered."""
APPENDED_AT_ONCE = 1_000
APPENDED_BYTES = 2 * 1024 * 1024

Answer = TypeVar("Answer")


class ImportNote(Struct, frozen=True):
    """What an import is of: another one, or the same directory after its broker has run again, is not it."""

    log: int
    fingerprint: int
    """Of all that it has, `Fingerprint`."""


def begun_import(settings: Settings) -> ImportNote | None:
    """What an import is of that was broken off. Changes nothing. Raises StoreError."""
    address = redis_address(settings.stores.session)
    with BlockingRedis(address, settings.redis) as redis:
        begun = RedisLogNotes(redis, str(address)).importing()
    return None if begun is None else msgspec.json.decode(begun, type=ImportNote)


def check_empty(settings: Settings) -> None:
    """Changes nothing. Raises StoreError for servers that are not to be had, UserError for those that are in use."""
    address = redis_address(settings.stores.session)
    with BlockingRedis(address, settings.redis) as redis:
        if RedisLogNotes(redis, str(address)).known().is_any:
            raise UserError(
                f"stores.session: {address}: belongs to a broker already; name an empty Redis, or another database of "
                "it behind a /"
            )
    admin = WatchedAdmin(kafka_address(settings.stores.log), settings.kafka)
    topic = LogTopic(admin, packet_bytes_max=settings.mqtt.packet_bytes_max)
    if topic.durability() is not None:
        ends = find_ends(admin, topic).ends()
        if topic.partitions > 1 or any(ends.values()):
            raise UserError(
                f"stores.log: {admin.address}: topic {topic.name} is the log of a broker already; name another "
                "kafka.prefix"
            )


class NewLog:
    """The message log, from where it goes on, and the logs of applications."""

    def __init__(self, settings: Settings, post: Callable[[Callable[[], None]], object]) -> None:
        kafka, address = settings.kafka, kafka_address(settings.stores.log)
        self._address = address
        admin = WatchedAdmin(address, kafka)
        topic = LogTopic(admin, packet_bytes_max=settings.mqtt.packet_bytes_max)
        topic.open(is_new=True)
        self.identity = topic.identity()
        topic.add_partitions(GOES_ON + 1)
        self._names = ApplicationLogNames(kafka.prefix)
        producer = LogProducer(address, kafka, record_bytes_max=topic.record_bytes_max)
        self._positions = find_ends(admin, topic)
        self._place = f"{address}, topic {topic.name}"
        self._appender = KafkaAppender(
            address,
            producer,
            topic.name,
            self._positions,
            post,
            record_bytes_max=topic.record_bytes_max,
            encoder=KafkaEncoder(self._names.stamped_log),
        )
        self._logs = KafkaApplicationLogs(
            ApplicationTopics(WatchedAdmin(address, kafka), self._names, log_properties(settings)),
            self._names,
            post,
            log_ends=self._positions.ends,
            dispatched=dict,
            patience_s=kafka.request_timeout_s,
        )

    @property
    def records(self) -> int:
        """How many it has behind its beginning, of a run that was broken off."""
        ends = self._positions.ends()
        if len(ends) != GOES_ON + 1 or ends[0]:
            raise StoreUnavailable(f"{self._place}: somebody else writes into it; name another kafka.prefix")
        return offset_of(self._positions.end)

    async def append(self, records: list[bytes]) -> None:
        """Durably, behind what is there. Raises StoreError."""
        done: asyncio.Future[Receipt | StoreError] = asyncio.get_running_loop().create_future()
        self._appender.append(records, done.set_result)
        result = await _answered(done, lambda: self._appender.failing)
        if isinstance(result, StoreError):
            raise result

    async def make_logs(self, clients: Iterable[tuple[int, str]]) -> dict[int, str]:
        """The application log of each session, empty; returns their identities. Raises StoreError, UserError."""
        loop, identities = asyncio.get_running_loop(), {}
        for generation, client_id in clients:
            found: asyncio.Future[FoundLog | StoreError] = loop.create_future()
            name = self._names.client_log(client_id)
            self._logs.ensure(name, PARTITIONS, found.set_result)
            answer = await found
            if isinstance(answer, StoreError):
                raise answer
            if any(answer.ends.values()):
                raise UserError(
                    f"{self._address}: topic {name} has messages of another broker; name another kafka.prefix, or "
                    "delete it"
                )
            identities[generation] = answer.identity
        return identities

    def close(self) -> None:
        """Let go of Kafka."""
        self._logs.close()
        self._appender.close()


class NewState:
    """The Redis."""

    def __init__(self, settings: Settings, post: Callable[[Callable[[], None]], object]) -> None:
        address = redis_address(settings.stores.session)
        self._settings = settings
        self._redis = BlockingRedis(address, settings.redis)
        self.notes = RedisLogNotes(self._redis, str(address))
        self._state = RedisState(settings.stores.session, settings.redis, post)
        self._post = post
        self._open: set[asyncio.Future[None]] = set()

    def begin(self, note: ImportNote) -> None:
        """Raises UserError for one that has another import."""
        found = msgspec.json.decode(self.notes.begin_import(msgspec.json.encode(note)), type=ImportNote)
        if found != note:
            raise UserError(another(found, note))
        self._state.begin(lambda error: None)

    async def store(self, writes: TickWrites, end: int) -> None:
        """Soon; waits while much is under way. Raises StoreError."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.add(stored)
        self._state.writer.submit(writes, end, end, partial(stored.set_result, None))
        while len(self._open) >= UNDER_WAY:
            await self._some()

    async def settle(self) -> None:
        """All is stored. Raises StoreError."""
        while self._open:
            await self._some()
        refused = self._state.writer.statistics()
        if refused.refused or refused.fenced or self._state.trouble:
            raise StoreError(
                f"stores.session: {self._state.place}: has refused {refused.refused + refused.fenced} operations; "
                f"{self._state.trouble or 'somebody else writes there'}"
            )

    async def _some(self) -> None:
        first = next(iter(self._open))
        await _answered(first, lambda: self._state.trouble)
        self._open.discard(first)

    def note_end(self, end: int, generations: int, queue_generation: int) -> None:
        """What is known of the log, and that everything below `end` is owed to nobody by it."""
        self._redis.run(GENERATION_KEY, GENERATION, (GENERATION_KEY,), (queue_generation,))
        self._redis.run(LOG_KEY, NOTE_LOG, (LOG_KEY,), (end, generations, 0, ""))
        self.notes.begin(end)

    def count(self) -> Counts:
        """What is there, read as a start reads it. Raises StoreError."""
        counts = Counts()
        read = RedisState(self._settings.stores.session, self._settings.redis, self._post)
        try:
            stored = read.sessions.load()
            for one in stored.sessions:
                counts.add("sessions")
                counts.add("subscriptions", len(one.subscriptions))
                counts.add("packet ids of incoming QoS 2 messages", len(one.receiving))
                counts.add("messages stored for clients", one.queued)
            counts.add("wills", len(stored.wills))
            counts.add("replays", len(stored.replays))
            counts.add("retained messages", len(read.sessions.load_retained()))
            counts.add("parked messages", len(read.parked.load()))
            counts.add("shared subscriptions of applications", len(read.shared.load().groups))
            for queue in read.queues.load():
                counts.add("queues")
                counts.add("groups of queues", len(queue.groups))
                counts.add("messages in queues", sum(1 for _ in queue.entries))
                counts.add("delayed messages", len(queue.delayed))
                counts.add("messages that groups have tried", len(queue.marks))
        finally:
            read.abandon()
        return counts

    def finish(self, identity: str) -> None:
        """A broker may start on it from now on."""
        self.notes.open(identity, cluster_of(self._settings))
        self.notes.end_import()

    async def close(self) -> None:
        """Let go of Redis."""
        self._redis.close()
        await self._state.close()


def position_at(record: int) -> int:
    """Where this record of what applications are owed stands."""
    return position_of(GOES_ON, record)


def another(found: ImportNote, wanted: ImportNote) -> str:
    """Why what was begun cannot go on."""
    what = (
        "its broker has run again since"
        if found.log == wanted.log
        else "it was the import of another data directory"
    )
    return (
        f"stores.session: an import into it was broken off, and {what}: delete its keys (FLUSHDB, unless others are "
        "there), and begin anew with another kafka.prefix and another --data-dir"
    )


async def _answered(answer: asyncio.Future[Answer], failing: Callable[[], str]) -> Answer:
    """Wait for as long as nothing fails. Raises StoreUnavailable."""
    while True:
        done, _ = await asyncio.wait((answer,), timeout=LOOK_S)
        if done:
            return answer.result()
        if why := failing():
            raise StoreUnavailable(
                f"{why}: run the import once more when that is mended, it goes on where it was"
            )
