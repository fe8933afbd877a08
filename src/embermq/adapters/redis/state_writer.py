"""What ticks want kept besides their records, as operations of Redis: parts that share a link and count together.

A part asks for its operations with `Unanswered.asked(owner)`, between the beginning of a tick and its end. All keys of
an owner share a slot, and the link keeps the order of its operations when all of them name the same key to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct

from embermq.adapters.redis import (
    application_writer,
    applications,
    queue_store,
    queue_writer,
    session_writer,
)
from embermq.adapters.redis.answers import Answer
from embermq.adapters.redis.application_writer import RedisApplicationWriter
from embermq.adapters.redis.floor_marks import MARK, MARK_S, FloorMarks
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.log_notes import CLUSTER, PEER
from embermq.adapters.redis.owners import GroupOwners, Owners
from embermq.adapters.redis.queue_owners import QueueOwners
from embermq.adapters.redis.queue_writer import RedisQueueWriter
from embermq.adapters.redis.script import read_script
from embermq.adapters.redis.session_writer import RedisSessionWriter
from embermq.adapters.redis.unanswered import Unanswered
from embermq.adapters.redis.wire import ignore
from embermq.formats.redis_layout import (
    LOG_KEY,
    REPLAYS_KEY,
    SCHEMA_KEY,
    client_keys,
    encode_retained,
    encode_schema,
    retained_key,
)
from embermq.formats.redis_queues import queue_keys
from embermq.model.session import RetainedRow
from embermq.model.session_writes import QueueRow
from embermq.model.tick_writes import TickWrites
from embermq.ports.state_writer import StateWriter
from embermq.ports.tick_store import Stored

NOTE_LOG = read_script("note_log")
NOTE_REPLAYS = read_script("note_replays")
SCRIPTS = (
    *session_writer.SCRIPTS,
    *application_writer.SCRIPTS,
    *applications.SCRIPTS,
    *queue_writer.SCRIPTS,
    *queue_store.SCRIPTS,
    MARK,
    NOTE_LOG,
    NOTE_REPLAYS,
)
"""All that the link has to know."""

Post = Callable[[Callable[[], None]], object]
IsLost = Callable[[str], bool]
"""Whether a key was at a server that has been emptied."""


class WriterStatistics(Struct, frozen=True):
    """Counts since the start."""

    fenced: int
    """Operations that Redis refused because it holds a newer generation or epoch of their owner."""
    refused: int
    """Operations that Redis will never do; each is in the log."""


class RedisStateWriter(StateWriter):
    """See the port. `post` runs a callable soon, on the broker's own thread; `server_id` says in the store which broker
    has a session."""

    def __init__(
        self,
        link: RedisLink,
        owners: Owners,
        post: Post,
        server_id: str = "",
        *,
        queues: QueueOwners | None = None,
        mark_s: float = MARK_S,
    ) -> None:
        """`owners` and `queues` are those that the stores of sessions and of queues have filled."""
        self._link = link
        self._post = post
        self._log = link.prefix + LOG_KEY
        self._unanswered = unanswered = Unanswered()
        self._marks = FloorMarks(link, self._trim, mark_s)
        self.groups = GroupOwners(link.prefix)
        self.applications = RedisApplicationWriter(link, owners, self.groups, unanswered)
        self._sessions = RedisSessionWriter(
            link, owners, unanswered, self.applications, self._marks, server_id=server_id
        )
        self._queues = RedisQueueWriter(
            link, queues or QueueOwners(link.prefix), unanswered, self._marks.look_at
        )

    def submit(self, writes: TickWrites, base: int, log_end: int, stored: Stored) -> None:
        all_asked = self._unanswered.begin_tick(stored)
        self._sessions.submit(writes.session, base, log_end, writes.records)
        self.applications.submit(writes)
        self._queues.submit(writes.queues, base, log_end, writes.records)
        self._sessions.end(writes.session.deleted_sessions)
        if writes.replays:
            args = [word for replay in writes.replays.items() for word in replay]
            answered = self._unanswered.asked_for_nobody()
            key = self._link.prefix + REPLAYS_KEY
            self._link.ask(key, NOTE_REPLAYS, (key,), args, answered)
        self._post(all_asked)  # never before this call returns, also when there was nothing to do

    def when_stored(self, owner: int, call: Stored) -> None:
        self._unanswered.when_stored(owner, call)

    def note_log(self, end: int, generations: int, now_ms: int, noted: Stored) -> None:
        args = (end, generations, now_ms, "")
        self._link.ask(self._log, NOTE_LOG, (self._log,), args, partial(self._noted, noted))

    def note_peer(self, slot: int, position: int, end: int, noted: Stored) -> None:
        """The log of another slot is taken in up to a position, while this one ends so; of what is above the one no
        copy stands below the other."""
        words = ("HSET", self._log, f"{PEER}{slot}", f"{position}:{end}")
        self._link.command(self._log, words, lambda _: noted())

    def note_end(self, end: int, *, in_order: bool) -> None:
        self._link.ask(self._log, NOTE_LOG, (self._log,), (end, 0, 0, int(in_order)), self._unanswered.count)
        self._marks.put_last()

    def _noted(self, noted: Stored, answer: Answer) -> None:
        self._unanswered.count(answer)
        noted()

    def watch(self, emptied: Callable[[IsLost], None]) -> None:
        """From now on `emptied` is called, on the broker's own thread, when a server has been emptied, with what tells
        whether it had a key."""
        self._marks.on_emptied = partial(self._emptied, emptied)

    def _emptied(self, emptied: Callable[[IsLost], None], mark: str) -> None:
        link = self._link
        server = link.server_of(mark)

        def is_lost(key: str) -> bool:
            return link.server_of(key) is server

        self._sessions.forget_stored(is_lost)
        self._queues.forget_stored(is_lost)
        self._marks.begin_anew(mark)
        emptied(is_lost)

    @property
    def refused_rows(self) -> dict[int, dict[int, QueueRow]]:
        """Rows that emptied servers did not take, by generation and place: to be put once more, and then forgotten."""
        return self._sessions.refused_rows

    def retain(self, rows: Iterable[RetainedRow]) -> None:
        """Put retained messages that it may not have any more; later ones stay."""
        for row in rows:
            key = retained_key(row.topic, self._link.prefix)
            args = (row.offset, encode_retained(row))
            self._link.ask(key, session_writer.RETAIN, (key,), args, self._unanswered.count)

    def put_anew(self, identity: str, end: int, generations: int, cluster: str) -> None:
        """All that is known has been written anew: the next start may believe what is there. The log has this
        identity and belongs to this cluster; see `note_log`."""
        key = self._link.prefix + SCHEMA_KEY
        self._link.command(key, ("SET", key, encode_schema(identity)), ignore)
        self._link.command(self._log, ("HSET", self._log, CLUSTER, cluster), ignore)
        args = (end, generations, 0, 0)
        self._link.ask(self._log, NOTE_LOG, (self._log,), args, self._unanswered.count)
        self._marks.end_anew()

    def look(self) -> None:
        self._marks.look()

    def forget_below(self, floor: int) -> None:
        self._marks.put(floor)

    @property
    def floor(self) -> int:
        return self._marks.settled_floor

    def _trim(self) -> None:
        """All masters have a newer mark."""
        self._sessions.trim()
        self._queues.trim(self._marks.settled_floor)

    @property
    def waiting_bytes(self) -> int:
        return self._link.waiting_bytes + self._queues.held_bytes

    def is_away(self, client_id: str) -> bool:
        return self._link.is_away(client_keys(client_id, self._link.prefix).session)

    def is_queue_away(self, name: str) -> bool:
        return self._link.is_away(queue_keys(name, self._link.prefix).queue)

    @property
    def waiting_ticks(self) -> int:
        """Ticks that are not stored as a whole yet."""
        return self._unanswered.ticks

    @property
    def failing(self) -> str:
        return self._link.failing or self._marks.trouble

    @property
    def estranged(self) -> str:
        """That Redis does not hold a session or a queue of ours any more, "" while it does. That does not mend by
        itself."""
        return self._sessions.estranged or self._queues.estranged

    def statistics(self) -> WriterStatistics:
        return WriterStatistics(self._unanswered.fenced, self._unanswered.refused)

    def close(self) -> None:
        """The link is closed by who opened it."""
        self._unanswered.close()
