"""All that a broker on servers keeps besides its log, on a Redis: read at start, written while the broker runs.

Imported only when needed.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable

from embermq.adapters.redis import applications, device_queue, state_writer
from embermq.adapters.redis.applications import (
    RedisParkedMessages,
    RedisReaderPositions,
    RedisSharedGroups,
)
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.device_queue import RedisDeviceQueue, RedisDeviceQueueHistory
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.log_notes import RedisLogNotes
from embermq.adapters.redis.owners import Owners
from embermq.adapters.redis.queue_owners import QueueOwners
from embermq.adapters.redis.queue_store import RedisQueueStore
from embermq.adapters.redis.sessions import RedisSessionStore
from embermq.adapters.redis.settings import RedisSettings
from embermq.adapters.redis.state_writer import Post, RedisStateWriter
from embermq.app.errors import StartError
from embermq.app.store_addresses import redis_address
from embermq.ports.errors import TakenOver
from embermq.ports.known_log import KnownLog
from embermq.ports.state_writer import SessionStoreStatistics

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
