"""What Redis holds for applications: readers, parked messages and shared groups, read at the start, waiting for the
answer, and while the broker runs in one row with the writes of the same client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from embermq.adapters.redis.answers import Answer, Refused
from embermq.adapters.redis.application_writer import RedisApplicationWriter
from embermq.adapters.redis.blocking import BlockingRedis, unreadable
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.owners import GroupOwners, Owner, Owners
from embermq.adapters.redis.script import Script, read_script
from embermq.formats.redis_applications import (
    GROUP_PREFIX,
    LAST,
    PLACE,
    GroupKeys,
    NotedUnacknowledged,
    decode_claim,
    decode_group,
    decode_mark,
    decode_parked,
    decode_parked_state,
    decode_positions,
    decode_reader,
    decode_sent,
    decode_sent_field,
    decode_unacknowledged,
    group_keys,
    sent_field,
)
from embermq.formats.redis_layout import PARKED_PREFIX, SHARED_PREFIX, LayoutError
from embermq.model.application_positions import ReaderPosition
from embermq.model.parked_message import ParkedMessage, ParkedStage, ParkedState
from embermq.model.shared_logs import SharedMark
from embermq.model.tick_writes import ApplicationMark
from embermq.ports.errors import StoreError
from embermq.ports.parked_messages import ParkedFound, ParkedMessages
from embermq.ports.reader_positions import ReaderFound, ReaderPositions, StoredReader
from embermq.ports.shared_groups import Claim, MarksFound, SharedGroups, StoredShared

FIELDS = read_script("fields", writes=False)
PARKED = read_script("parked", writes=False)
PARKED_STATES = read_script("parked_states", writes=False)
GROUP_LOAD = read_script("group_load", writes=False)
SCRIPTS = (FIELDS, PARKED, PARKED_STATES)

Then = Callable[[Any], None]
Read = Callable[[list[Any]], Any]


class RedisReaderPositions(ReaderPositions):
    """See the port."""

    def __init__(self, link: RedisLink, owners: Owners) -> None:
        self._link = link
        self._owners = owners

    def load(self, generation: int, then: ReaderFound) -> None:
        owner = self._owners.get(generation)
        if owner is None:
            then(StoredReader(None, ()))
            return
        key = owner.keys.reader
        _ask(self._link, owner, FIELDS, key, (), read=partial(stored_reader, key, generation), then=then)


def stored_reader(key: str, generation: int, found: list[Any]) -> StoredReader:
    """Of the fields and values of `s:a:{client}`, one behind the other. Raises LayoutError."""
    position: ReaderPosition | None = None
    marks: list[ApplicationMark] = []
    for name, value in _pairs(found):
        if name == PLACE.encode():
            position = decode_reader(key, value)
        else:
            marks.append(decode_mark(key, generation, name, value))
    return StoredReader(position, tuple(sorted(marks, key=lambda mark: mark.offset)))


def noted_unacknowledged(redis: BlockingRedis, owner: Owner) -> NotedUnacknowledged:
    """What this session has not acknowledged and need not any more. Raises StoreError."""
    key = owner.keys.unacknowledged
    found = redis.command(key, "LRANGE", key, 0, -1)
    try:
        entries = [one for one in found if isinstance(one, bytes)] if isinstance(found, list) else []
        return decode_unacknowledged(key, entries)
    except LayoutError as error:
        raise unreadable(error) from error


class RedisParkedMessages(ParkedMessages):
    """See the port. `redis` is for the start alone."""

    def __init__(self, redis: BlockingRedis, link: RedisLink, owners: Owners) -> None:
        self._redis = redis
        self._link = link
        self._owners = owners

    def load(self) -> list[ParkedState]:
        states: list[ParkedState] = []
        try:
            for name in _names(self._redis, PARKED_PREFIX):
                owner = self._owners.of_client(name)
                if owner is None:
                    continue  # its session has ended just now, by another broker's hand
                keys = owner.keys
                names = (keys.session, keys.parked)
                found = self._redis.run(keys.session, PARKED_STATES, names, (owner.fence,))
                for number, value in _pairs(found if isinstance(found, list) else []):
                    states.append(decode_parked_state(keys.parked, owner.generation, number, value))
        except LayoutError as error:
            raise unreadable(error) from error
        states.sort(key=lambda at: (at.generation, at.number))
        return states

    def read(self, generation: int, numbers: Sequence[int], bytes_max: int, then: ParkedFound) -> None:
        owner = self._owners.get(generation)
        if owner is None or not numbers:
            then(dict.fromkeys(numbers))
            return
        read = partial(_parked, owner.keys.parked, generation, numbers)
        _ask(self._link, owner, PARKED, owner.keys.parked, (bytes_max, *numbers), read=read, then=then)


def _parked(
    key: str, generation: int, numbers: Sequence[int], found: list[Any]
) -> dict[int, ParkedMessage | None]:
    messages: dict[int, ParkedMessage | None] = {}
    for number, value in zip(numbers, found, strict=False):  # those behind were not looked at
        messages[number] = None
        if value is not None:
            message = decode_parked(key, generation, number, value)
            messages[number] = message if message.at.stage != ParkedStage.DELETED else None
    return messages


class RedisSharedGroups(SharedGroups):
    """See the port. Fills `groups` with what it finds; `writer` knows what is about to go. `redis` is for the start
    alone."""

    def __init__(
        self,
        redis: BlockingRedis,
        link: RedisLink,
        owners: Owners,
        groups: GroupOwners,
        writer: RedisApplicationWriter,
    ) -> None:
        self._redis = redis
        self._link = link
        self._owners = owners
        self._groups = groups
        self._writer = writer

    def load(self) -> StoredShared:
        stored = StoredShared([], {}, [])
        try:
            for name in _names(self._redis, GROUP_PREFIX):
                share, _, topic_filter = name.partition("/")
                self._load_group(group_keys(share, topic_filter, self._redis.prefix), stored)
            for name in _names(self._redis, SHARED_PREFIX):
                owner = self._owners.of_client(name)
                if owner is not None:
                    fields = self._redis.command(owner.keys.session, "HKEYS", owner.keys.shared)
                    stored.claims.extend(_claims(owner.keys.shared, fields))
        except LayoutError as error:
            raise unreadable(error) from error
        stored.groups.sort(key=lambda row: row.generation)
        return stored

    def _load_group(self, keys: GroupKeys, stored: StoredShared) -> None:
        found: Any = self._redis.run(keys.group, GROUP_LOAD, (keys.group, keys.positions, keys.claims), ())
        value, positions, claims = found
        if value is None:
            return  # it has ended just now
        row = decode_group(keys.group, value)
        self._groups.take(row)
        stored.groups.append(row)
        for name, text in _pairs(positions):
            partition, at = decode_positions(keys.positions, name, text)
            stored.positions[row.generation, partition] = at
        stored.claims.extend((row.generation, *decode_claim(keys.claims, member)) for member in claims)

    def in_flight(self, session: int, then: MarksFound) -> None:
        owner = self._owners.get(session)
        if owner is None:
            then([])
            return
        read = partial(self._marks, owner.keys.shared, session)
        _ask(self._link, owner, FIELDS, owner.keys.shared, (), read=read, then=then)

    def _marks(self, key: str, session: int, found: list[Any]) -> list[SharedMark]:
        sent = [
            decode_sent(key, session, name, value) for name, value in _pairs(found) if name != LAST.encode()
        ]
        taking = self._writer.taking
        return [
            mark
            for _, mark in sorted(sent, key=lambda entry: entry[0])
            if (session, sent_field(mark)) not in taking
        ]


def _claims(key: str, fields: Answer) -> Iterator[Claim]:
    """What sessions have under way nobody else may get."""
    for name in fields if isinstance(fields, list) else []:
        if isinstance(name, bytes) and name != LAST.encode():
            yield decode_sent_field(key, name)


def _ask(
    link: RedisLink, owner: Owner, script: Script, key: str, args: Sequence[int], *, read: Read, then: Then
) -> None:
    names = (owner.keys.session, key)
    link.ask(owner.keys.session, script, names, (owner.fence, *args), partial(_answered, read, then))


def _answered(read: Read, then: Then, answer: Answer) -> None:
    """Nothing is there of a session that is another's by now."""
    if isinstance(answer, Refused):
        then(StoreError(f"the session store refuses: {answer.text}"))
        return
    try:
        found = read(answer if isinstance(answer, list) else [])
    except LayoutError as error:
        then(unreadable(error))
    else:
        then(found)


def _names(redis: BlockingRedis, prefix: str) -> Iterator[str]:
    """Each once, also of a slot that moves."""
    found = (name for master in redis.masters for names in redis.names(master, prefix) for name in names)
    yield from dict.fromkeys(found)


def _pairs(found: Sequence[Any]) -> Iterator[tuple[bytes, bytes]]:
    for at in range(0, len(found), 2):
        yield found[at], found[at + 1]
