"""Reading session data from Redis at start: SCAN for what there is, then one script a client, pipelined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import redis
from msgspec.structs import replace

from embermq.adapters.redis.blocking import BlockingRedis, unreadable
from embermq.adapters.redis.floor_marks import ReadMarks
from embermq.adapters.redis.owners import Owners
from embermq.adapters.redis.script import read_script
from embermq.formats.redis_layout import (
    REPLAYS_KEY,
    RETAINED_PREFIX,
    SESSION_PREFIX,
    UPTO,
    WILL_PREFIX,
    ClientKeys,
    LayoutError,
    client_keys,
    decode_retained,
    decode_session,
    decode_subscription,
    decode_will,
    name_in,
    offset_in,
    retained_key,
    seq_of,
)
from embermq.model.session import RetainedRow, SubscriptionRow, WillRow
from embermq.model.session_writes import QUEUE_SEQ_STEP
from embermq.ports.sessions import SessionStore, StoredSession, StoredState

LOAD = read_script("load")
TYPES = {
    "session": "string",
    "subscriptions": "hash",
    "will": "string",
    "receiving": "hash",
    "sent": "hash",
    "released": "set",
    "messages": "zset",
    "last_packet_id": "string",
    "positions": "zset",
    "reader": "hash",
    "parked": "hash",
    "shared": "hash",
}
"""What each key of a client is."""


class RedisSessionStore(SessionStore):
    """See the port. Fills `owners` with what it finds."""

    def __init__(self, redis: BlockingRedis, owners: Owners) -> None:
        self._redis = redis
        self._owners = owners
        self._log_end = 0

    def load(self) -> StoredState:
        """Sessions and wills; of the log only the newest floor that a server knows, and as `log_end` how far what is
        here knows it. Raises StoreError that names what is broken."""
        try:
            with self._redis.steady():
                marks = ReadMarks(self._redis)
                sessions = [
                    replace(session, complete_to=marks.complete_to(master))
                    for master in self._redis.masters
                    for session in self._sessions(master)
                ]
                wills = [will for master in self._redis.masters for will in self._wills(master)]
                replays = self._replays()
                replays_complete_to = marks.complete_to(self._redis.at(self._redis.prefix + REPLAYS_KEY))
        except LayoutError as error:
            raise unreadable(error) from error
        sessions.sort(key=lambda session: session.row.generation, reverse=True)
        wills.sort(key=lambda will: will[0])
        return StoredState(
            sessions,
            wills,
            marks.newest,
            self._log_end,
            replays=replays,
            replays_complete_to=replays_complete_to,
        )

    def load_retained(self) -> list[RetainedRow]:
        rows: list[RetainedRow] = []
        try:
            with self._redis.steady():
                for master in self._redis.masters:
                    for names in self._redis.names(master, RETAINED_PREFIX):
                        keys = [retained_key(name, self._redis.prefix) for name in names]
                        values = self._redis.many(master, [("LRANGE", key, 0, 1) for key in keys])
                        for key, value in zip(keys, values, strict=True):
                            rows += _retained(key, value)
        except LayoutError as error:
            raise unreadable(error) from error
        return rows

    def _replays(self) -> dict[str, int]:
        key = self._redis.prefix + REPLAYS_KEY
        (found,) = self._redis.many(self._redis.at(key), [("HGETALL", key)])
        try:
            if isinstance(found, Exception):
                raise ValueError(found)
            return {replay.decode(): int(number) for replay, number in found.items()}
        except ValueError as error:
            raise LayoutError(f"key {key!r}: {error}") from error

    def _sessions(self, master: Any) -> Iterator[StoredSession]:
        self._redis.many(master, [("SCRIPT", "LOAD", LOAD.source)])
        for names in self._redis.names(master, SESSION_PREFIX):
            of_clients = [client_keys(name, self._redis.prefix) for name in names]
            answers = self._redis.many(master, [_load_words(keys) for keys in of_clients])
            for name, keys, answer in zip(names, of_clients, answers, strict=True):
                if isinstance(answer, Exception):
                    raise self._foreign(master, keys, answer)
                if answer[0] is not None:  # else it ended just now, by another broker's hand
                    yield self._session(name, keys, answer)

    def _session(self, client_id: str, keys: ClientKeys, answer: list[Any]) -> StoredSession:
        value, subscriptions, receiving, complete_to, queued, queued_bytes, last, newest = answer
        row = decode_session(keys.session, value)
        if row.client_id != client_id:
            raise LayoutError(f"key {keys.session!r}: is of client {row.client_id!r}")
        owner = self._owners.found(row)
        if newest:
            position = int(float(newest[1]))  # "1e+8" for a round one
            self._owners.note_positions(owner, 0, position, trimmed=False)
            offset, _ = offset_in(keys.positions, newest[0].decode(errors="replace"))
            self._log_end = max(self._log_end, position + (offset >= 0))
        ids, upto = _receiving(keys.receiving, receiving, complete_to)
        found = tuple(_subscriptions(keys.subscriptions, subscriptions))
        self._log_end = max(self._log_end, upto, *(entry.since_offset for entry in found))
        return StoredSession(
            row,
            found,
            ids,
            seq_of(last) + QUEUE_SEQ_STEP,
            queued,
            queued_bytes,
            upto,
        )

    def _wills(self, master: Any) -> Iterator[tuple[int, WillRow]]:
        for names in self._redis.names(master, WILL_PREFIX):
            keys = [client_keys(name, self._redis.prefix).will for name in names]
            values = self._redis.many(master, [("GET", key) for key in keys])
            for name, key, value in zip(names, keys, values, strict=True):
                if isinstance(value, Exception):
                    raise LayoutError(f"key {key!r}: {value}") from value
                if value is not None:
                    generation, will = decode_will(key, value)
                    self._owners.wills[generation] = name
                    yield generation, will

    def _foreign(self, master: Any, keys: ClientKeys, error: Exception) -> Exception:
        """Which of a client's keys is of another type."""
        if not isinstance(error, redis.ResponseError):
            return self._redis.failure(error)
        names = [(getattr(keys, field), kind) for field, kind in TYPES.items()]
        for (key, kind), found in zip(
            names, self._redis.many(master, [("TYPE", key) for key, _ in names]), strict=True
        ):
            told = found.decode() if isinstance(found, bytes) else str(found)
            if told not in (kind, "none"):
                return LayoutError(f"key {key!r}: is a {told}, not a {kind}")
        return LayoutError(f"key {keys.session!r}: {error}")


def _load_words(keys: ClientKeys) -> tuple[bytes | str | int, ...]:
    return (
        "EVALSHA",
        LOAD.sha,
        5,
        keys.session,
        keys.subscriptions,
        keys.receiving,
        keys.messages,
        keys.positions,
    )


def _subscriptions(key: str, found: list[bytes]) -> Iterator[SubscriptionRow]:
    for at in range(0, len(found), 2):
        try:
            topic_filter = found[at].decode()
        except UnicodeDecodeError as error:
            raise LayoutError(f"key {key!r}: field {found[at]!r}: {error}") from error
        yield decode_subscription(key, topic_filter, found[at + 1])


def _receiving(key: str, found: list[bytes], complete_to: bytes | None) -> tuple[tuple[int, ...], int]:
    """Packet ids, and the end of the log up to which they are complete."""
    ids: list[int] = []
    upto = 0
    for field in found:
        try:
            if field == UPTO.encode():
                upto = int(complete_to or 0)
                continue
            packet_id = int(field)
            if not 0 < packet_id <= 65_535:
                raise ValueError(f"{packet_id} is no packet id")
            ids.append(packet_id)
        except ValueError as error:
            raise LayoutError(f"key {key!r}: field {field!r}: {error}") from error
    return tuple(ids), upto


def _retained(key: str, value: Any) -> Iterator[RetainedRow]:
    if isinstance(value, Exception):
        raise LayoutError(f"key {key!r}: {value}") from value
    if len(value) > 1:
        raise LayoutError(f"key {key!r}: holds more than one message")
    for text in value:
        row = decode_retained(key, text)
        if row.topic != name_in(key):
            raise LayoutError(f"key {key!r}: is of topic {row.topic!r}")
        yield row
