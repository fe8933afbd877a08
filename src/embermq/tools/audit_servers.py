"""What an audit reads of Redis: sessions with their places, marks and exceptions, what is stored for them, queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from embermq.adapters.redis.applications import noted_unacknowledged, stored_reader
from embermq.adapters.redis.blocking import BlockingRedis, unreadable
from embermq.adapters.redis.device_queue import RedisDeviceQueueHistory
from embermq.adapters.redis.owners import Owner, Owners
from embermq.adapters.redis.queue_messages import RedisQueueMessages, queue_names
from embermq.adapters.redis.sessions import RedisSessionStore
from embermq.app.config import Settings
from embermq.app.store_addresses import redis_address
from embermq.formats.redis_layout import LayoutError
from embermq.model.application_positions import UNCOUNTED
from embermq.model.client_type import ClientType
from embermq.model.position import position_of
from embermq.model.session import SessionRow
from embermq.model.session_writes import QueueState
from embermq.pipeline.sources.settlements import (
    OPEN,
    QUEUED,
    QUEUES,
    SESSIONS,
    STORED,
    UNACKNOWLEDGED,
    write_rows,
)
from embermq.ports.reader_positions import StoredReader

Row = tuple[object, ...]


def copy_settlements(settings: Settings, into: Path) -> int:
    """Write every table into the folder; returns the dispatcher's floor. Raises StoreError."""
    with BlockingRedis(redis_address(settings.stores.session), settings.redis) as redis:
        try:
            return _copy(redis, into)
        except LayoutError as error:
            raise unreadable(error) from error


def _copy(redis: BlockingRedis, into: Path) -> int:
    owners = Owners(redis.prefix)
    state = RedisSessionStore(redis, owners).load()
    copy = _Copy(redis, owners)
    rows = [entry.row for entry in state.sessions]
    sessions = [copy.session(row) for row in rows]
    write_rows(into, SESSIONS, sessions)
    write_rows(into, OPEN, copy.open)
    write_rows(into, UNACKNOWLEDGED, copy.unacknowledged)
    write_rows(into, STORED, copy.stored(rows))
    names = queue_names(redis)
    write_rows(into, QUEUED, copy.queued(names))
    write_rows(into, QUEUES, copy.queues)
    return state.dispatcher_floor


class _Copy:
    """Tables that come with others are collected until they are written."""

    def __init__(self, redis: BlockingRedis, owners: Owners) -> None:
        self._redis = redis
        self._owners = owners
        self.open: list[Row] = []
        self.unacknowledged: list[Row] = []
        self.queues: list[Row] = []

    def session(self, row: SessionRow) -> Row:
        """What is known of it; of one that has gone meanwhile that it has nothing."""
        owner = self._owners.get(row.generation)
        begin = (row.generation, row.client_id, int(row.client_type), row.created_ms)
        if owner is None or row.client_type is not ClientType.APPLICATION:
            return *begin, "", 0, [], UNCOUNTED, 0, 0, 0
        reader = self._reader(owner)
        noted = noted_unacknowledged(self._redis, owner)
        self.unacknowledged += [(row.generation, at, int(why)) for at, why in noted.why.items()]
        self.open += [(row.generation, mark.source, mark.state) for mark in reader.marks if mark.source >= 0]
        if reader.position is None:
            return *begin, "", 0, [], UNCOUNTED, noted.dropped, noted.below, 0
        place, bound = reader.position, {mark.source for mark in reader.marks}
        for source, early in place.early.items():
            if source not in bound:
                state = QueueState.RELEASED if early.is_released else QueueState.SENT
                self.open.append((row.generation, source, int(state)))
        floors = place.positions.floors
        spans = [(position_of(number, 0), position_of(number, floor)) for number, floor in floors]
        # Of a mark that does not say whose it is nobody can tell which message it is about.
        is_counted = all(mark.source >= 0 for mark in reader.marks)
        return (
            *begin,
            place.log_id,
            place.positions.committed_offset,
            [{"start": start, "end": end} for start, end in (*spans, *place.served)],
            place.settled if is_counted else UNCOUNTED,
            noted.dropped,
            noted.below,
            0,
        )

    def _reader(self, owner: Owner) -> StoredReader:
        key = owner.keys.reader
        (found,) = self._redis.many(self._redis.at(key), [("HGETALL", key)])
        pairs = [word for pair in found.items() for word in pair] if isinstance(found, dict) else []
        return stored_reader(key, owner.generation, pairs)

    def stored(self, rows: list[SessionRow]) -> Iterator[Row]:
        """Of all sessions: applications have what came by shared subscriptions there."""
        history = RedisDeviceQueueHistory(self._redis, self._owners)
        for session in rows:
            for seq, row in history.stored(session.generation):
                if row is None:
                    yield session.generation, None, seq, int(QueueState.QUEUED), False
                else:
                    yield session.generation, row.offset, seq, row.state, True

    def queued(self, names: list[str]) -> Iterator[Row]:
        """Entries of all queues; `queues` is complete afterwards."""
        for name in names:
            messages = RedisQueueMessages(self._redis, name)
            if messages.queue() is None:
                continue
            delayed = {row.ticket for row in messages.delayed(0)}
            entries = waiting = 0
            for sequence, offset, has_body in messages.with_body():
                is_delayed = sequence in delayed
                entries, waiting = entries + (not is_delayed), waiting + is_delayed
                yield name, sequence, offset, int(has_body)
            self.queues.append((name, entries, waiting))
