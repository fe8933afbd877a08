"""The part of a tick that is about applications, as operations of Redis, in order per session and per shared group,
each safe to repeat.

What is under way from a shared log is the session's alone, with its message, until it is done: a group only knows what
nobody may get again. So what is done goes to the group first, and is taken from the session when that is stored; and
what a group passes because a session has it otherwise, parked or in its queue, waits for that session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from embermq.adapters.redis.answers import Answer
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.owners import GroupOwners, Owner, Owners, StoredGroup
from embermq.adapters.redis.script import Script, read_script
from embermq.adapters.redis.unanswered import Unanswered
from embermq.adapters.redis.wire import Then
from embermq.formats.redis_applications import (
    LAST,
    decode_sent_field,
    encode_claim,
    encode_deleted,
    encode_group,
    encode_mark,
    encode_parked,
    encode_parked_state,
    encode_positions,
    encode_reader,
    encode_sent,
    encode_unacknowledged,
    sent_field,
)
from embermq.model.parked_message import ParkedChange, ParkedMessage, ParkedStage, ParkedWrite
from embermq.model.session_writes import QueueState
from embermq.model.shared_logs import SharedGroupRow, SharedMark, SharedWrites
from embermq.model.tick_writes import ApplicationMark, TickWrites
from embermq.model.unacknowledged import Unacknowledged

READER = read_script("reader")
PARK = read_script("park")
SENT_SHARED = read_script("sent_shared")
GROUP = read_script("group")
GROUP_END = read_script("group_end")
GROUP_MOVE = read_script("group_move")
NOTE = read_script("unacknowledged")
SCRIPTS = (READER, PARK, SENT_SHARED, GROUP, GROUP_END, GROUP_MOVE, NOTE)

CHANGES_MAX = 200
"""Marks or messages in one call of a script: while it runs, Redis does nothing else."""
CHANGES_BYTES_MAX = 1024 * 1024
"""Their bytes, unless one has more."""
UNACKNOWLEDGED_MAX = 10_000
"""Of a session, some 25 bytes each; then the oldest go, and are counted."""

Words = tuple[bytes | str | int, ...]


class RedisApplicationWriter:
    """See the module; a part of `RedisStateWriter`, whose `unanswered` it shares."""

    def __init__(self, link: RedisLink, owners: Owners, groups: GroupOwners, unanswered: Unanswered) -> None:
        self._link = link
        self._owners = owners
        self._groups = groups
        self._unanswered = unanswered
        self.taking: set[tuple[int, str]] = set()
        """What is done and may still stand with its session: session's generation, field."""

    def submit(self, writes: TickWrites) -> None:
        """Between the beginning of a tick and its end, behind what it wants of sessions, before those end with which
        all of it goes (`ended_applications`)."""
        if writes.unacknowledged:
            self._note(writes.unacknowledged)  # before the place that says that they are settled
        if writes.application_marks or writes.application_positions or writes.restarted_applications:
            self._move_readers(writes)
        if writes.parked:
            self._park(writes.parked)
        if not writes.shared.is_empty():
            self._share(writes.shared, writes.parked)

    def end(self, owner: Owner) -> None:
        """The session is about to end: what it has under way of shared logs ends with it, and is not given to another
        one [MQTT-4.8.2-5]. Until the groups know that, nothing more is asked of it."""
        keys, counted = owner.keys, self._unanswered.asked_for_nobody()

        def claimed() -> None:
            release()
            counted(1)

        def found(answer: Answer) -> None:
            fields = answer if isinstance(answer, list) else []
            self._claim(keys.shared, [name for name in fields if isinstance(name, bytes)], claimed)

        self._link.command(keys.session, ("HKEYS", keys.shared), found)
        release = self._link.held_keys.hold(keys.session)

    def _claim(self, key: str, fields: list[bytes], then: Callable[[], None]) -> None:
        """Nobody gets again what stands in these fields."""
        claims: dict[int, list[Words]] = {}
        for name in fields:
            if name != LAST.encode():
                group, partition, offset = decode_sent_field(key, name)
                claims.setdefault(group, []).append((partition, offset, encode_claim(partition, offset)))
        owners = [owner for owner in map(self._groups.get, claims) if owner is not None]
        left = len(owners)

        def claimed(answer: Answer) -> None:
            nonlocal left
            self._unanswered.count(answer)
            left -= 1
            if not left:
                then()

        for owner in owners:
            self._ask_group(owner, GROUP_MOVE, [owner.fence, 0, *_flat(claims[owner.generation])], claimed)
        if not owners:
            then()

    # Readers

    def _move_readers(self, writes: TickWrites) -> None:
        marks: dict[int, list[ApplicationMark]] = {}
        for mark in writes.marks_left():
            marks.setdefault(mark.generation, []).append(mark)
        restarted = set(writes.restarted_applications)
        for generation in {**marks, **writes.application_positions} | dict.fromkeys(restarted):
            owner = self._owners.get(generation)
            if owner is not None:
                position = writes.application_positions.get(generation)
                place = encode_reader(position) if position is not None else b""
                changes: list[Words] = [
                    (mark.offset, encode_mark(mark)) for mark in marks.get(generation, ())
                ]
                self._move_reader(owner, place, changes, restarts=generation in restarted)

    def _move_reader(self, owner: Owner, place: bytes, changes: list[Words], *, restarts: bool) -> None:
        """The place comes with the last marks; in a log that begins anew all at once, for what was known of the one
        before is gone with the first."""
        names = (owner.keys.session, owner.keys.reader)
        parts = [changes] if restarts or not changes else _parts(changes)
        for part in parts:
            is_last = part is parts[-1]
            head: Words = (owner.fence, "1" if restarts else "", place if is_last else b"")
            self._ask(owner, READER, names, [*head, *_flat(part)])

    def _note(self, unacknowledged: list[Unacknowledged]) -> None:
        of_all: dict[int, list[Words]] = {}
        for one in unacknowledged:
            of_all.setdefault(one.generation, []).append((encode_unacknowledged(one),))
        for generation, of_one in of_all.items():
            owner = self._owners.get(generation)
            if owner is not None:
                names = (owner.keys.session, owner.keys.unacknowledged)
                for part in _parts(of_one):
                    self._ask(owner, NOTE, names, [owner.fence, UNACKNOWLEDGED_MAX, *_flat(part)])

    def _park(self, writes: list[ParkedWrite]) -> None:
        changes: dict[int, list[Words]] = {}
        for write in writes:
            if isinstance(write, ParkedMessage):
                at = write.at
                change: Words = ("put", at.number, encode_parked(write))
            elif isinstance(write, ParkedChange):
                at = write.at
                if at.stage == ParkedStage.DELETED:
                    change = ("delete", at.number, encode_deleted(at))
                else:
                    change = ("change", at.number, encode_parked_state(at))
            else:
                changes.setdefault(write.generation, []).append(("end", write.number, b""))
                continue
            changes.setdefault(at.generation, []).append(change)
        for generation, of_one in changes.items():
            owner = self._owners.get(generation)
            if owner is not None:
                names = (owner.keys.session, owner.keys.parked)
                for part in _parts(of_one):
                    self._ask(owner, PARK, names, [owner.fence, *_flat(part)])

    def _ask(
        self, owner: Owner, script: Script, names: tuple[str, ...], args: Sequence[bytes | str | int]
    ) -> None:
        counted = self._unanswered.asked(owner.generation)
        self._link.ask(owner.keys.session, script, names, args, counted)

    # Shared groups

    def _share(self, writes: SharedWrites, parked: list[ParkedWrite]) -> None:
        for row in writes.groups:
            self._begin_group(row)
        sent: dict[int, list[Words]] = {}
        done: dict[int, list[SharedMark]] = {}
        for mark in writes.marks:
            if mark.state == QueueState.DONE:
                done.setdefault(mark.group, []).append(mark)
            else:
                sent.setdefault(mark.session, []).append((sent_field(mark), *encode_sent(mark)))
        for session, changes in sent.items():
            owner = self._owners.get(session)
            if owner is not None:
                self._send(owner, changes)
        positions: dict[int, list[Words]] = {}
        for (group, partition), stored in writes.positions.items():
            reached = encode_claim(partition, stored.committed_offset)
            positions.setdefault(group, []).append((partition, encode_positions(stored), reached))
        keepers = {write.at.generation for write in parked if isinstance(write, ParkedMessage)}
        for group in {**positions, **done}:
            self._move_group(group, positions.get(group, []), done.get(group, []), keepers)
        for generation in writes.ended_groups:
            ended = self._groups.release(generation)
            if ended is not None:
                self._ask_group(ended, GROUP_END, (ended.fence,), self._unanswered.asked(generation))

    def _begin_group(self, row: SharedGroupRow) -> None:
        owner = self._groups.take(row)
        counted = self._unanswered.asked(row.generation)
        self._ask_group(owner, GROUP, (row.generation, encode_group(row)), counted)

    def _send(self, owner: Owner, changes: list[Words]) -> None:
        names = (owner.keys.session, owner.keys.shared)
        for part in _parts(changes):
            self._ask(owner, SENT_SHARED, names, [owner.fence, *_flat(part)])

    def _move_group(
        self, generation: int, positions: list[Words], done: list[SharedMark], keepers: set[int]
    ) -> None:
        waits_for = keepers | {mark.session for mark in done if mark.session}
        taken: dict[int, list[str]] = {}
        for mark in done:
            if mark.session:
                taken.setdefault(mark.session, []).append(sent_field(mark))
                self.taking.add((mark.session, sent_field(mark)))
        taking = [
            partial(self._take, session, fields, self._unanswered.asked_for_nobody())
            for session, fields in taken.items()
        ]
        group = self._groups.get(generation)
        if group is None:  # it has ended: only the sessions know of it
            for take in taking:
                take()
            return
        claims: list[Words] = [
            (mark.partition, mark.offset, encode_claim(mark.partition, mark.offset)) for mark in done
        ]
        self._link.held_keys.hold_until(group.keys.group, waits_for, self._unanswered.when_stored)
        parts = _parts(claims) or [[]]
        for part in parts:
            is_last = part is parts[-1]
            moved = positions if is_last else []
            args = [group.fence, len(moved), *_flat([*moved, *part])]
            then = partial(self._moved, self._unanswered.asked(generation), taking if is_last else ())
            self._ask_group(group, GROUP_MOVE, args, then)

    def _ask_group(
        self, group: StoredGroup, script: Script, args: Sequence[bytes | str | int], then: Then
    ) -> None:
        keys = group.keys
        self._link.ask(keys.group, script, (keys.group, keys.positions, keys.claims), args, then)

    def _moved(self, counted: Then, taking: Sequence[Callable[[], None]], answer: Answer) -> None:
        """Nobody gets it again: the sessions may forget it."""
        counted(answer)
        for take in taking:
            take()

    def _take(self, session: int, fields: list[str], counted: Then) -> None:
        owner = self._owners.get(session)
        if owner is None:  # it has ended, and all went with it
            self._taken(session, fields, counted, 1)
            return
        changes: list[Words] = [(one, b"", b"", b"") for one in fields]
        names = (owner.keys.session, owner.keys.shared)
        then = partial(self._taken, session, fields, counted)
        self._link.ask(owner.keys.session, SENT_SHARED, names, [owner.fence, *_flat(changes)], then)

    def _taken(self, session: int, fields: list[str], counted: Then, answer: Answer) -> None:
        self.taking.difference_update((session, one) for one in fields)
        counted(answer)


def _parts(changes: list[Words]) -> list[list[Words]]:
    """Few enough for one call each."""
    parts: list[list[Words]] = []
    size = 0
    for change in changes:
        own = sum(len(word) for word in change if isinstance(word, bytes))
        if not parts or len(parts[-1]) >= CHANGES_MAX or size + own > CHANGES_BYTES_MAX:
            parts.append([])
            size = 0
        parts[-1].append(change)
        size += own
    return parts


def _flat(changes: Sequence[Words]) -> list[bytes | str | int]:
    return [word for change in changes for word in change]
