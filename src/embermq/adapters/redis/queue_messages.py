"""The messages of one durable queue in Redis, read beside the broker that owns it: for a look, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.queue_store import ANSWER_BYTES, BODIES, SCANNED
from embermq.formats.redis_layout import LayoutError, name_in
from embermq.formats.redis_queues import (
    QUEUE_PREFIX,
    EndedQueue,
    decode_delayed,
    decode_entry,
    decode_group,
    decode_mark,
    decode_queue,
    queue_keys,
    read_mark_field,
)
from embermq.model.queue_rows import DelayedRow, EntryRow, MessageState, QueueSettingsRow
from embermq.ports.errors import StoreError


def queue_names(server: BlockingRedis) -> list[str]:
    """Of every queue that is there, by name. Raises StoreError."""
    found: set[str] = set()
    for master in server.masters:
        for keys in server.keys(master, QUEUE_PREFIX + "*}"):
            found.update(name_in(key.decode(errors="replace")) for key in keys)
    return sorted(found)


class RedisQueueMessages:
    """Reads the queue `name`. What comes or goes meanwhile may be seen or not. Raises StoreError."""

    def __init__(self, server: BlockingRedis, name: str) -> None:
        self._redis = server
        self._keys = queue_keys(name, server.prefix)

    def queue(self) -> QueueSettingsRow | None:
        """None for one that is not there."""
        value = self._redis.command(self._keys.queue, "GET", self._keys.queue)
        if value is None:
            return None
        with self._reading(self._keys.queue):
            found = decode_queue(self._keys.queue, value if isinstance(value, bytes) else b"")
        return None if isinstance(found, EndedQueue) else found

    def entries(self, generation: int) -> Iterator[list[EntryRow]]:
        """In no order; one may come twice."""
        key = self._keys.entries
        with self._reading(key):
            for page in self._pages(key):
                yield [decode_entry(key, generation, int(field), value) for field, value in page.items()]

    def with_body(self) -> Iterator[tuple[int, int, bool]]:
        """Sequence, offset and whether its message is there, of each entry and each delayed message."""
        entries = {row.sequence: row.offset for page in self.entries(0) for row in page}
        delayed = {row.ticket: row.offset for row in self.delayed(0)}
        for key, there in ((self._keys.entries, entries), (self._keys.delayed, delayed)):
            found = {sequence for sequence, _ in self.bodies(list(there))}
            # What was settled since then has gone with its message.
            missing = [sequence for sequence in there if sequence not in found]
            left = self._redis.command(key, "HMGET", key, *missing) if missing else []
            assert isinstance(left, list)
            gone = {one for one, value in zip(missing, left, strict=True) if value is None}
            yield from ((one, offset, one in found) for one, offset in there.items() if one not in gone)

    def delayed(self, generation: int) -> list[DelayedRow]:
        """Messages that are not visible yet, in no order."""
        key = self._keys.delayed
        with self._reading(key):
            return [decode_delayed(key, generation, int(field), value) for field, value in self._hash(key)]

    def states(self, sequence: int) -> list[tuple[str, MessageState]]:
        """What groups know of a message that they do not simply owe, by group."""
        with self._reading(self._keys.groups):
            groups = {
                decode_group(self._keys.groups, 0, field.decode(errors="replace"), value)[0]: field
                for field, value in self._hash(self._keys.groups)
            }
        found: list[tuple[str, MessageState]] = []
        with self._reading(self._keys.marks):
            for field, value in self._hash(self._keys.marks):
                of, number = read_mark_field(self._keys.marks, field)
                if of == sequence and number in groups:
                    mark = decode_mark(self._keys.marks, field, value)
                    found.append((groups[number].decode(errors="replace"), mark.state))
        return sorted(found)

    def _hash(self, key: str) -> Iterator[tuple[bytes, bytes]]:
        """Each field once: HSCAN names some twice when the hash grows or shrinks meanwhile."""
        seen: set[bytes] = set()
        for page in self._pages(key):
            fresh = page.keys() - seen
            seen |= fresh
            yield from ((field, page[field]) for field in fresh)

    def _pages(self, key: str) -> Iterator[dict[bytes, bytes]]:
        cursor: object = 0
        while True:
            cursor, page = self._redis.at(key).hscan(key, cursor, count=SCANNED)
            yield page
            if not cursor:
                return

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        """Raises StoreError, of which key, for what the driver and the layout raise."""
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise self._redis.failure(error) from error
        except LayoutError as error:
            raise StoreError(str(error)) from error
        except ValueError as error:
            raise StoreError(f"key {key!r}: {error}") from error

    def bodies(self, sequences: list[int]) -> Iterator[tuple[int, bytes]]:
        """The records of those that are there."""
        while sequences:
            found = self._redis.run(
                self._keys.bodies, BODIES, [self._keys.bodies], [ANSWER_BYTES, *sequences]
            )
            assert isinstance(found, list) and found
            for sequence, body in zip(sequences, found, strict=False):
                if isinstance(body, bytes):
                    yield sequence, body
            sequences = sequences[len(found) :]
