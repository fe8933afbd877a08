"""The part of a tick that durable queues want kept, as operations of Redis, in order per queue, each safe to repeat.

Messages that go from one queue to another cross slots. So what a tick puts is asked for first; then comes what is taken
from other queues, whose records are read there; and what is marked and removed goes last, when that is stored
[queues-34]. A queue that waits so holds back nothing but itself. Each step waits for steps of earlier ticks, or for an
earlier kind of its own tick, so nothing waits in a circle.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from embermq.adapters.redis.answers import Answer
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.queue_owners import QueueOwner, QueueOwners, QueueStep
from embermq.adapters.redis.queue_parts import Calls, Chunk, Part, QueueCall, gather
from embermq.adapters.redis.script import read_script
from embermq.adapters.redis.unanswered import Unanswered
from embermq.adapters.redis.wire import Word
from embermq.formats.redis_queues import GENERATION_KEY, encode_ended
from embermq.model.queue_rows import QueueWrites
from embermq.ports.tick_store import queue_owner

PUT = read_script("queue_put")
END = read_script("queue_end")
FORGET = read_script("queue_forget")
GENERATION = read_script("queue_generation")
SWEEP = read_script("queue_sweep")
SCRIPTS = (PUT, END, FORGET, GENERATION, SWEEP)

LOG = logging.getLogger("embermq.redis")
CREATED = 2
"""PUT's answer when Redis did not have this generation."""
COMPLAIN_S = 60.0
"""Between two lines of the log about queues that Redis has not as they were stored."""
SWEPT = 1_000
"""Marks that are looked through in one call for those of groups that are gone."""

Now = Callable[[], int]


def wall_ms() -> int:
    """The wall clock, Unix milliseconds: dedup ids end by it."""
    return time.time_ns() // 1_000_000


Counted = Callable[[Answer], None]


class RedisQueueWriter:
    """See the module; a part of `RedisStateWriter`, whose `unanswered` it shares. `now_ms` is the wall clock."""

    def __init__(
        self,
        link: RedisLink,
        owners: QueueOwners,
        unanswered: Unanswered,
        look_at: Callable[[str, Callable[[], None]], None],
        now_ms: Now = wall_ms,
    ) -> None:
        """`look_at` finds out whether the server of a key was emptied, see `FloorMarks`."""
        self._link = link
        self._owners = owners
        self._unanswered = unanswered
        self._now_ms = now_ms
        self._look_at = look_at
        self._complained_s = float("-inf")
        self._has_swept = False
        """Whether what groups have marked is removed, bit by bit, that were gone when this broker began."""
        self.held_bytes = 0
        """Of records that wait for other queues: the link has not been asked yet."""
        self.estranged = ""
        """That Redis does not hold a queue of ours any more, "" while it does. That does not mend by itself."""

    def forget_stored(self, is_lost: Callable[[str], bool]) -> None:
        """Nothing is stored any more of those whose key is lost: what is asked next puts them anew."""
        for owner in self._owners:
            if is_lost(owner.keys.queue):
                owner.is_stored = False
        self.estranged = ""

    def submit(self, writes: QueueWrites, base: int, log_end: int, records: Sequence[bytes]) -> None:
        """Between the beginning of a tick and its end. `records` are those of the tick; the first of them stands at
        `base` of the log, which ends at `log_end` now."""
        if not self._has_swept:
            self._has_swept = True
            for owner in self._owners:
                self._look_at_groups(owner)
        if not writes:
            return
        if writes.queues:
            args = (max(writes.queues) + 1,)
            counted = self._unanswered.asked_for_nobody()
            key = self._link.prefix + GENERATION_KEY
            self._link.ask(key, GENERATION, (key,), args, counted)
        parts = gather(writes, base, records, self._owners)
        for part in parts.values():
            for chunk in part.chunks:
                chunk.read.run = partial(self._read, parts, chunk)
                chunk.read.held = len(chunk.sources)
                for source in chunk.sources:
                    parts[source].reads.append(chunk.read)
                    parts[source].waits_for += 1
        waits = {
            generation: QueueStep(part.owner.lane, held=part.waits_for) for generation, part in parts.items()
        }
        for generation, part in parts.items():
            self._submit(part, waits, waits[generation], log_end)

    def trim(self, floor: int) -> None:
        """A start does not read the log below `floor` any more: what is left of deleted queues may go."""
        owners = self._owners
        ended, owners.ended = owners.ended, {}
        for key, (left, ended_at) in ended.items():
            if ended_at <= floor:
                self._link.ask(key, FORGET, (key,), (left,), self._unanswered.count)
            else:
                owners.ended[key] = (left, ended_at)

    # In the order of a queue

    def _submit(self, part: Part, waits: dict[int, QueueStep], wait: QueueStep, log_end: int) -> None:
        owner, lane = part.owner, part.owner.lane
        asked = partial(self._unanswered.asked, queue_owner(owner.generation))
        if part.last is not part.first:
            self._do_all(part.first, asked)
        if part.reads:
            lane.do(partial(_release, part.reads))
        for chunk in part.chunks:
            counted = asked()
            stored = partial(self._brought, owner, [waits[source] for source in chunk.sources], counted)
            chunk.put.run = partial(self._bring, owner, chunk, stored)
            chunk.put.held = len(chunk.places)
            lane.put(chunk.read)
            lane.put(chunk.put)
        if part.waits_for:
            lane.put(wait)
        self._do_all(part.last, asked, partial(_gone, part) if part.moved else None)
        if part.is_ended:
            self._end(part, partial(_gone, part, asked()), log_end)
        self._look_at_groups(owner)

    def _do_all(
        self,
        calls: Calls,
        asked: Callable[[], Counted],
        then: Callable[[Counted, Answer], None] | None = None,
    ) -> None:
        for call in calls.calls:
            is_last = call is calls.calls[-1]
            self._do(calls.owner, call, partial(then, asked()) if then is not None and is_last else asked())

    def _do(self, owner: QueueOwner, call: QueueCall, counted: Counted) -> None:
        is_new = bool(call.row) and not owner.is_stored
        owner.is_stored = owner.is_stored or is_new
        then = partial(self._answered, owner, is_new, counted)
        if owner.lane.is_held:
            self.held_bytes += call.size
            owner.lane.do(partial(self._ask_held, owner, call, then))
        else:
            self._ask(owner, call, then)

    def _ask_held(self, owner: QueueOwner, call: QueueCall, then: Counted) -> None:
        self.held_bytes -= call.size
        self._ask(owner, call, then)

    def _ask(self, owner: QueueOwner, call: QueueCall, then: Counted) -> None:
        keys = owner.keys
        self._link.ask(keys.queue, PUT, keys.all, call.words(owner, self._now_ms()), then)

    def _answered(self, owner: QueueOwner, is_new: bool, counted: Counted, answer: Answer) -> None:
        if answer is None or (answer == CREATED and not is_new):
            self._lose(owner)
        counted(answer)

    def _end(self, part: Part, counted: Counted, log_end: int) -> None:
        owner = part.owner
        left = encode_ended(owner.generation, log_end)
        self._owners.ended[owner.keys.queue] = (left, log_end)
        then = partial(self._answered, owner, False, counted)
        keys = owner.keys
        owner.lane.do(partial(self._link.ask, keys.queue, END, keys.all, (owner.fence, left), then))

    def _lose(self, owner: QueueOwner) -> None:
        """Redis does not have the queue as this broker's, who believes to have it, unless it was deleted since."""
        self._look_at(owner.keys.queue, partial(self._complain, owner))

    def _complain(self, owner: QueueOwner) -> None:
        """It is known whether its server has lost more."""
        if self._owners.get(owner.generation) is not owner or not owner.is_stored:
            return
        self.estranged = (
            f"does not have the queue {owner.name!r} as this broker stored it: another broker has taken it, or it was "
            "deleted there (DEL). What comes for such queues is not kept, until this broker is started again"
        )
        now_s = time.monotonic()
        if now_s >= self._complained_s + COMPLAIN_S:
            self._complained_s = now_s
            LOG.error("the store of queues %s", self.estranged)

    # From other queues

    def _read(self, parts: dict[int, Part], chunk: Chunk) -> None:
        """Ask for the records of what comes. All that was put there is asked for, nothing of it is removed."""
        for source, places in chunk.places.items():
            keys = parts[source].owner.keys
            words: list[Word] = ["HMGET", keys.bodies, *(number for number, _ in places)]
            self._link.command(keys.queue, words, partial(_take_bodies, chunk, [to for _, to in places]))

    def _bring(self, owner: QueueOwner, chunk: Chunk, stored: Counted) -> None:
        """The records are there."""
        self._ask(owner, chunk.call(), partial(self._answered, owner, False, stored))

    def _brought(self, owner: QueueOwner, waits: list[QueueStep], counted: Counted, answer: Answer) -> None:
        """What came is stored: it may go where it was."""
        counted(answer)
        _release(waits)

    # Groups that are gone

    def _look_at_groups(self, owner: QueueOwner) -> None:
        if not owner.is_swept:
            owner.is_swept = True
            owner.lane.do(partial(self._sweep, owner, b"0"))

    def _sweep(self, owner: QueueOwner, answer: Answer) -> None:
        if not isinstance(answer, bytes) or self._owners.get(owner.generation) is not owner:
            return
        args: list[Word] = [owner.fence, answer, SWEPT, owner.next_group, *owner.groups.values()]
        keys = owner.keys
        self._link.ask(keys.queue, SWEEP, (keys.queue, keys.marks), args, partial(self._swept, owner))

    def _swept(self, owner: QueueOwner, answer: Answer) -> None:
        self._unanswered.count(answer)
        if answer != b"0":
            self._sweep(owner, answer)


def _release(steps: list[QueueStep]) -> None:
    for step in steps:
        step.release()


def _gone(part: Part, counted: Counted, answer: Answer) -> None:
    """What went to other queues is gone here."""
    for owner, name in part.moved:
        owner.finished.append(name)
    counted(answer)


def _take_bodies(chunk: Chunk, sequences: list[int], answer: Answer) -> None:
    found = answer if isinstance(answer, list) else []
    for sequence, body in zip(sequences, found, strict=False):
        if isinstance(body, bytes):
            chunk.bodies[sequence] = body
    chunk.put.release()
