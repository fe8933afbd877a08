"""Durable queues in Redis: read at start, and bodies of messages while the broker runs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import redis

from embermq.adapters.redis.answers import Answer, Refused
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.floor_marks import ReadMarks
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.queue_owners import QueueOwner, QueueOwners
from embermq.adapters.redis.script import read_script
from embermq.adapters.redis.wire import ignore
from embermq.formats.log_record import encode_record
from embermq.formats.redis_layout import LayoutError, name_in
from embermq.formats.redis_queues import (
    GENERATION_KEY,
    MOVED_PREFIX,
    QUEUE_PREFIX,
    EndedQueue,
    decode_delayed,
    decode_entry,
    decode_group,
    decode_mark,
    decode_moved,
    decode_queue,
    queue_keys,
    read_mark_field,
    read_progress,
)
from embermq.model.queue_rows import (
    DelayedRow,
    EntryRow,
    GroupMark,
    GroupRow,
    MarkKey,
    Move,
    QueueSettingsRow,
    StoredQueue,
)
from embermq.ports.errors import StoreError
from embermq.ports.queue_store import BodiesFound, QueueStore
from embermq.ports.source_records import FoundRecords, SourceRecords

BODIES = read_script("queue_bodies", writes=False)
PUT_BACK = read_script("queue_put_back")
SCRIPTS = (BODIES, PUT_BACK)

ANSWER_BYTES = 1024 * 1024
"""Records of so much come in one answer."""
SCANNED = 1_000
FETCHED = 1_000
"""Entries that are read at a time."""

Post = Callable[[Callable[[], None]], object]


class RedisQueueStore(QueueStore):
    """See the port. Fills `owners` with what it finds. `redis` is for the start, `link` for bodies."""

    def __init__(self, server: BlockingRedis, link: RedisLink, owners: QueueOwners, post: Post) -> None:
        self._redis = server
        self._link = link
        self._owners = owners
        self._post = post
        self.log: SourceRecords | None = None
        """Where records are read that Redis has lost."""
        self._marks: ReadMarks | None = None
        self._upto: dict[str, int] = {}
        """What each queue says itself."""
        self._complete_to: dict[str, int] = {}

    # Start

    def load(self) -> list[StoredQueue]:
        try:
            with self._redis.steady():
                self._marks = ReadMarks(self._redis)
                found = [(master, row) for master in self._redis.masters for row in self._rows(master)]
                rows = sorted(found, key=lambda entry: entry[1].generation)
                reading = [_Reading(self._redis, master, self._owners.take(row), row) for master, row in rows]
                by_generation = {one.row.generation: one for one in reading}
                for one in reading:
                    one.read()
                    self._upto[one.row.name] = one.upto
                for one in reading:
                    one.look_at_moves(by_generation)
        except LayoutError as error:
            raise _unreadable(error) from error
        return [one.stored() for one in reading]

    def next_generation(self) -> int:
        """The key, or what there is: the one is stored beside the other."""
        key = self._redis.prefix + GENERATION_KEY
        value = self._redis.command(key, "GET", key)
        if isinstance(value, bytes) and not value.isdigit():
            raise _unreadable(LayoutError(f"key {key!r}: {value!r} is no number"))
        try:
            generations = [
                found.generation for master in self._redis.masters for _, found in self._found(master)
            ]
        except LayoutError as error:
            raise _unreadable(error) from error
        return max([int(value) if isinstance(value, bytes) else 1, *(one + 1 for one in generations)])

    def log_start(self) -> int:
        """Queues may need what the log has from here on: of each what `complete_to` says. After `load`."""
        assert self._marks is not None
        return self._marks.oldest

    def complete_to(self, name: str) -> int:
        """Of what the log has for this queue, everything below is in it, or was; it may be deleted, or never have
        been. After `load`."""
        assert self._marks is not None
        found = self._complete_to.get(name)
        if found is None:
            marked = self._marks.complete_to(self._redis.at(queue_keys(name, self._redis.prefix).queue))
            found = self._complete_to[name] = max(marked, self._upto.get(name, 0))
        return found

    def _rows(self, master: Any) -> Iterator[QueueSettingsRow]:
        for name, found in self._found(master):
            if isinstance(found, EndedQueue):
                self._upto[name] = found.ended_at
            else:
                yield found

    def _found(self, master: Any) -> Iterator[tuple[str, QueueSettingsRow | EndedQueue]]:
        """What stands there of queues; what is left of deleted ones may go when the log is not read for them."""
        seen: set[str] = set()
        for keys in self._redis.keys(master, QUEUE_PREFIX + "*}"):
            values = self._redis.many(master, [("GET", key) for key in keys])
            for key, value in zip(keys, values, strict=True):
                text = key.decode(errors="replace")
                if isinstance(value, Exception):
                    raise LayoutError(f"key {text!r}: {value}") from value
                name = name_in(text)
                if value is None or name in seen:
                    continue
                seen.add(name)
                found = decode_queue(text, value)
                if isinstance(found, EndedQueue):
                    self._owners.ended[text] = (value, found.ended_at)
                elif found.name != name:
                    raise LayoutError(f"key {text!r}: is of queue {found.name!r}")
                yield name, found

    # Bodies

    def bodies(self, queue: int, messages: Sequence[tuple[int, int]], then: BodiesFound) -> None:
        owner = self._owners.get(queue)
        if owner is None:
            self._post(partial(then, dict.fromkeys((offset for offset, _ in messages), None)))
        else:
            owner.lane.do(partial(self._ask, owner, tuple(messages), then))

    def _ask(self, owner: QueueOwner, messages: tuple[tuple[int, int], ...], then: BodiesFound) -> None:
        numbers = [number for _, number in messages]
        keys = owner.keys
        self._link.ask(
            keys.queue,
            BODIES,
            (keys.bodies,),
            (ANSWER_BYTES, *numbers),
            partial(self._answered, owner, messages, then),
        )

    def _answered(
        self, owner: QueueOwner, messages: tuple[tuple[int, int], ...], then: BodiesFound, answer: Answer
    ) -> None:
        if isinstance(answer, Refused) or not isinstance(answer, list):
            why = answer.text if isinstance(answer, Refused) else "no list"
            then(StoreError(f"the store of queues does not read records of {owner.name!r}: {why}"))
            return
        read, rest = messages[: len(answer)], messages[len(answer) :]
        found: dict[int, bytes | None] = {}
        for (offset, _), body in zip(read, answer, strict=False):
            if isinstance(body, bytes) or offset not in found:
                found[offset] = body if isinstance(body, bytes) else None
        # A message that two numbers have is there while one of them is.
        missing = {offset for offset, _ in rest if found.get(offset, b"") is None}
        rest = tuple(message for message in rest if message[0] not in found or message[0] in missing)
        if rest:
            self._ask(owner, rest, then)
        found = {offset: body for offset, body in found.items() if offset not in missing}
        lost = [message for message in read if found.get(message[0], b"") is None]
        if lost and self.log is not None:
            offsets = frozenset(offset for offset, _ in lost)
            self.log.fetch(offsets, partial(self._fetched, owner, lost, found, then))
        else:
            then(found)

    def _fetched(
        self,
        owner: QueueOwner,
        lost: Sequence[tuple[int, int]],
        found: dict[int, bytes | None],
        then: BodiesFound,
        answer: FoundRecords | StoreError,
    ) -> None:
        """The log may have what was lost: it is put back, so that it does not go with the log."""
        if isinstance(answer, StoreError):
            then(answer)
            return
        args: list[bytes | str | int] = [owner.fence]
        for offset, number in lost:
            if offset in answer:
                body = found[offset] = encode_record(answer[offset].message)
                args += (number, body)
        keys = owner.keys
        names = (keys.queue, keys.entries, keys.bodies, keys.delayed)
        self._link.ask(keys.queue, PUT_BACK, names, args, ignore)
        then(found)

    def confirm(self, queue: int, then: Callable[[], None]) -> None:
        owner = self._owners.get(queue)
        if owner is None or not self._link.epoch:
            then()
            return
        # Any question will do: on the connections of one before, none is answered; see `fence`.
        keys = owner.keys
        self._link.ask(keys.queue, BODIES, (keys.bodies,), (ANSWER_BYTES,), lambda _: then())

    def close(self) -> None:
        """The link is closed by who opened it, and answers nothing then."""


class _Reading:
    """One queue at start."""

    def __init__(self, server: BlockingRedis, master: Any, owner: QueueOwner, row: QueueSettingsRow) -> None:
        self._redis = server
        self._master = master
        self._owner = owner
        self.row = row
        self._groups: list[tuple[int, GroupRow]] = []
        self._delayed: list[DelayedRow] = []
        self._marks: dict[MarkKey, GroupMark] = {}
        self._dedup: dict[str, int] = {}
        self._progress: dict[bytes, bytes] = {}
        self._unfinished: list[Move] = []
        self.upto = 0
        self.moved = 0

    def read(self) -> None:
        """Read everything of the queue but its entries."""
        owner, keys, queue = self._owner, self._owner.keys, self.row.generation
        groups: dict[int, str] = {}
        for field, value in self._pairs("HSCAN", keys.groups):
            number, group = decode_group(keys.groups, queue, _text(keys.groups, field), value)
            groups[number] = group.group
            self._groups.append((number, group))
        self._groups.sort(key=lambda entry: entry[0])
        for field, value in self._pairs("HSCAN", keys.delayed):
            ticket = _number(keys.delayed, field)
            self._delayed.append(decode_delayed(keys.delayed, queue, ticket, value))
        self._delayed.sort(key=lambda row: row.ticket)
        newest = 0
        for field, value in self._pairs("HSCAN", keys.marks):
            sequence, number = read_mark_field(keys.marks, field)
            newest = max(newest, number)
            if number in groups:
                self._marks[queue, groups[number], sequence] = decode_mark(keys.marks, field, value)
            else:
                owner.is_swept = False
        for field, score in self._pairs("ZSCAN", keys.dedup):
            self._dedup[_text(keys.dedup, field)] = int(score)
        self._progress = dict(self._pairs("HSCAN", keys.progress))
        self.upto, self.moved = read_progress(keys.progress, self._progress)
        if not owner.is_stored:
            owner.is_stored = True
            owner.groups = {name: number for number, name in groups.items()}
            owner.next_group = max([newest, *groups]) + 1
            owner.moved = self.moved

    def look_at_moves(self, others: dict[int, _Reading]) -> None:
        """What came from queues that have it still."""
        for field, value in self._progress.items():
            if not field.startswith(MOVED_PREFIX):
                continue
            found = decode_moved(self._owner.keys.progress, self.row.generation, field, value)
            source = others.get(found.source)
            if source is None or found.number <= source.moved:
                self._owner.finished.append(field.decode())
                continue
            self._unfinished += found.moves
            source._owner.moved = max(source._owner.moved, found.number)
            source._owner.unfinished.append((self._owner, field.decode()))

    def stored(self) -> StoredQueue:
        """What was read as the port's value; its entries are read when they are gone through."""
        return StoredQueue(
            self.row,
            tuple(group for _, group in self._groups),
            self._entries(),
            tuple(self._delayed),
            self._marks,
            self._dedup,
            tuple(self._unfinished),
        )

    def _entries(self) -> Iterator[EntryRow]:
        """In their order; Redis has them in none, so first come the numbers alone."""
        key, queue = self._owner.keys.entries, self.row.generation
        numbers: array[int] = array("q")
        try:
            with self._redis.steady():
                for field, _ in self._pairs("HSCAN", key):
                    numbers.append(_number(key, field))
                ordered = array("q", sorted(numbers))
                for first in range(0, len(ordered), FETCHED):
                    some = ordered[first : first + FETCHED]
                    (values,) = self._redis.many(self._master, [("HMGET", key, *some)])
                    if isinstance(values, Exception):
                        raise LayoutError(f"key {key!r}: {values}") from values
                    before = ordered[first - 1] if first else -1
                    for sequence, value in zip(some, values, strict=True):
                        if sequence != before and value is not None:  # a scan may tell of one twice
                            yield decode_entry(key, queue, sequence, value)
                        before = sequence
        except LayoutError as error:
            raise _unreadable(error) from error

    def _pairs(self, command: str, key: str) -> Iterator[tuple[bytes, Any]]:
        cursor: Any = 0
        while True:
            (answer,) = self._redis.many(self._master, [(command, key, cursor, "COUNT", SCANNED)])
            if isinstance(answer, redis.ResponseError):
                raise LayoutError(f"key {key!r}: {answer}") from answer
            if isinstance(answer, Exception):
                raise self._redis.failure(answer)
            cursor, found = answer
            yield from found.items() if isinstance(found, dict) else found
            if not cursor:
                return


def _text(key: str, field: bytes) -> str:
    try:
        return field.decode()
    except UnicodeDecodeError as error:
        raise LayoutError(f"key {key!r}: field {field!r}: {error}") from error


def _number(key: str, field: bytes) -> int:
    try:
        return int(field)
    except ValueError as error:
        raise LayoutError(f"key {key!r}: field {field!r}: {error}") from error


def _unreadable(error: LayoutError) -> StoreError:
    return StoreError(f"cannot read what the store of queues holds: {error}")
