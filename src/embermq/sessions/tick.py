"""What gathers during one tick of the event loop: decisions that wait for the commit, and links to flush."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from msgspec import Struct, field

from embermq.access.authorization.rules import Principal
from embermq.formats.log_record import Origin
from embermq.model.message import Message, said_bytes
from embermq.model.tick_writes import TickWrites
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.tick_store import EVERYBODY
from embermq.routing.router import Match
from embermq.sessions.link import Link

if TYPE_CHECKING:
    from embermq.sessions.session import Session

Item = TypeVar("Item")
RecordFields = tuple[tuple[int, bytes], ...]
"""Of a record: see `formats.log_record`."""


class Verdict(Struct, frozen=True):
    """What the acknowledgement of a PUBLISH says; the text is for its reason string, "" for none. MQTT 3 is told
    nothing of it. `repeats` names the queue and the `dedup-id` of an earlier message that counts for this one, while
    that may still be refused."""

    code: ReasonCode
    text: str = ""
    repeats: tuple[str, str] | None = None
    owner: int = EVERYBODY
    """Of the data that has to be stored before this may be told; EVERYBODY: there is none."""


class PublishRefusal(Struct, frozen=True):
    """Why a PUBLISH is not taken. MQTT 5 is told; a client of MQTT 3 loses its connection."""

    code: ReasonCode
    text: str
    passes: bool = False
    """Whether the same message may be taken later."""
    is_of_queue: bool = False
    """Whether its queue takes no message at all: queues are switched off, or it is not there and is not made."""


class Own(Struct, frozen=True):
    """What the broker remembers of a message that no client waits for, a will: it is published again when its tick
    could not be stored. `principal` left it. Once `is_repeated`, those who keep nothing have got it."""

    origin: Origin
    principal: Principal
    is_repeated: bool = False
    fields: ClassVar[RecordFields] = ()


class Replayed(Struct, frozen=True):
    """A message that was in the log before, number `number` of the replay of this id, whose program waits for it: when
    its tick could not be stored the number counts no more. `fields` are carried in its record."""

    replay: str
    number: int
    fields: RecordFields = ()
    is_repeated: ClassVar[bool] = False

    def refused(self, replays: tuple[dict[str, int], ...], _: PublishRefusal) -> None:
        """Its tick could not be stored. Its program asks again: it has been told of nothing that was not stored."""
        for known in replays:
            known[self.replay] = min(self.number, known.get(self.replay, self.number))


class Asked(Struct):
    """A message that an operator publishes, who waits for what becomes of it: `refusal` says why it is not stored, once
    it `is_recorded`."""

    is_recorded: bool = False
    refusal: PublishRefusal | None = None
    is_repeated: ClassVar[bool] = False
    fields: ClassVar[RecordFields] = ()

    def refused(self, _: tuple[dict[str, int], ...], refusal: PublishRefusal) -> None:
        """Its tick could not be stored."""
        self.refusal = refusal


class Copied(Struct, frozen=True):
    """A message from this position of another node's log. `back` is told the position when its tick could not be
    stored: it is taken once more. `fields` are carried in its record. Once `is_repeated`, those who keep nothing have
    got it. Readers that are behind hold none up: they may be other nodes, which wait for this one to read."""

    position: int
    fields: RecordFields
    back: Callable[[int], None]
    is_repeated: bool = False

    def refused(self, _: tuple[dict[str, int], ...], __: PublishRefusal) -> None:
        """Its tick could not be stored."""
        self.back(self.position)


class Enqueued(Struct, frozen=True):
    """A message that waits in a durable queue for its record, number `record` of the tick. A repeat of `dedup_id`
    counts on it."""

    queue: str
    ticket: int
    record: int
    message: Message
    dedup_id: str | None


class Accepted(Struct, gc=False):
    """One PUBLISH that waits for its commit; `offset` is known from the receipt on.

    `record` is empty for a repeated QoS 2 PUBLISH: nothing to store, only an acknowledgement in its place; and for a
    PUBLISH that is refused, where `refusal` says why: it too is answered in its place. `verdict` is what a durable
    queue says of one that it has taken, with a record or without. `link` is None for what no client waits for, `own`
    tells then whose it is. `receiving` is where the packet id of a QoS 2 PUBLISH is remembered: the client may be gone
    before a refusal frees the id.
    """

    message: Message
    record: bytes
    match: Match
    link: Link | None
    packet_id: int
    offset: int = -1
    refusal: PublishRefusal | None = None
    receiving: set[int] | None = None
    verdict: Verdict | None = None
    own: Own | Replayed | Asked | Copied | None = None
    frame_key: tuple[bool, int, bool, tuple[int, ...]] | None = None
    frame: tuple[bytes, bytes, bytes] = (b"", b"", b"")
    counted_bytes: int = 0

    def said_bytes(self) -> int:
        """Those of the message, counted once for all receivers."""
        if not self.counted_bytes:
            self.counted_bytes = said_bytes(self.message)
        return self.counted_bytes


WaitingCall = tuple[int, Callable[[], None]]
"""An owner, and the call that waits until its data is durable."""


class Batch(Struct):
    """A tick on its way to the store."""

    writes: TickWrites = field(default_factory=TickWrites)
    accepted: list[Accepted] = field(default_factory=list)
    after_log: list[Callable[[], None]] = field(default_factory=list)
    """Calls that wait for the log's part alone."""
    after_commit: list[WaitingCall] = field(default_factory=list)
    """Calls that wait until what is stored of a session is durable, which may be several ticks later than the log; by
    the generation of that session, `ports.tick_store.EVERYBODY` for what waits for all sessions."""
    record_bytes: int = 0
    enqueued: list[Enqueued] = field(default_factory=list)

    def when_stored(self, generation: int, call: Callable[[], None]) -> None:
        """Make this call when everything that is decided of the session up to now is durable."""
        self.after_commit.append((generation, call))

    def when_all_stored(self, generations: Iterable[int], call: Callable[[], None]) -> None:
        """The same of several sessions: make the call when the last of them is durable."""
        left = set(generations)

        def stored(generation: int) -> None:
            left.discard(generation)
            if not left:
                call()

        for generation in sorted(left):
            self.when_stored(generation, partial(stored, generation))

    def waiting(self) -> list[WaitingCall]:
        """Hand over the calls: who remembers the batch holds no session by them."""
        waiting, self.after_commit = self.after_commit, []
        return waiting

    def is_empty(self) -> bool:
        """True when nobody waits for it and it would write nothing."""
        return not (self.accepted or self.after_commit or self.after_log) and self.writes.is_empty()


class Tick:
    """The present moment, shared by every part of the broker."""

    __slots__ = ("batch", "dirty", "now_ms", "offset_ms", "session_writes", "under_way", "wake", "writes")

    def __init__(self, now_ms: int = 0, offset_ms: int | None = 0) -> None:
        self.now_ms = now_ms
        """Broker time, in which everything is due: near Unix milliseconds. No step of the wall clock moves it."""
        self.offset_ms = offset_ms
        """What the wall clock is ahead of it, in milliseconds; None while that has not been set."""
        self.dirty: list[Link] = []
        self.under_way: TickWrites | None = None
        """What the tick wants that is being committed: stores do not show it yet."""
        self.wake: Callable[[], None] = _nobody_waits
        """Called before something is taken that comes by itself, as the answer of a store: whoever runs ticks sets the
        time and has one run soon."""
        self._begin()

    def _begin(self) -> None:
        self.batch = Batch()
        self.writes = self.batch.writes
        self.session_writes = self.writes.session

    @property
    def date_ms(self) -> int:
        """The wall clock, Unix milliseconds, for stamps; 0 while it has not been set."""
        return self.now_ms + self.offset_ms if self.offset_ms is not None else 0

    def to_date(self, moment_ms: int) -> int:
        """A moment of broker time as people know it."""
        return moment_ms + (self.offset_ms or 0)

    def from_date(self, date_ms: int) -> int:
        """A moment that somebody told as a date, in broker time."""
        return date_ms - (self.offset_ms or 0)

    def unstored(self) -> tuple[TickWrites, ...]:
        """What stores do not show yet, oldest first."""
        return (self.writes,) if self.under_way is None else (self.under_way, self.writes)

    def flush(self) -> None:
        """Have every link written that has something to say."""
        dirty = self.dirty
        if not dirty:
            return
        links = dirty[:]
        dirty.clear()
        for link in links:
            link.flush()

    def take(self) -> Batch:
        """Hand over what has gathered and start anew."""
        batch = self.batch
        self.under_way = self.writes
        self._begin()
        return batch

    def give_back(self, failed: Batch) -> None:
        """Put a batch that could not be committed in front of what has gathered since, without its records."""
        self.writes.put_before(failed.writes)
        self.batch.after_log[:0] = failed.after_log
        self.batch.after_commit[:0] = failed.after_commit


class StoredTogether(Generic[Item]):
    """What waits for one batch and goes to one link then, in one call. Of a link that has lost its session nothing
    goes: the next connection begins with what is stored."""

    def __init__(self, tick: Tick, give: Callable[["Session", Link, list[Item]], None]) -> None:
        self._tick = tick
        self._give = give
        self._batch: Batch | None = None
        self._items: dict[Link, list[Item]] = {}
        """Of the batch that gathers."""

    def add(self, session: "Session", link: Link, item: Item) -> None:
        """Give it when everything that is decided of the session up to now is durable."""
        batch = self._tick.batch
        if batch is not self._batch:
            self._batch, self._items = batch, {}
        items = self._items.get(link)
        if items is None:
            items = self._items[link] = []
            batch.when_stored(session.generation, partial(self._stored, session, link, items))
        items.append(item)

    def _stored(self, session: "Session", link: Link, items: list[Item]) -> None:
        if self._items.get(link) is items:
            del self._items[link]
        if session.link is link:
            self._give(session, link, items)


def _nobody_waits() -> None:
    """Before ticks are run."""
