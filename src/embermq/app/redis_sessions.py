"""Session data on a Redis: whose it is, read at start, written while the broker runs. Imported only when needed."""

from __future__ import annotations

import logging
import platform

from embermq.adapters.redis import device_queue, state_writer
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.device_queue import RedisDeviceQueue, RedisDeviceQueueHistory
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.owners import Owners
from embermq.adapters.redis.sessions import RedisSessionStore
from embermq.adapters.redis.settings import RedisSettings
from embermq.adapters.redis.state_writer import Post, RedisStateWriter
from embermq.app.errors import StartError
from embermq.app.settings import ELSEWHERE
from embermq.app.store_addresses import redis_address
from embermq.formats.redis_layout import (
    SCHEMA_KEY,
    SCHEMA_VERSION,
    SESSION_PREFIX,
    LayoutError,
    decode_schema,
    encode_schema,
)
from embermq.ports.errors import StoreError
from embermq.ports.state_writer import SessionStoreStatistics

LOG = logging.getLogger("embermq")
CLOSE_S = 5.0
"""How long the end of the broker waits for what Redis has not answered yet; the log has it all the same."""


class RedisSessions:
    """One session store. `place` is its URL without credentials. Before the broker serves: `load`, the repair with
    `history`, `begin`; then the writer and the queue; at the end `close`. Raises StartError for settings that cannot
    be, StoreError for a Redis that does not answer or holds what it should not."""

    def __init__(self, url: str, settings: RedisSettings, post: Post) -> None:
        address = redis_address(url)
        self.place = str(address)
        self._blocking = BlockingRedis(address, settings)
        owners = Owners()
        try:
            self._link = RedisLink(address, settings, (*state_writer.SCRIPTS, *device_queue.SCRIPTS))
        except ValueError as error:
            raise StartError(str(error)) from error
        self.sessions = RedisSessionStore(self._blocking, owners)
        self.history = RedisDeviceQueueHistory(self._blocking, owners)
        self.writer = RedisStateWriter(self._link, owners, post, platform.node())
        self.queue = RedisDeviceQueue(self._link, owners)

    def claim(self, log_id: int, *, before: str, may_be_empty: bool) -> None:
        """Make sure that what is there belongs to this log; what is empty belongs to it from now on. `before` is where
        the run before kept sessions, "" for broker.db: instead of another place it `may_be_empty` or not. Raises
        StoreError."""
        redis, ours = self._blocking, str(log_id)
        value = redis.command(SCHEMA_KEY, "GET", SCHEMA_KEY)
        if value is None:
            for master in redis.masters:
                for keys in redis.keys(master, SESSION_PREFIX + "*"):
                    raise StoreError(
                        f"stores.session: {self.place}: has key {keys[0].decode(errors='replace')!r} but no "
                        f"{SCHEMA_KEY}: it holds data that EmberMQ cannot place; empty it, or name another one"
                    )
            if before == self.place:
                LOG.warning("%s has lost the sessions that it kept: it is empty", self.place)
            elif before and not may_be_empty:
                raise StoreError(f"stores.session: {self.place}: is empty; {ELSEWHERE.format(before)}")
            redis.command(SCHEMA_KEY, "SET", SCHEMA_KEY, encode_schema(ours), "NX")
            value = redis.command(SCHEMA_KEY, "GET", SCHEMA_KEY)
        _check_schema(value, self.place, ours)

    def begin(self) -> None:
        """The repair is done; from now on nobody waits for an answer. On the running loop."""
        self._blocking.close()
        self._link.start()

    def abandon(self) -> None:
        """The start failed."""
        self._blocking.close()

    async def close(self) -> None:
        """After the last tick."""
        waiting = self.writer.waiting_ticks
        if not await self._link.close(drain_s=CLOSE_S) and waiting:
            LOG.warning(
                "session store %s does not answer: %d ticks are repaired from the log at the next start",
                self.place,
                waiting,
            )

    @property
    def trouble(self) -> str:
        """Why sessions are not kept now, or not all of them; "" while all is well. Without credentials."""
        return self.writer.failing or self.writer.estranged

    def statistics(self) -> SessionStoreStatistics:
        """A frozen snapshot."""
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
        )


def belonging(redis: BlockingRedis, place: str, log_id: str) -> bool:
    """Whether what is there belongs to this log; False for a Redis that has no data of any. Raises StoreError."""
    value = redis.command(SCHEMA_KEY, "GET", SCHEMA_KEY)
    if value is None:
        return False
    _check_schema(value, place, log_id)
    return True


def _check_schema(value: object, place: str, log_id: str) -> None:
    """Raises StoreError for another layout, or another log."""
    try:
        schema = decode_schema(value if isinstance(value, bytes) else b"")
    except LayoutError as error:
        raise StoreError(f"stores.session: {place}: {error}") from error
    if schema.version != SCHEMA_VERSION:
        raise StoreError(
            f"stores.session: {place}: its layout has version {schema.version}, this version of EmberMQ knows "
            f"{SCHEMA_VERSION}: start it with the EmberMQ that wrote it"
        )
    if schema.log != log_id:
        raise StoreError(
            f"stores.session: {place}: belongs to the message log {schema.log}, not to the one in this data "
            f"directory, {log_id}: name the data directory that it was used with, or another Redis, or an empty one"
        )
