"""Stored deliveries in Redis, read by scripts, in one row with the writes of the same client."""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate

from embermq.adapters.redis.answers import Answer
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.owners import Owner, Owners
from embermq.adapters.redis.script import read_script
from embermq.formats.redis_layout import (
    LayoutError,
    client_keys,
    decode_message,
    decode_place,
    name_in,
    offset_in,
    score_of,
    seq_of,
)
from embermq.model.session_writes import QueueRow, QueueState
from embermq.ports.device_queue import DeviceQueue, DeviceQueueHistory, Rows, Sizes

LOG = logging.getLogger("embermq")
PAGE = read_script("page", writes=False)
IN_FLIGHT = read_script("in_flight", writes=False)
OLDEST = read_script("oldest", writes=False)
SCRIPTS = (PAGE, IN_FLIGHT, OLDEST)

EXPIRED_MS = 1
"""Deadline of a row whose payload Redis has let go of."""
OLDEST_MAX = 65_535
STORED_MAX, STORED_BYTES_MAX = 500, 1024 * 1024
"""Messages in one answer, and about their bytes, of who reads everything."""


class RedisDeviceQueue(DeviceQueue):
    """See the port."""

    def __init__(self, link: RedisLink, owners: Owners) -> None:
        self._link = link
        self._owners = owners
        self.unreadable = 0
        """Messages that cannot be understood; each is in the log, and stays in Redis."""

    def in_flight(self, generation: int, then: Rows) -> None:
        owner = self._owners.get(generation)
        if owner is None:
            then([])
            return
        keys = owner.keys
        names = (keys.session, keys.messages, keys.sent, keys.released)
        args = (owner.fence, keys.message)
        self._link.ask(keys.session, IN_FLIGHT, names, args, partial(self._in_flight, owner, then))

    def page(
        self, generation: int, after_seq: int, limit: int, then: Rows, *, bytes_max: int | None = None
    ) -> None:
        owner = self._owners.get(generation)
        leaving = self._owners.leaving.get(generation)
        if owner is None and leaving is None:
            then([])
            return
        owner = leaving or owner
        assert owner is not None
        keys = owner.keys
        names = (keys.session, keys.messages, keys.sent, keys.released)
        args = (owner.fence, len(keys.message.encode()), score_of(after_seq), limit, bytes_max or 0)
        # What replaces a session that leaves waits for it, so its further pages may not come behind that. What was
        # written of it is there: the first page was read behind it.
        key = keys.session if leaving is None else keys.messages

        def go_on(after_seq: int) -> None:
            self.page(generation, after_seq, limit, then, bytes_max=bytes_max)

        self._link.ask(key, PAGE, names, args, partial(self._page, owner, then, go_on))

    def oldest(self, generation: int, after_seq: int, limit: int, then: Sizes) -> None:
        owner = self._owners.get(generation)
        if owner is None:
            then([])
            return
        keys = owner.keys
        names = (keys.session, keys.messages, keys.sent, keys.released)
        args = (owner.fence, len(keys.message.encode()), score_of(after_seq), limit)
        self._link.ask(keys.session, OLDEST, names, args, partial(_oldest, then))

    def _page(self, owner: Owner, then: Rows, go_on: Callable[[int], None], answer: Answer) -> None:
        rows: list[QueueRow] = []
        found = _items(answer)
        for at in range(0, len(found), 2):
            seq, value = _seq(found[at]), found[at + 1]
            if not isinstance(value, bytes):
                rows.append(_expired(owner, seq, 0, QueueState.QUEUED, 1))
                continue
            row = self._read(owner, partial(_message, owner, value, seq, QueueState.QUEUED))
            if row is not None:
                rows.append(row)
        if found and not rows:  # no rows would say that nothing is queued
            go_on(_seq(found[-2]))
        else:
            then(rows)

    def _in_flight(self, owner: Owner, then: Rows, answer: Answer) -> None:
        rows: list[QueueRow] = []
        found = _items(answer)
        for at in range(0, len(found), 4):
            row = self._read(owner, partial(_sent_row, owner, found[at : at + 4]))
            if row is not None:
                rows.append(row)
        rows.sort(key=lambda row: row.seq)
        then(rows)

    def _read(self, owner: Owner, read: Callable[[], QueueRow]) -> QueueRow | None:
        """What is broken stays where it is, for whoever broke it; the others are delivered."""
        try:
            return read()
        except LayoutError as error:
            self.unreadable += 1
            LOG.error("cannot deliver a stored message of %s: %s", owner.client_id, error)
            return None


class RedisDeviceQueueHistory(DeviceQueueHistory):
    """See the port; waits for each answer."""

    def __init__(self, redis: BlockingRedis, owners: Owners) -> None:
        self._redis = redis
        self._owners = owners
        self._queued: dict[int, tuple[array[int], array[int]]] = {}
        """Of each session that was asked for: places of what is queued, and the highest offset up to each."""

    def queued_seq_after(self, generation: int, offset: int) -> int | None:
        queued = self._queued.get(generation)
        if queued is None:
            rows = self.queued(generation)
            queued = self._queued[generation] = (
                array("q", [seq for seq, _, _ in rows]),
                array("q", accumulate((offset for _, offset, _ in rows), max)),
            )
        seqs, highest = queued
        at = bisect_right(highest, offset)
        return seqs[at] if at < len(seqs) else None

    def known_offsets(self, generation: int, from_offset: int) -> dict[int, set[int]]:
        owner = self._owners.get(generation)
        if owner is None:
            return {}
        known: dict[int, set[int]] = {}
        answer = self._redis.command(owner.keys.session, *_known_from(owner.keys.positions, from_offset))
        _add_known(known, owner.keys.positions, answer, from_offset)
        return known

    def known_by_shares(self, from_offset: int) -> dict[int, set[int]]:
        """Of most sessions there is nothing to be known: to look for those of which there is costs a tenth of asking
        each."""
        known: dict[int, set[int]] = {}
        with self._redis.steady():
            for master in self._redis.masters:
                for found in self._redis.keys(master, client_keys("*", "").positions):
                    keys = [
                        key for key in map(_text, found) if self._owners.of_client(name_in(key)) is not None
                    ]
                    answers = self._redis.many(master, [_known_from(key, from_offset) for key in keys])
                    for key, answer in zip(keys, answers, strict=True):
                        if isinstance(answer, Exception):
                            raise self._redis.failure(answer)
                        _add_known(known, key, answer, from_offset)
        known.pop(0, None)
        return known

    def queued(self, generation: int) -> list[tuple[int, int, int]]:
        owner = self._owners.get(generation)
        if owner is None:
            return []
        keys = owner.keys
        names = (keys.session, keys.messages, keys.sent, keys.released)
        args = (owner.fence, len(keys.message.encode()), 0, OLDEST_MAX)
        found = _items(self._redis.run(keys.session, OLDEST, names, args))
        return [
            (_seq(score), _number(offset), _number(size))
            for score, size, offset in zip(found[::3], found[1::3], found[2::3], strict=True)
        ]

    def shared_sent(self, generation: int) -> set[tuple[int, int]]:
        return {(row.flags >> 3, row.offset) for row in self.in_flight(generation) if row.flags & 8}

    def stored(self, generation: int) -> Iterator[tuple[int, QueueRow | None]]:
        """Place and row of all that is stored and not acknowledged, each once; None for what cannot be understood.
        What has expired is not there."""
        owner = self._owners.get(generation)
        if owner is None:
            return
        keys, after, seen = owner.keys, 0, set[int]()
        names = (keys.session, keys.messages, keys.sent, keys.released)
        while True:
            args = (owner.fence, len(keys.message.encode()), score_of(after), STORED_MAX, STORED_BYTES_MAX)
            found = _items(self._redis.run(keys.session, PAGE, names, args))
            if not found:
                break
            after = _seq(found[-2])
            for score, value in zip(found[::2], found[1::2], strict=True):
                if isinstance(value, bytes):
                    seen.add(seq := _seq(score))
                    yield seq, _or_none(partial(_message, owner, value, seq, QueueState.QUEUED))
        # Behind the others: what is sent meanwhile is then among both, and in neither order among none.
        found = _items(self._redis.run(keys.session, IN_FLIGHT, names, (owner.fence, keys.message)))
        for at in range(0, len(found), 4):
            seq = _seq(found[at + 1]) if found[at + 1] is not None else -1
            if found[at + 3] is not None and seq not in seen:
                yield seq, _or_none(partial(_sent_row, owner, found[at : at + 4]))

    def in_flight(self, generation: int) -> Iterator[QueueRow]:
        """What was sent and is not acknowledged, in no order."""
        owner = self._owners.get(generation)
        if owner is None:
            return
        keys = owner.keys
        names = (keys.session, keys.messages, keys.sent, keys.released)
        found = _items(self._redis.run(keys.session, IN_FLIGHT, names, (owner.fence, keys.message)))
        for at in range(0, len(found), 4):
            with suppress(LayoutError):  # it is told of when it is read for its client
                yield _sent_row(owner, found[at : at + 4])


def _known_from(key: str, from_offset: int) -> tuple[str | int, ...]:
    return "ZRANGE", key, max(from_offset, 0), "+inf", "BYSCORE"


def _text(key: bytes) -> str:
    return key.decode(errors="replace")


def _add_known(known: dict[int, set[int]], key: str, answer: Answer, from_offset: int) -> None:
    for member in _items(answer):
        text = member.decode(errors="replace") if isinstance(member, bytes) else str(member)
        offset, mark = offset_in(key, text)
        if offset >= from_offset:
            known.setdefault(mark, set()).add(offset)


def _or_none(read: Callable[[], QueueRow]) -> QueueRow | None:
    try:
        return read()
    except LayoutError:
        return None


def _items(answer: Answer) -> list[Answer]:
    """A list; nothing for a session that is another's by now, and for what Redis refused."""
    return answer if isinstance(answer, list) else []


def _number(answer: Answer) -> int:
    assert isinstance(answer, bytes | int)
    return int(answer)


def _seq(score: Answer) -> int:
    assert isinstance(score, bytes | int)
    return seq_of(score)


def _oldest(then: Sizes, answer: Answer) -> None:
    found = _items(answer)
    then([(_seq(found[at]), _number(found[at + 1])) for at in range(0, len(found), 3)])


def _message(owner: Owner, value: bytes, seq: int, state: int) -> QueueRow:
    key = f"{owner.keys.message}… at place {seq}"
    return decode_message(key, value, generation=owner.generation, seq=seq, state=state)


def _sent_row(owner: Owner, found: Sequence[Answer]) -> QueueRow:
    """One of IN_FLIGHT's answers: packet id, place in the queue, JSON of the place, JSON of the message. That is
    missing where a durable queue keeps it, or where it was gone before it was marked as sent. For QoS 1 it is over
    then; of QoS 2 the client may hold the packet id, so PUBREL is owed."""
    packet_id = _number(found[0])
    _, score, place_json, value = found
    place = decode_place(owner.keys.sent, packet_id, place_json) if isinstance(place_json, bytes) else None
    seq = _seq(score) if score is not None else seq_of(place.score) if place is not None else 0
    state = QueueState.SENT if place is not None else QueueState.RELEASED
    if isinstance(value, bytes):
        return _message(owner, value, seq, state)
    qos = place.qos if place is not None else 2
    return _expired(owner, seq, packet_id, QueueState.RELEASED if qos == 2 else state, qos)


def _expired(owner: Owner, seq: int, packet_id: int, state: int, qos: int) -> QueueRow:
    return QueueRow(owner.generation, seq, -1, packet_id, state, qos, EXPIRED_MS, (), b"")
