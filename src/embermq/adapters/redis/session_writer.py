"""The part of a tick that is session data, as operations of Redis, in order per client, each safe to repeat."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice

from msgspec import Struct, field
from msgspec.structs import replace

from embermq.adapters.redis.answers import Answer
from embermq.adapters.redis.application_writer import RedisApplicationWriter
from embermq.adapters.redis.floor_marks import FloorMarks
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.owners import Owner, Owners
from embermq.adapters.redis.script import Script, read_script
from embermq.adapters.redis.unanswered import Unanswered
from embermq.formats.log_record import decode_record
from embermq.formats.redis_layout import (
    client_keys,
    encode_place,
    encode_received,
    encode_retained,
    encode_session,
    encode_subscription,
    encode_tail,
    encode_will,
    position_of,
    retained_key,
    score_of,
)
from embermq.model.session import RetainedRow, SessionRow, WillRow
from embermq.model.session_writes import QueueMark, QueueRow, QueueState, SessionWrites
from embermq.ports.tick_store import Stored

CLAIM = read_script("claim")
CLEAR = read_script("clear")
SUBSCRIBE = read_script("subscribe")
WILL = read_script("will")
RECEIVE = read_script("receive")
SAVE_MANY = read_script("save_many")
MARK_PUBREL = read_script("mark_pubrel")
ACKNOWLEDGE_MANY = read_script("acknowledge_many")
RETAIN = read_script("retain")
EXPIRE_RETAINED = read_script("expire_retained")
SCRIPTS = (
    CLAIM,
    CLEAR,
    SUBSCRIBE,
    WILL,
    RECEIVE,
    SAVE_MANY,
    MARK_PUBREL,
    ACKNOWLEDGE_MANY,
    RETAIN,
    EXPIRE_RETAINED,
)

LOG = logging.getLogger("embermq.redis")
CREATED = 2
"""CLAIM's answer when Redis did not have this generation."""
COMPLAIN_S = 60.0
"""Between two lines of the log about sessions that Redis has not as they were stored."""
ROWS_MAX = 200
"""Messages in one call of a script: while it runs, Redis does nothing else."""
ROW_BYTES_MAX = 1024 * 1024
"""Bytes of records in one call of a script, unless one message has more."""
TRIMMED_MAX = 250
"""Clients whose positions are trimmed by themselves at one move of the floor; the others are trimmed when they get
messages."""


class _Superseded(Struct):
    """A session that is about to end, and is to be replaced by another one of its client."""

    release: Callable[[], None]
    keepers: set[int] = field(default_factory=set)
    """Sessions that have messages of it now."""

    def wait(self, when_stored: Callable[[int, Stored], None]) -> None:
        """Nothing more is handed on: it is replaced when all is stored."""
        for keeper in tuple(self.keepers):
            when_stored(keeper, partial(self._stored, keeper))

    def _stored(self, keeper: int) -> None:
        self.keepers.discard(keeper)
        if not self.keepers:
            self.release()


class RedisSessionWriter:
    """See the module; a part of `RedisStateWriter`, whose `unanswered` and `marks` it shares. `server_id` says in the
    store which broker has the session."""

    def __init__(
        self,
        link: RedisLink,
        owners: Owners,
        unanswered: Unanswered,
        applications: RedisApplicationWriter,
        marks: FloorMarks,
        *,
        server_id: str,
    ) -> None:
        self._link = link
        self._owners = owners
        self._unanswered = unanswered
        self._applications = applications
        self._marks = marks
        self._superseded: dict[int, _Superseded] = {}
        """By generation, sessions that hand on what they have, and behind which another one of their client waits."""
        self._handing_on: set[int] = set()
        self._server_id = server_id
        self._complained_s = float("-inf")
        self.estranged = ""
        """That Redis does not hold a session of ours any more, "" while it does. That does not mend by itself, unless
        its server was emptied as a whole."""

        self.refused_rows: dict[int, dict[int, QueueRow]] = {}
        """By generation and place: rows that an emptied server did not take."""

    def forget_stored(self, is_lost: Callable[[str], bool]) -> None:
        """Nothing is stored any more of those whose key is lost: what is asked next puts them anew."""
        for owner in self._owners:
            if is_lost(owner.keys.session):
                owner.is_stored = False
        self.estranged = ""

    def submit(self, writes: SessionWrites, base: int, log_end: int, records: Sequence[bytes]) -> None:
        """All but sessions that have ended. `records` are those of the tick, for what is shown beside packet ids."""
        if writes.is_empty():
            return
        self._handing_on.update(writes.handing_on)
        leaving = {generation for generation, _ in writes.handed_on} | self._handing_on
        for row in writes.sessions:
            self._claim(row, leaving)
        if writes.subscriptions:
            self._subscribe(writes)
        for generation, will in writes.wills:
            self._put_will(generation, will)
        if writes.receiving or writes.released:
            self._receive(writes, base, log_end, records)
        if writes.queue_rows:
            self._save(writes.queue_rows, log_end)
        if writes.handed_on:
            self._wait_for_keepers(writes.handed_on)
        if writes.queue_marks or writes.queue_dropped:
            self._mark(writes)
        self._retain(writes, base)

    def end(self, generations: Sequence[int]) -> None:
        """These sessions have ended: whatever else the tick has of them is asked for before."""
        for generation in generations:
            self.refused_rows.pop(generation, None)
        self._handing_on.difference_update(generations)
        for generation in generations:
            if generation not in self._superseded:  # else the one behind it takes everything away
                self._clear(generation)
        for generation in [one for one in self._superseded if one not in self._handing_on]:
            superseded = self._superseded.pop(generation)
            del self._owners.leaving[generation]
            if superseded.keepers:
                superseded.wait(self._unanswered.when_stored)
            else:
                superseded.release()

    def _wait_for_keepers(self, handed_on: Sequence[tuple[int, int]]) -> None:
        """What others have now is taken from a session when it is stored for them."""
        keepers: dict[int, set[int]] = {}
        for generation, keeper in handed_on:
            keepers.setdefault(generation, set()).add(keeper)
        for generation, of_one in keepers.items():
            owner, superseded = self._owners.get(generation), self._superseded.get(generation)
            if superseded is not None:
                superseded.keepers |= of_one
            elif owner is not None:
                keys = self._link.held_keys
                keys.hold_until(owner.keys.session, of_one, self._unanswered.when_stored)

    def trim(self) -> None:
        """What is below the mark, and only that: for what may have to be repaired it has to be known still."""
        floor = self._marks.floor
        idle = [
            owner
            for owner in islice(self._owners.with_positions.values(), TRIMMED_MAX)
            if owner.newest_position < floor
        ]
        for owner in idle:
            del self._owners.with_positions[owner.generation]
            words = ("ZREMRANGEBYSCORE", owner.keys.positions, "-inf", f"({floor}")
            self._link.command(owner.keys.session, words, self._trimmed)

    # Operations and their answers

    def _ask(
        self, owner: Owner, script: Script, names: tuple[str, ...], args: list[bytes | str | int]
    ) -> None:
        owner.open += 1
        then = partial(self._owner_answered, owner, self._unanswered.asked(owner.generation))
        self._link.ask(owner.keys.session, script, names, args, then)

    def _claimed(
        self, owner: Owner, counted: Callable[[Answer], None], was_stored: bool, answer: Answer
    ) -> None:
        if was_stored and answer == CREATED:
            owner.open -= 1
            # Whoever comes for it is not told that it is there before that is known.
            self._lose(owner, partial(counted, answer))
        else:
            self._owner_answered(owner, counted, answer)

    def _owner_answered(self, owner: Owner, counted: Callable[[Answer], None], answer: Answer) -> None:
        owner.open -= 1
        if answer is None:
            self._lose(owner, partial(counted, answer))
        else:
            counted(answer)

    def _lose(self, owner: Owner, then: Callable[[], None]) -> None:
        """Redis does not have the session as this broker's, who believes to have it, unless it has ended since."""
        self._marks.look_at(owner.keys.session, partial(self._lost, owner, then))

    def _lost(self, owner: Owner, then: Callable[[], None]) -> None:
        """It is known whether its server has lost more."""
        self._complain(owner)
        then()

    def _complain(self, owner: Owner) -> None:
        if self._owners.get(owner.generation) is not owner or not owner.is_stored:
            return
        self.estranged = (
            f"does not have the session of {owner.client_id!r} as this broker stored it: another broker has taken it, "
            "or it was deleted there (DEL). What comes for such sessions is not kept, until this broker is "
            "started again"
        )
        now_s = time.monotonic()
        if now_s >= self._complained_s + COMPLAIN_S:
            self._complained_s = now_s
            LOG.error("the session store %s", self.estranged)

    def _trimmed(self, answer: Answer) -> None:
        """Nobody waits for it."""
        self._unanswered.count(answer)

    # What is written

    def _claim(self, row: SessionRow, leaving: Collection[int]) -> None:
        before = self._owners.of_client(row.client_id)
        if before is not None and before.generation != row.generation:
            if before.is_application:
                self._applications.end(before)
            if before.generation in leaving:
                key = before.keys.session
                self._owners.leaving[before.generation] = before
                self._superseded[before.generation] = _Superseded(self._link.held_keys.hold(key))
        owner = self._owners.take(row)
        keys = owner.keys
        args = (owner.epoch, row.generation, encode_session(replace(row, epoch=owner.epoch), self._server_id))
        then = partial(self._claimed, owner, self._unanswered.asked(row.generation), owner.is_stored)
        owner.is_stored = True
        owner.open += 1
        self._link.ask(keys.session, CLAIM, keys.all, args, then)

    def _subscribe(self, writes: SessionWrites) -> None:
        changes: dict[int, list[bytes | str | int]] = {}
        for generation, topic_filter, row in writes.subscriptions:
            change = changes.setdefault(generation, [])
            change += (topic_filter, encode_subscription(row) if row is not None else b"")
        for generation, change in changes.items():
            owner = self._owners.get(generation)
            if owner is not None:
                keys = owner.keys
                self._ask(owner, SUBSCRIBE, (keys.session, keys.subscriptions), [owner.fence, *change])

    def _put_will(self, generation: int, will: WillRow | None) -> None:
        """Also of a client without a kept session, whose id is only in its will."""
        wills = self._owners.wills
        if will is not None:
            wills[generation] = will.client_id
            client_id, value = will.client_id, encode_will(generation, will)
        elif generation in wills:
            client_id, value = wills.pop(generation), b""
        else:
            return
        owner = self._owners.get(generation)
        keys = owner.keys if owner is not None else client_keys(client_id, self._link.prefix)
        names = (keys.session, keys.will)
        self._link.ask(keys.session, WILL, names, (generation, value), self._unanswered.asked(generation))

    def _receive(self, writes: SessionWrites, base: int, log_end: int, records: Sequence[bytes]) -> None:
        changes: dict[int, list[tuple[int, bytes]]] = {}
        for generation, packet_id, index in writes.receiving:
            record = (
                records[index] if 0 <= index < len(records) else b""
            )  # what a start repeats has none here
            value = encode_received(base + index, record)
            changes.setdefault(generation, []).append((packet_id, value))
        for generation, packet_id in writes.released:
            changes.setdefault(generation, []).append((packet_id, b""))
        for generation, change in changes.items():
            owner = self._owners.get(generation)
            if owner is None:
                continue
            names = (owner.keys.session, owner.keys.receiving)
            for part, is_last in _received_parts(change):
                # Only with the last part the set is complete up to there.
                self._ask(owner, RECEIVE, names, [owner.fence, log_end if is_last else b"", *part])

    def _save(self, rows: list[QueueRow], log_end: int) -> None:
        by_owner: dict[int, list[QueueRow]] = {}
        for row in rows:
            by_owner.setdefault(row.generation, []).append(row)
        for generation, of_one in by_owner.items():
            owner = self._owners.get(generation)
            if owner is not None:
                for part in _parts(of_one):
                    self._save_part(owner, part, log_end)

    def _save_part(self, owner: Owner, rows: list[QueueRow], log_end: int) -> None:
        """A row without a record is a packet id for which PUBREL is owed: a durable queue has the QoS 2 message."""
        keys = owner.keys
        floor = self._marks.floor if owner.oldest_position < self._marks.floor else b""
        args: list[bytes | str | int] = [owner.fence, keys.message, floor]
        oldest, newest = log_end, 0
        for row in rows:
            score = row.offset if row.offset >= 0 else log_end
            oldest = min(oldest, score)
            newest = max(newest, score)
            args += (
                score_of(row.seq),
                position_of(row),
                score,
                row.packet_id,
                row.expires_ms,
                encode_tail(row, owner.client_id, decode_record(row.record)) if row.record else b"",
                encode_place(row.seq, row.offset, row.flags & 3) if row.packet_id else b"",
            )
        self._owners.note_positions(owner, oldest, newest, trimmed=bool(floor))
        names = (
            keys.session,
            keys.messages,
            keys.positions,
            keys.last_packet_id,
            keys.sent,
            keys.released,
        )
        owner.open += 1
        then = partial(self._saved, owner, rows, self._unanswered.asked(owner.generation))
        self._link.ask(keys.session, SAVE_MANY, names, args, then)

    def _saved(
        self, owner: Owner, rows: list[QueueRow], counted: Callable[[Answer], None], answer: Answer
    ) -> None:
        """What a server could not take because it has been emptied is not lost: their publishers were told that it is
        kept."""
        if answer is None and self._owners.get(owner.generation) is owner:
            self.refused_rows.setdefault(owner.generation, {}).update((row.seq, row) for row in rows)
            counted = partial(self._keep_refused, owner, counted)
        self._owner_answered(owner, counted, answer)

    def _keep_refused(self, owner: Owner, counted: Callable[[Answer], None], answer: Answer) -> None:
        """It is known by now whether it was, or another broker has the session."""
        if owner.is_stored:
            self.refused_rows.pop(owner.generation, None)
        counted(answer)

    def _mark(self, writes: SessionWrites) -> None:
        """Marks of one session in their order; those that follow one another and are of one kind share a call."""
        runs: dict[int, list[tuple[bool, list[bytes | str | int]]]] = {}
        if self.refused_rows:
            done_marks = [
                (mark.generation, mark.seq) for mark in writes.queue_marks if mark.state == QueueState.DONE
            ]
            for generation, seq in [*done_marks, *writes.queue_dropped]:
                self.refused_rows.get(generation, {}).pop(seq, None)
        for mark in writes.queue_marks:
            _extend(runs.setdefault(mark.generation, []), mark)
        for generation, seq in writes.queue_dropped:
            done = QueueMark(generation, seq, -1, QueueState.DONE, 0)
            _extend(runs.setdefault(generation, []), done)
        for generation, of_one in runs.items():
            owner = self._owners.get(generation)
            if owner is None:
                continue
            keys = owner.keys
            for is_done, args in of_one:
                if is_done:
                    names: tuple[str, ...] = (keys.session, keys.messages, keys.sent, keys.released)
                    self._ask(owner, ACKNOWLEDGE_MANY, names, [owner.fence, keys.message, *args])
                else:
                    names = (keys.session, keys.messages, keys.last_packet_id, keys.sent, keys.released)
                    self._ask(owner, MARK_PUBREL, names, [owner.fence, keys.message, *args])

    def _retain(self, writes: SessionWrites, base: int) -> None:
        for retained in writes.retained:
            offset = base + retained.record_index
            row = RetainedRow(retained.topic, offset, retained.record)
            self._ask_about(retained.topic, RETAIN, [offset, encode_retained(row) if row.record else b""])
        for topic, offset in writes.retained_expired:
            self._ask_about(topic, EXPIRE_RETAINED, [offset])

    def _ask_about(self, topic: str, script: Script, args: list[bytes | str | int]) -> None:
        key = retained_key(topic, self._link.prefix)
        self._link.ask(key, script, (key,), args, self._unanswered.asked_for_nobody())

    def _clear(self, generation: int) -> None:
        owner = self._owners.release(generation)
        if owner is None:
            return
        if owner.is_application:
            self._applications.end(owner)
        names = tuple(key for key in owner.keys.all if key != owner.keys.will)
        self._ask(owner, CLEAR, names, [owner.fence])


def _parts(rows: list[QueueRow]) -> list[list[QueueRow]]:
    """Few enough for one call each."""
    parts: list[list[QueueRow]] = [[]]
    size = 0
    for row in rows:
        size += len(row.record)
        if parts[-1] and (len(parts[-1]) == ROWS_MAX or size > ROW_BYTES_MAX):
            parts.append([])
            size = len(row.record)
        parts[-1].append(row)
    return parts


def _received_parts(change: list[tuple[int, bytes]]) -> Iterator[tuple[list[bytes | str | int], bool]]:
    """Few enough for one call each, and whether it is the last part."""
    part: list[bytes | str | int] = []
    size = 0
    for packet_id, value in change:
        if part and (len(part) >= 2 * ROWS_MAX or size + len(value) > ROW_BYTES_MAX):
            yield part, False
            part, size = [], 0
        part += (packet_id, value)
        size += len(value)
    yield part, True


def _extend(runs: list[tuple[bool, list[bytes | str | int]]], mark: QueueMark) -> None:
    is_done = mark.state == QueueState.DONE
    if not runs or runs[-1][0] != is_done or len(runs[-1][1]) >= 4 * ROWS_MAX:
        runs.append((is_done, []))
    if is_done:
        runs[-1][1].extend((mark.packet_id, score_of(mark.seq)))
    else:
        place = encode_place(mark.seq, mark.offset, mark.qos)
        runs[-1][1].extend((mark.state, mark.packet_id, score_of(mark.seq), place))
