"""All that a broker on servers keeps besides its log, on a Redis: read at start, written while the broker runs.

Imported only when needed.

What becomes of a running broker whose Redis was emptied, or one master of it. What memory has is written anew, as one
tick: sessions with their subscriptions and what is in flight, wills, retained messages, queues, shared groups,
positions of connected applications, what is known of the log. The records of queues are read from the log again. A
session that had more in Redis than memory has of it is ended at once, before its client is told that it is present:
it would miss messages.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct

from embermq.adapters.redis import applications, device_queue, state_writer
from embermq.adapters.redis.address import RedisSettings
from embermq.adapters.redis.applications import RedisParkedMessages, RedisReaderPositions, RedisSharedGroups
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.device_queue import RedisDeviceQueue, RedisDeviceQueueHistory
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.log_notes import RedisLogNotes
from embermq.adapters.redis.owners import Owners
from embermq.adapters.redis.queue_owners import QueueOwners
from embermq.adapters.redis.queue_store import RedisQueueStore
from embermq.adapters.redis.sessions import RedisSessionStore
from embermq.adapters.redis.state_writer import IsLost, Post, RedisStateWriter
from embermq.app.errors import StartError
from embermq.app.store_addresses import redis_address
from embermq.delivery.application.fed_readers import FedReaders
from embermq.delivery.application.shared_readers import SharedReaders
from embermq.delivery.device.anew import Rows, is_whole, store_anew
from embermq.durability.log_first import LogFirstStore
from embermq.formats.redis_applications import group_keys
from embermq.formats.redis_layout import REPLAYS_KEY, client_keys, retained_key
from embermq.formats.redis_queues import queue_keys
from embermq.intake.broker import Broker
from embermq.model.session_writes import QueueRow
from embermq.model.shared_logs import SharedGroupRow
from embermq.ports.errors import TakenOver
from embermq.ports.known_log import KnownLog
from embermq.ports.state_writer import SessionStoreStatistics
from embermq.ports.tick_store import EVERYBODY
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.queue import Queue
from embermq.sessions.absent_session import row_of
from embermq.sessions.session import Session

LOG = logging.getLogger("embermq")
CLOSE_S = 5.0
"""How long the end of the broker waits for what Redis has not answered yet; the log has it all the same."""


class RedisState:
    """One store. `place` is its URL without credentials. Before the broker serves: everything is loaded, the repair
    works with `history`, then `begin`; at the end `close`. Raises StartError for settings that cannot be, StoreError
    for a Redis that does not answer or holds what it should not."""

    def __init__(self, url: str, settings: RedisSettings, post: Post) -> None:
        address = redis_address(url)
        self.place = str(address)
        self.prefix = address.prefix
        """How all keys begin that are ours."""
        self._epoch = 0
        self._blocking = blocking = BlockingRedis(address, settings)
        scripts = (*state_writer.SCRIPTS, *device_queue.SCRIPTS, *applications.SCRIPTS)
        try:
            self._link = link = RedisLink(address, settings, scripts)
        except ValueError as error:
            raise StartError(str(error)) from error
        owners, queue_owners = Owners(self.prefix), QueueOwners(self.prefix)
        self.notes = RedisLogNotes(blocking, self.place)
        self.sessions = RedisSessionStore(blocking, owners)
        self.history = RedisDeviceQueueHistory(blocking, owners)
        self.writer = writer = RedisStateWriter(link, owners, post, platform.node(), queues=queue_owners)
        self.queue = RedisDeviceQueue(link, owners)
        self.readers = RedisReaderPositions(link, owners)
        self.parked = RedisParkedMessages(blocking, link, owners)
        self.shared = RedisSharedGroups(blocking, link, owners, writer.groups, writer.applications)
        self.queues = RedisQueueStore(blocking, link, queue_owners, post)
        self.before_close: Callable[[], None] = lambda: None
        """What is to be asked for last."""

    def take_over(self, *, is_guarded: bool) -> KnownLog:
        """Be the one who may write there; returns what the ones before have left. Without a guard two may, unless one
        that has it comes."""
        self._epoch = self.notes.take_over() if is_guarded else self.notes.epoch()
        return self.notes.known()

    def begin(self, on_taken_over: Callable[[TakenOver], object]) -> None:
        """The repair is done; from now on nobody waits for an answer. On the running loop. `on_taken_over` is called
        when another broker is the one who may write."""
        self._blocking.close()
        self._link.start(self._epoch, on_taken_over)

    def abandon(self) -> None:
        """Let go of Redis when the start has failed: no link has been started yet."""
        self._blocking.close()

    async def close(self) -> None:
        """Write what waits, for a bounded time, and close. Called after the last tick."""
        self.before_close()
        if not await self._link.close(drain_s=CLOSE_S) and (waiting := self.writer.waiting_ticks):
            LOG.warning(
                "the store %s does not answer: %d ticks are repaired from the log at the next start",
                self.place,
                waiting,
            )

    @property
    def trouble(self) -> str:
        """Why something is not kept now, or not all of it; "" while all is well. Without credentials."""
        return self.writer.failing or self.writer.estranged

    def statistics(self) -> SessionStoreStatistics:
        link, writer = self._link.statistics(), self.writer.statistics()
        return SessionStoreStatistics(
            failing=self.trouble,
            waiting_ticks=self.writer.waiting_ticks,
            waiting_bytes=link.waiting_bytes,
            operations=link.commands,
            round_trips=link.round_trips,
            retries=link.retries,
            refused=link.refused,
            fenced=writer.fenced,
            unreadable=self.queue.unreadable,
            connections=link.connections,
            resent=link.resent,
            settling_let_go=link.settling_let_go,
            former_ended=self.notes.former_ended,
        )


NAMED_AT_ONCE = 50
NAMED_MAX = 1_000
"""Client ids of ended sessions in the log."""
RECORDS_AT_ONCE = 500
"""Of a queue that are asked for at a time."""


class Memory(Struct, frozen=True):
    """All that a broker has of what is stored."""

    broker: Broker
    queues: MqttQueues
    readers: FedReaders
    shared: SharedReaders
    ttl_s: int
    """How long a message is kept for a device at most."""


class EmptiedRedis:
    """See the module. `identity` is that of the log, `cluster` the one that it belongs to."""

    def __init__(
        self, redis: RedisState, ticks: LogFirstStore, memory: Memory, identity: str, cluster: str
    ) -> None:
        self._redis = redis
        self._ticks = ticks
        self._memory = memory
        self._state = memory.broker.state
        self._identity = identity
        self._cluster = cluster
        self._lost: list[IsLost] = []
        """Servers of which what they had is not written anew yet."""
        redis.writer.watch(self._emptied)

    def _emptied(self, is_lost: IsLost) -> None:
        LOG.error(
            "the session store %s was emptied (FLUSHALL, or a server that came back without its data): what memory has "
            "is written anew",
            self._redis.place,
        )
        self._state.tick.wake()
        # Those who come for one now are to hear what has become of it. For the others it is known when nothing is on
        # its way to them.
        self._end_sessions(session for session in self._sessions(is_lost) if session.claimant is not None)
        self._lost.append(is_lost)
        if len(self._lost) == 1:
            self._ticks.when_quiet(self._write_anew)

    def _sessions(self, is_lost: IsLost) -> Iterator[Session]:
        """Those that are loaded, kept and lost."""
        for session in self._state.sessions.loaded:
            if session.persistent and is_lost(client_keys(session.client_id, self._redis.prefix).session):
                yield session

    def _in_ticks(self) -> dict[int, dict[int, QueueRow]]:
        """Rows that the store is still to be told of, by generation and place."""
        found: dict[int, dict[int, QueueRow]] = {}
        for tick in self._state.tick.unstored():
            for row in tick.session.queue_rows:
                found.setdefault(row.generation, {})[row.seq] = row
        return found

    def _end_sessions(self, sessions: Iterator[Session]) -> None:
        """Those of which more was stored than is in memory. What an application is owed is in its log."""
        in_ticks, refused = self._in_ticks(), self._redis.writer.refused_rows
        ended = [
            one
            for one in sessions
            if not one.is_application
            and not is_whole(one, in_ticks.get(one.generation, {}), refused.get(one.generation, {}))
        ]
        for session in ended:
            self._memory.broker.connecting.remove(session, _nothing)
        self._state.counters.sessions_lost += len(ended)
        if not ended:
            return
        LOG.error(
            "%d sessions had messages in Redis alone: they are ended, their clients find none", len(ended)
        )
        for first in range(0, min(len(ended), NAMED_MAX), NAMED_AT_ONCE):
            some = ended[first : first + NAMED_AT_ONCE]
            LOG.warning(
                "ended with their messages: %s", ", ".join(repr(session.client_id) for session in some)
            )
        if len(ended) > NAMED_MAX:
            LOG.warning("and %d more", len(ended) - NAMED_MAX)

    def _write_anew(self) -> None:
        """Nothing is on its way: what has happened is in memory, and what happens from now on is written behind it."""
        lost, self._lost = self._lost, []

        def is_lost(key: str) -> bool:
            return any(each(key) for each in lost)

        self._state.tick.wake()
        self._end_sessions(self._sessions(is_lost))
        memory, state, prefix = self._memory, self._state, self._redis.prefix
        self._write_absent(is_lost)
        sessions, in_ticks = list(self._sessions(is_lost)), self._in_ticks()
        for session in sessions:
            self._write_session(session, in_ticks.get(session.generation, {}))
        memory.broker.wills.store_anew(lambda client_id: is_lost(client_keys(client_id, prefix).session))
        if is_lost(prefix + REPLAYS_KEY):
            state.tick.writes.replays = state.replays | state.tick.writes.replays
        memory.shared.store_anew(partial(_is_group_lost, is_lost, prefix), sessions)
        queues = memory.queues.core.store_anew(lambda name: is_lost(queue_keys(name, prefix).queue))
        self._redis.writer.retain(
            row for row in state.retained.rows() if is_lost(retained_key(row.topic, prefix))
        )
        state.tick.batch.when_stored(EVERYBODY, partial(self._written, queues))

    def _write_absent(self, is_lost: IsLost) -> None:
        writes = self._state.tick.session_writes
        for absent in self._state.sessions.absent:
            if is_lost(client_keys(absent.client_id, self._redis.prefix).session):
                writes.sessions.append(row_of(absent))
                writes.subscriptions += [
                    (absent.generation, one.name, one.row) for one in absent.subscriptions
                ]

    def _write_session(self, session: Session, known: Rows) -> None:
        state, memory = self._state, self._memory
        writes, generation = state.tick.session_writes, session.generation
        writes.sessions.append(session.row())
        writes.subscriptions += [(generation, one.name, one.row) for one in session.subscriptions.values()]
        writes.subscriptions += [(generation, row.topic_filter, row) for row in memory.queues.rows(session)]
        # Which records they were is not known any more: those that a start finds in the log are these.
        writes.receiving += [(generation, packet_id, -1) for packet_id in session.receiving or ()]
        refused = self._redis.writer.refused_rows.pop(generation, {})
        if not is_whole(session, known, refused):  # an application's: besides its log nothing is left of it
            session.queued, session.queued_bytes, session.backlog = 0, 0, False
        store_anew(session, known, refused, state.tick.now_ms + memory.ttl_s * 1000, writes)
        if session.is_application:
            memory.readers.store_anew(session)

    def _written(self, queues: list[Queue]) -> None:
        """A start may believe what is there from now on, once more."""
        if not self._lost:  # else a server was emptied meanwhile, and a start is to refuse it still
            generations = self._state.generations_reserved
            self._redis.writer.put_anew(self._identity, self._ticks.log_end, generations, self._cluster)
            LOG.warning("the session store %s has again what memory had", self._redis.place)
        for queue in queues:
            messages = [(queue.entries[sequence].offset, sequence) for sequence in queue.entries]
            messages += [(row.offset, row.ticket) for row in queue.delayed.rows.values()]
            self._put_back(queue.generation, messages)

    def _put_back(self, generation: int, messages: list[tuple[int, int]]) -> None:
        """To ask for records has those that are lost put back from the log, where that has them."""
        some, rest = messages[:RECORDS_AT_ONCE], messages[RECORDS_AT_ONCE:]
        if not some:
            return
        left = {offset for offset, _ in some}

        def found(answer: object) -> None:
            left.difference_update(answer if isinstance(answer, dict) else tuple(left))
            if not left:
                self._put_back(generation, rest)

        self._redis.queues.bodies(generation, some, found)


def _is_group_lost(is_lost: IsLost, prefix: str, row: SharedGroupRow) -> bool:
    return is_lost(group_keys(row.share, row.topic_filter, prefix).group)


def _nothing() -> None:
    return
