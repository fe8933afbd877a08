"""Durable queues as an operator sees them and what may be done to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from heapq import nlargest, nsmallest
from typing import TypedDict

from embermq.admin.durable import Durable, TickDriver
from embermq.admin.errors import AlreadyExists, NotFound, OperationRefused, RequestRefused
from embermq.admin.queue_values import (
    QUEUES_NAMED_MAX,
    Configured,
    Done,
    MessageBodies,
    PeekedMessage,
    PutBack,
    QueueDetail,
    Retried,
    RetryJob,
    ShownBody,
    peeked,
    shown_body,
)
from embermq.model.message import Message
from embermq.mqtt.value import replace
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.queues.dead_letter_quota import DeadLetterQuota
from embermq.queues.explaining import NAMED_MAX, Reason, explain
from embermq.queues.inspection import (
    LOOKED_AT_MAX,
    ConsumerView,
    DeadLetterView,
    GroupView,
    LetterFilter,
    MessageView,
    QueueFigures,
    QueueStats,
    consumers_of,
    delayed_at,
    groups_of,
    letter_at,
    letters_after,
    message_at,
    message_of,
    messages_after,
    slowest_of,
    stats_of,
)
from embermq.queues.names import QueueKind, kind_of, queue_name
from embermq.queues.queue import Queue
from embermq.queues.queues import Queues
from embermq.queues.scans import at_a_time
from embermq.queues.settings import QueueSettings, operator_settings
from embermq.queues.values import Returned
from embermq.sessions.tick import Tick

LOG = logging.getLogger("embermq")
PIECE = 1_000
"""Messages that one tick lets go of, or puts back, so that clients do not wait for an operator."""
SLOW_PIECE_S = 0.1
STORE_WAIT_S = 30.0
"""How long a request waits for the store before it is told so."""
QUEUES_SHOWN_MAX = 100
"""Queues that metrics name: each costs some 25 lines."""
GROUPS_SHOWN_MAX = 20
"""Groups of each that they name: those that have settled least."""
GROUPS_IN_DETAIL_MAX = 100
"""Groups that come with a queue itself; the others come page by page."""
DELETE_TRIES = 50
"""Ticks that a delete waits for publishes that are under way."""


class QueueDesk:
    """Called on the event loop. Reading answers from memory; what changes something returns when that is durable, or
    raises StoreError when the store takes too long: it may be done all the same. All but `queues` and `configure`
    raise NotFound. `core` writes into the present batch of `tick`; `check_here` raises QueueElsewhere for a
    queue of another slot of the cluster."""

    def __init__(
        self,
        core: Queues,
        tick: Tick,
        ticks: TickDriver,
        bodies: MessageBodies,
        *,
        queues_max: int,
        groups_max: int,
        check_here: Callable[[str], object] = str,
    ) -> None:
        self._check_here = check_here
        self._core = core
        self._ticks = ticks
        self._commits = Durable(tick, ticks)
        self._bodies = bodies
        self._queues_max = queues_max
        self._groups_max = groups_max
        self._jobs: dict[str, RetryJob] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    def queues(self, after: str, limit: int, match: str) -> Sequence[QueueStats]:
        """Up to `limit` queues whose name sorts behind `after` and fits the shell pattern `match`, in that order."""
        after, match = queue_name(after), queue_name(match)
        names = nsmallest(
            limit, (name for name in self._core.names() if name > after and fnmatchcase(name, match))
        )
        return [self.stats(name) for name in names]

    def queue(self, name: str) -> QueueDetail:
        queue = self._find(name)
        groups = groups_of(queue, "", GROUPS_IN_DETAIL_MAX)
        return QueueDetail(settings=queue.settings, stats=self.stats(name), groups=groups)

    def stats(self, name: str) -> QueueStats:
        return stats_of(self._find(name), self._ticks.look_at_clock())

    def figures(self) -> QueueFigures:
        """For metrics: those that hold most."""
        now_ms = self._ticks.look_at_clock()
        found = [self._find(name) for name in self._core.names()]
        shown = nlargest(QUEUES_SHOWN_MAX, found, key=lambda queue: (queue.depth(), queue.counts.enqueued))
        return QueueFigures(
            queues=len(found),
            shown=tuple(stats_of(queue, now_ms) for queue in shown),
            groups={queue.settings.name: tuple(slowest_of(queue, GROUPS_SHOWN_MAX)) for queue in shown},
            latency={
                queue.settings.name: (queue.latency.count, queue.latency.total_ms / 1_000) for queue in shown
            },
            dead_letter_bytes=self._core.room.used_bytes,
            dead_letter_bytes_max=self._core.room.limit_bytes,
        )

    def letter_room(self) -> DeadLetterQuota:
        """What dead letters of all queues take."""
        return self._core.room

    def groups(self, name: str, after: str, limit: int) -> Sequence[GroupView]:
        """Up to `limit` of its groups whose names sort behind `after`, in that order."""
        return groups_of(self._find(name), after, limit)

    def consumers(self, name: str, after: tuple[str, str], limit: int) -> Sequence[ConsumerView]:
        """Up to `limit` of its consumers that sort behind `after`, a group and a client id, in that order."""
        return consumers_of(self._find(name), after, limit)

    def message(self, name: str, message_id: str) -> MessageView:
        """A message with its state in every group."""
        found = message_of(self._find(name), message_id)
        if found is None:
            raise NotFound(
                f"queue {name} has no message {message_id[:80]!r}: it never had, or all have settled it"
            )
        return found

    async def peek(self, name: str, after: int, limit: int) -> Sequence[PeekedMessage]:
        """Up to `limit` messages behind the sequence `after`, with their bodies. Raises StoreError."""
        queue = self._find(name)
        sequences = messages_after(queue, after, at_a_time(limit, len(queue.groups)))
        places = {sequence: queue.entries[sequence].offset for sequence in sequences}
        return await self._with_bodies(
            queue, [(message_at(queue, sequence), sequence) for sequence in sequences], places
        )

    async def delayed(self, name: str, after: int, limit: int) -> Sequence[PeekedMessage]:
        """Up to `limit` messages whose time has not come, behind the sequence `after`, with their bodies. Raises
        StoreError."""
        queue = self._find(name)
        rows = queue.delayed.after(after, limit)
        places = {row.ticket: row.offset for row in rows}
        return await self._with_bodies(queue, [(delayed_at(queue, row), row.ticket) for row in rows], places)

    async def _with_bodies(
        self, queue: Queue, views: list[tuple[MessageView, int]], places: Mapping[int, int]
    ) -> Sequence[PeekedMessage]:
        """`places` has offsets by number."""
        bodies = await self._read(queue, {offset: number for number, offset in places.items()})
        return [peeked(view, bodies.get(places[number])) for view, number in views]

    def explain(self, name: str) -> Sequence[Reason]:
        """Why nothing is delivered."""
        return explain(self._find(name), self._ticks.look_at_clock())

    async def dead_letters(
        self, name: str, wanted: LetterFilter, after: str, limit: int
    ) -> Sequence[DeadLetterView]:
        """Dead letters of the queue, or in it when it is a queue of dead letters, behind the one with the id `after`;
        nobody consumes them by looking at them."""
        found = self._letters(name, wanted)
        if found is None:
            return []
        dead, wanted = found
        begin = dead.sequence_of("", after) if after else 0
        if begin < 0:  # from the first one on would be the same page again and again
            raise RequestRefused(f"after: {after[:80]!r} is no id of a dead letter of queue {name}")
        letters = (letter_at(dead, sequence) for sequence in await _search(dead, wanted, limit, begin))
        return [letter for letter in letters if letter is not None]

    async def configure(
        self, name: str, given: Mapping[str, object], *, only_new: bool = False
    ) -> Configured:
        """Make the queue, or give it these settings instead of those it has. Raises SettingsRefused and, when there are
        too many queues, Refused."""
        if only_new and self._core.find(name) is not None:
            raise AlreadyExists(f"there is a queue {name!r} already")
        settings = operator_settings(name, given)
        created = self.apply(settings)
        await self._durable()
        return Configured(created, settings)

    def apply(self, settings: QueueSettings) -> bool:
        """Make the queue or give it these settings, without waiting; True when it was made. Raises SettingsRefused and
        Refused."""
        self._check_here(settings.name)
        queue = self._core.find(settings.name)
        count = len(self._core.names())
        if queue is None and count >= self._queues_max:
            raise OperationRefused(f"there are {count} queues, queues.queues_max is {self._queues_max}")
        if queue is None or queue.settings != settings:
            self._ticks.look_at_clock()
            self._core.configure(settings)
            self._ticks.wake()
        return queue is None

    async def delete(self, name: str) -> Done:
        """Empty it and let go of it; returns how many messages it had. Raises Refused while it has consumers."""
        queue = self._find(name)
        count = 0
        _check_unused(queue)
        for _ in range(DELETE_TRIES):
            count += await self._purge(name, queue)
            if self._core.find(name) is not queue:
                break  # somebody else was faster
            _check_unused(queue)  # who came meanwhile would have subscribed to nothing
            self._ticks.look_at_clock()
            if self._core.delete(name):
                self._stop(name)
                self._jobs.pop(name, None)
                await self._durable()
                return Done(count)
            await self._durable()
        else:
            raise OperationRefused(f"queue {name} cannot be deleted while messages are published to it")
        return Done(count)

    async def purge(self, name: str) -> Done:
        """Let go of every message that is there now, held and delayed ones too; returns how many."""
        return Done(await self._purge(name, self._find(name)))

    async def _purge(self, name: str, queue: Queue) -> int:
        end, count = queue.end(), 0
        while self._core.find(name) is queue:
            self._ticks.look_at_clock()
            piece = at_a_time(PIECE, len(queue.groups))
            done = self._core.purge(name, end, piece)
            count += done
            await self._durable()
            if done < piece:
                break
        return count

    async def delete_message(self, name: str, message_id: str) -> None:
        """Let go of one message, for all groups; a held or delayed one too."""
        self.message(name, message_id)  # raises for one that is not there
        self._ticks.look_at_clock()
        self._core.delete_message(name, message_id)
        await self._durable()

    async def pause(self, name: str, group: str, *, is_paused: bool) -> None:
        """Have a group wait, or go on; with "" the whole queue. Nothing is handed out meanwhile."""
        self._find(name)
        self._ticks.look_at_clock()
        if not self._core.pause(name, group, is_paused=is_paused):
            raise NotFound(f"queue {name} has no group {group[:80]!r}")
        await self._durable()

    async def remove_group(self, name: str, group: str) -> None:
        """Let go of a group without consumers, and of what it alone owed. Raises Refused while it has some."""
        found = self._find(name).groups.get(group)
        if found is None:
            raise NotFound(f"queue {name} has no group {group[:80]!r}")
        if found.members:
            shown = ", ".join(repr(client_id) for client_id in nsmallest(NAMED_MAX, found.members))
            more = f" and {len(found.members) - NAMED_MAX} more" if len(found.members) > NAMED_MAX else ""
            raise OperationRefused(f"group {group} of queue {name} has consumers: {shown}{more}")
        self._core.remove_group(name, group)
        await self._durable()

    async def retry(self, name: str, letter_id: str) -> Done:
        """Put one dead letter back, or all that the message of this id has, one a group. Those that a consumer of the
        dead-letter queue holds stay; raises Refused when all do, when their queue is not there any more, and when
        one of them is for a group that would be one too many: none of them moves then."""
        found = self._letters(name, LetterFilter(message_id=letter_id))
        sequences = [] if found is None else await _search_id(found[0], found[1], letter_id)
        if found is None or not sequences:
            raise NotFound(f"queue {name} has no dead letter {letter_id[:80]!r}")
        for letter in filter(None, map(found[0].dead_letter, sequences)):
            if self._core.find(letter.queue) is None:
                raise OperationRefused(
                    f"dead letter {letter_id} comes from queue {letter.queue}, which is not there any more; make it"
                    " first, then it can go back"
                )
        self._check_groups(found[0], sequences)
        done = self._put_back(found[0], sequences)
        if not done.put_back:
            raise OperationRefused(
                f"dead letter {letter_id} is held by a consumer of {found[0].settings.name}"
            )
        await self._durable()
        return Done(done.put_back)

    async def retry_all(self, name: str, wanted: LetterFilter, limit: int) -> Retried:
        """Put dead letters back, the oldest first: of `limit` at most those that can go."""
        found, done = self._letters(name, wanted), Returned()
        if found is not None:
            sequences, done = await self._search_ways_back(*found, limit)
            for begin in range(0, len(sequences), PIECE):
                done.add(self._put_back(found[0], sequences[begin : begin + PIECE]))
                await self._durable()
        return Retried(messages=done.put_back, **_staying(done))

    async def put_back(self, name: str, letter_ids: Sequence[str]) -> PutBack:
        """Put back those of these ids that are dead letters still, in their order and in one transaction: asking again
        for what had no answer moves nothing twice. Raises StoreError."""
        found = self._letters(name, LetterFilter())
        if found is None:
            return PutBack(put_back=0, gone=len(letter_ids), **_staying(Returned()))
        dead, wanted = found
        sequences: list[int] = []
        for letter_id in dict.fromkeys(letter_ids):
            sequence = dead.sequence_of("", letter_id)
            letter = dead.dead_letter(sequence) if sequence in dead.entries else None
            if letter is not None and wanted.matches(letter_id, letter):
                sequences.append(sequence)
        done = self._put_back(dead, sequences)
        # Also when there was nothing to do: this answer stands for one that was lost.
        await self._durable()
        return PutBack(put_back=done.put_back, gone=len(letter_ids) - len(sequences), **_staying(done))

    async def retry_slowly(self, name: str, wanted: LetterFilter, rate: float) -> RetryJob:
        """Begin to put dead letters back, at most `rate` a second; what is left when the broker ends is a dead letter
        still. What is orphaned or crowded at the beginning is told at once, and has no turn. Raises Refused while
        another one runs for this queue."""
        found, sequences, done = self._letters(name, wanted), list[int](), Returned()
        if found is not None and not self._is_running(name):
            sequences, done = await self._search_ways_back(*found)
        if self._is_running(name):
            raise OperationRefused(f"dead letters of queue {name} are being retried already")
        if self._is_closed:
            raise OperationRefused("the broker stops")
        matched = len(sequences) + done.orphaned.total() + done.crowded.total()
        job = RetryJob(queue=name, rate=rate, matched=matched)
        job = self._jobs[name] = _job(job, done, running=bool(sequences))
        if found is not None and sequences:
            work = self._retry_slowly(job, found[0], sequences, done)
            task = asyncio.get_running_loop().create_task(work)
            self._running[name] = task
            task.add_done_callback(partial(self._ended, name))
        return job

    def retry_job(self, name: str) -> RetryJob:
        """The one that runs, or ended last."""
        self._find(name)
        if name not in self._jobs:
            raise NotFound("no retry with a rate has been started")
        return self._jobs[name]

    def stop_retry(self, name: str) -> RetryJob:
        """End the one that runs."""
        self._find(name)
        if not self._is_running(name):
            raise NotFound("no retry runs")
        self._stop(name)
        return self._jobs[name]

    def _stop(self, name: str) -> None:
        if self._is_running(name):
            self._running.pop(name).cancel()
            self._jobs[name] = replace(self._jobs[name], running=False)

    def close(self) -> None:
        """What goes on by itself ends, and nothing more begins."""
        self._is_closed = True
        for name in list(self._running):
            self._stop(name)

    def _is_running(self, name: str) -> bool:
        task = self._running.get(name)
        return task is not None and not task.done()

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._running.get(name) is task:
            del self._running[name]
        if not task.cancelled() and task.exception() is not None:
            LOG.error("retry of dead letters of queue %s ended: %s", name, task.exception())
            if name in self._jobs:
                self._jobs[name] = replace(self._jobs[name], running=False)

    async def _retry_slowly(self, job: RetryJob, dead: Queue, sequences: list[int], found: Returned) -> None:
        loop = asyncio.get_running_loop()
        began_s, done = loop.time(), 0
        while done < len(sequences):
            due = min(len(sequences), done + PIECE, int((loop.time() - began_s) * job.rate) + 1)
            if due > done:
                found.add(self._put_back(dead, sequences[done:due]))
                done = due
                await self._commits()
                self._jobs[job.queue] = _job(job, found, running=True)
            if done < len(sequences):
                next_s = began_s + done / job.rate
                await asyncio.sleep(max(min(SLOW_PIECE_S, 1 / job.rate), next_s - loop.time()))
        self._jobs[job.queue] = _job(job, found, running=False)

    def _put_back(self, dead: Queue, sequences: Sequence[int]) -> Returned:
        """In the present tick."""
        now_ms = self._ticks.look_at_clock()
        name = dead.settings.name
        if self._core.find(name) is not dead:
            return Returned()
        return self._core.retry_dead_letters(name, sequences, now_ms, groups_max=self._groups_max)

    def _check_groups(self, dead: Queue, sequences: Sequence[int]) -> None:
        """Whoever puts a single dead letter back is told when that would make a group past the limit. Raises
        Refused."""
        ways: dict[str, set[str]] = {}
        for letter in filter(None, map(dead.dead_letter, sequences)):
            ways.setdefault(letter.queue, set()).add(letter.group)
        for name, groups in ways.items():
            queue = self._core.find(name)
            if queue is None:
                continue  # orphaned: they stay
            new = groups - queue.groups.keys() - {""}
            if new and len(queue.groups) + len(new) > self._groups_max:
                raise OperationRefused(
                    f"dead letters in {dead.settings.name} are for group {min(new)[:80]!r} of queue {name}, which is"
                    f" not there any more, and with {len(queue.groups)} consumer groups there is no room for it"
                    f" (queues.groups_max is {self._groups_max})"
                )

    async def _search_ways_back(
        self, dead: Queue, wanted: LetterFilter, limit: int | None = None
    ) -> tuple[list[int], Returned]:
        """As `_search`, up to `limit` of those that can go back. The others are counted by their queue: they are in
        nobody's way."""
        found: list[int] = []
        stay = Returned()
        founded: dict[str, set[str]] = {}
        after = 0
        while limit is None or len(found) < limit:
            some, after = letters_after(dead, wanted, after, LOOKED_AT_MAX)
            for sequence in some:
                if len(found) == limit:
                    break
                letter = dead.dead_letter(sequence)
                if letter is None:
                    continue
                queue, new = self._core.find(letter.queue), founded.setdefault(letter.queue, set())
                if queue is None:
                    stay.orphaned[letter.queue] += 1
                elif dead.is_held(sequence) or self._has_room(queue, letter.group, new):
                    found.append(sequence)  # one that is held takes nobody's room
                else:
                    stay.crowded[letter.queue] += 1
            if not after:
                break
            await asyncio.sleep(0)
        return found, stay

    def _has_room(self, queue: Queue, group: str, founded: set[str]) -> bool:
        """Whether the queue has the group or may have it, with those that are `founded` by what goes back before; it is
        one of these then."""
        if not group or group in queue.groups or group in founded:
            return True
        if len(queue.groups) + len(founded) >= self._groups_max:
            return False
        founded.add(group)
        return True

    def _letters(self, name: str, wanted: LetterFilter) -> tuple[Queue, LetterFilter] | None:
        """The queue that has the dead letters of another, and which of them are its own; None when it is not there
        yet."""
        queue = self._find(name)
        if kind_of(name) is QueueKind.DEAD_LETTERS:
            return queue, wanted
        dead = self._core.find(queue.settings.dead_letter_queue)
        return None if dead is None else (dead, replace(wanted, queue=name))

    def _find(self, name: str) -> Queue:
        queue = self._core.find(name)
        self._check_here(name)
        if queue is None:
            raise NotFound(f"there is no queue {name[:255]!r}")
        return queue

    async def _durable(self) -> None:
        """Wait for the commit of what was decided up to now, but not for ever: who asks holds a connection. Raises
        StoreUnavailable."""
        try:
            async with asyncio.timeout(STORE_WAIT_S):
                await self._commits()
        except TimeoutError:
            raise StoreUnavailable(
                f"the store has not confirmed it in {STORE_WAIT_S:g} s; it is tried again until it does"
            ) from None

    async def _read(self, queue: Queue, numbers: Mapping[int, int]) -> Mapping[int, ShownBody | None]:
        """Of these messages by offset. Raises StoreError."""
        if not numbers:
            return {}
        wanted, found = numbers.keys(), dict[int, ShownBody | None]()
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def then(bodies: Mapping[int, Message | None] | StoreError) -> None:
            if answered.done():  # who asked may have left
                return
            if isinstance(bodies, StoreError):
                answered.set_exception(bodies)
                return
            found.update(
                (offset, None if body is None else shown_body(body)) for offset, body in bodies.items()
            )
            if wanted <= found.keys():
                answered.set_result(None)

        self._bodies.ask(queue.generation, sorted(numbers.items()), then)
        try:
            async with asyncio.timeout(STORE_WAIT_S):
                await answered
        except TimeoutError:
            raise StoreUnavailable(f"the store has not answered in {STORE_WAIT_S:g} s") from None
        return found


class _Staying(TypedDict):
    held: int
    orphaned: int
    missing_queues: Sequence[str]
    crowded: int
    full_queues: Sequence[str]


def _staying(done: Returned) -> _Staying:
    """What did not go back."""
    return _Staying(
        held=done.held,
        orphaned=done.orphaned.total(),
        missing_queues=tuple(nsmallest(QUEUES_NAMED_MAX, done.orphaned)),
        crowded=done.crowded.total(),
        full_queues=tuple(nsmallest(QUEUES_NAMED_MAX, done.crowded)),
    )


def _job(of: RetryJob, done: Returned, *, running: bool) -> RetryJob:
    return replace(of, retried=done.put_back, running=running, **_staying(done))


def _check_unused(queue: Queue) -> None:
    """Raises Refused when it has consumers."""
    consumers = sum(len(group.members) for group in queue.groups.values())
    if consumers:
        raise OperationRefused(
            f"queue {queue.settings.name} has {consumers} consumer{'s' if consumers > 1 else ''}; they have to"
            " unsubscribe before it can be deleted"
        )


async def _search(dead: Queue, wanted: LetterFilter, limit: int | None = None, after: int = 0) -> list[int]:
    """Sequences of dead letters that are wanted, the oldest first. Clients have their turn in between, so some may be
    gone when it returns."""
    found: list[int] = []
    while limit is None or len(found) < limit:
        some, after = letters_after(
            dead, wanted, after, LOOKED_AT_MAX if limit is None else limit - len(found)
        )
        found += some
        if not after:
            break
        await asyncio.sleep(0)
    return found


async def _search_id(dead: Queue, wanted: LetterFilter, letter_id: str) -> list[int]:
    """By its own id at once; by the one that the message had it takes a search."""
    own = dead.sequence_of("", letter_id)
    letter = dead.dead_letter(own) if own in dead.entries else None
    if letter is not None and wanted.matches(dead.message_id(own), letter):
        return [own]
    return await _search(dead, wanted)
