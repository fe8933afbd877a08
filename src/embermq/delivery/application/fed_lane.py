"""One partition of an application log, read for one session, or the one that a client's own log has."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

from msgspec import Struct

from embermq.delivery.application.lane import LogLane
from embermq.delivery.application.log_tail import LogTail, TailsEnd
from embermq.delivery.application.positions import Positions, SourceOffsets
from embermq.delivery.application.window import PackEntry
from embermq.model.application_positions import UNCOUNTED, ReaderPosition, StoredPositions
from embermq.model.session_writes import QueueState
from embermq.model.tick_writes import ApplicationMark
from embermq.model.unacknowledged import WhyUnacknowledged
from embermq.ports.application_feed import ApplicationFeed, FeedEntry, FeedTaker
from embermq.ports.application_logs import FoundLog
from embermq.ports.reader_positions import StoredReader
from embermq.sessions.packet_ids import later_id
from embermq.sessions.session import Delivery, Session

if TYPE_CHECKING:
    from embermq.delivery.application.fed_readers import FedReaders


_SENT, _RELEASED = QueueState.SENT, QueueState.RELEASED


class StartPosition(Struct, frozen=True):
    """`marks` are of what is in the log, `gone` are those of what is not there any more. `trouble` says what an
    operator has to know, "" when all is well."""

    place: ReaderPosition
    marks: tuple[ApplicationMark, ...] = ()
    gone: tuple[ApplicationMark, ...] = ()
    restarts: bool = False
    trouble: str = ""
    is_new: bool = False
    """Nothing was ever the client's that came before."""

    @property
    def packet_id(self) -> int:
        """The last that was given, 0 when none is known. What is lost may be with the client, which would take for it
        what came with its packet id."""
        marks = self.gone or self.marks
        return later_id(marks[-1].packet_id if marks else 0, self.place.packet_id)


def standing(stored: StoredReader, found: FoundLog, *, subscribed: bool) -> StartPosition:
    """What was never stored begins at the log's end: nobody has subscribed yet, and what stands before it is an earlier
    life's. When the session has subscriptions it was stored, and is lost."""
    end = found.ends.get(0, 0)
    place = stored.position
    if place is None and subscribed:
        fresh = ReaderPosition(found.identity, 0, StoredPositions(), settled=UNCOUNTED)
        text = "is read from its beginning: how far its client had come is not known any more"
        return StartPosition(fresh, restarts=True, trouble=text)
    if place is None:
        return StartPosition(ReaderPosition(found.identity, 0, StoredPositions(end, end)), is_new=True)
    positions = place.positions
    highest = max([positions.committed_offset, *(mark.offset + 1 for mark in stored.marks)])
    if place.log_id != found.identity:
        return cut_at(stored, found, 0, "is another one than the client was sent from")
    if highest > end:
        text = f"ends at {end}, the client was sent what stood before {highest}"
        return cut_at(stored, found, end, text)
    return StartPosition(place, stored.marks)


def cut_at(stored: StoredReader, found: FoundLog, end: int, trouble: str) -> StartPosition:
    """Of what is known of the log, that holds which speaks of offsets below `end`: all of another log is unread. Floors
    and what was served without it speak of the message log, and what stands before `end` is read for its source
    positions. What was early may have had its place behind: it is gone as well."""
    place = stored.position
    assert place is not None
    at = place.positions
    positions = StoredPositions(min(at.base_offset, end), min(at.committed_offset, end), at.floors)
    packet_id = later_id(stored.marks[-1].packet_id if stored.marks else 0, place.packet_id)
    bound = {mark.source for mark in stored.marks}
    early = [
        ApplicationMark(-1, end, one.packet_id, _RELEASED if one.is_released else _SENT, source)
        for source, one in place.early.items()
        if source not in bound
    ]
    return StartPosition(
        ReaderPosition(found.identity, packet_id, positions, place.served, settled=UNCOUNTED),
        tuple(mark for mark in stored.marks if mark.offset < end),
        (*(mark for mark in stored.marks if mark.offset >= end), *early),
        restarts=True,
        trouble=trouble,
    )


class FedLane(LogLane):
    """Offsets are those of the partition. An entry is a repeat by its source position alone (`positions`), wherever it
    comes from."""

    __slots__ = ("is_over", "log", "number", "positions", "read_to", "reported", "resumed_to", "waiting")

    def __init__(
        self, session: Session, log: str, positions: Positions, *, number: int = 0, name: str = ""
    ) -> None:
        super().__init__(session, positions.committed_offset, name)
        self.log = log
        self.number = number
        self.positions = positions
        self.resumed_to = positions.committed_offset
        """What stands before it was sent, or not for the client: it is read again for its source positions alone."""
        self.read_to = positions.base_offset
        """Everything before it has come."""
        self.waiting: deque[PackEntry] = deque()
        """For the client, in order, not sent."""
        self.reported: object = None
        """The pipeline's report that it has heard last."""
        self.is_over = False

    @property
    def claims(self) -> Set[int]:
        """Offsets of what another session has got."""
        return frozenset()

    @abstractmethod
    def wanted(self, entry: FeedEntry) -> PackEntry | None:
        """An entry as the session is to get it; None when it is not for this session."""

    @abstractmethod
    def unreadable(self, offset: int, source: int, problem: str) -> None:
        """A record of its log cannot be understood: it is passed over. `source` is -1 when that is not known."""

    def vanished(self, source: int) -> None:
        """A record of its log is not there any more: it is passed over."""

    def receive(self, entries: list[FeedEntry]) -> int:
        """Sort out what has come; returns the bytes of what is not to be sent."""
        freed = 0
        for entry in entries:
            packed = self._packed(entry)
            if packed is not None and self.is_due(packed):
                self.waiting.append(packed)
            else:
                freed += entry.size
        self.read_to = entries[-1].offset + 1
        self.follow()
        return freed

    def is_due(self, entry: PackEntry) -> bool:
        """Whether the client is to get it; False for a repeat, and for what was settled before. Asked once of each
        entry, in the order of the log."""
        return self.positions.take(entry.offset, entry.source) and entry.offset >= self.resumed_to

    def _packed(self, entry: FeedEntry) -> PackEntry | None:
        """None for what is not for this session, as an earlier life's record, and for what cannot be read."""
        at, source = entry.offset, entry.source
        if entry.record is None or source is None:
            self.positions.skip(at)
            if at >= self.resumed_to and source is None:
                self.unreadable(at, -1, entry.problem or "it does not say where it comes from")
            elif at >= self.resumed_to and entry.problem:
                self.unreadable(at, source or 0, entry.problem)
            elif at >= self.resumed_to:
                self.vanished(source or 0)
            return None
        packed = self.wanted(entry)
        if packed is None:
            self.positions.skip(at)
        return packed

    def receive_live(self, entries: list[PackEntry]) -> None:
        """Entries that did not come by the feed."""
        take = self.positions.take
        self.waiting.extend(
            one for one in entries if take(one.offset, one.source) and one.offset >= self.resumed_to
        )

    def next_pack(self, room: int, bytes_max: int) -> tuple[list[PackEntry], int]:
        """What may be sent now, and the bytes that the feed may bring more; what another session has got meanwhile is
        passed over."""
        pack: list[PackEntry] = []
        size = 0
        claims, waiting = self.claims, self.waiting
        while waiting and len(pack) < room and size < bytes_max:
            entry = waiting.popleft()
            size += entry.size
            if entry.offset not in claims:
                pack.append(entry)
        return pack, size

    @property
    def wants_report(self) -> bool:
        """Whether a report of the pipeline would move anything."""
        return self.positions.remembered > 0

    def hear(self, reported: Mapping[int, int], end: int) -> None:
        """The pipeline has reported; `end` is that of the log, asked for afterwards."""
        self.reported = reported
        self.positions.complete(reported, end)

    def follow(self) -> None:
        """With nothing waiting, what has come and is not for the client is passed."""
        if not self.waiting:
            self.next_offset = max(self.next_offset, self.read_to)

    def clear(self) -> int:
        """Nothing is sent any more; returns the bytes of what waited."""
        self.is_over = True
        freed = sum(entry.size for entry in self.waiting)
        self.waiting.clear()
        return freed


class FedReader(FedLane, FeedTaker):
    """Reads the application log of one connected session, whose log is partition 0."""

    __slots__ = (
        "_readers",
        "feed",
        "is_counted",
        "known",
        "last_packet_id",
        "place",
        "resend",
        "tail",
        "trimmed_to",
        "written_base",
    )

    def __init__(self, readers: FedReaders, session: Session, log: str, standing: StartPosition) -> None:
        stored, marks = standing.place.positions, standing.marks
        settled = (mark.offset for mark in marks if mark.state == QueueState.DONE)
        positions = SourceOffsets if readers.offsets_are_sources else Positions
        super().__init__(session, log, positions(stored, settled))
        self.settled = max(0, standing.place.settled)
        self.is_counted = standing.place.settled >= 0
        """Whether all that was sent below the floor is in `settled`."""
        self.resumed_to = self.next_offset = max([self.floor, *(mark.offset + 1 for mark in marks)])
        if readers.offsets_are_sources:
            self.read_to = self.resumed_to
        self._readers = readers
        self.place = standing.place
        """What was stored when it began."""
        self.last_packet_id = 0
        """What the sequence goes on from, when the session does not know; else 0."""
        self.resend: list[Delivery] = []
        """What the marks stand for, when that is known."""
        self.known: set[int] = set()
        """What comes of them is a repeat, whatever positions say."""
        self.feed: ApplicationFeed
        self.tail: LogTail | None = None
        """Where the log's end is handed on."""
        self.written_base = self.trimmed_to = stored.base_offset

    # From the feed

    def take(self, partition: int, entries: list[FeedEntry]) -> None:
        missing = entries[0].offset - max(self.read_to, self.resumed_to)
        if missing > 0:
            self._readers.missed(self, missing)
        freed = self.receive(entries)
        if freed:
            self.feed.release(freed)
        self._readers.came(self)

    @property
    def has_more(self) -> bool:
        """Whether there may be something that does not wait."""
        return self.feed.has_more(self.read_to) or (
            self.tail is not None and self.tail.has_more(self.read_to)
        )

    def fill(self, limit: int) -> bool:
        """Have something to send; False when nothing may be sent now."""
        if not self.waiting:
            self._pull(limit)
        return bool(self.waiting)

    def _pull(self, limit: int) -> None:
        """Ask for what is there, until something waits for the client."""
        while not self.waiting:
            begun_at, tail = self.read_to, self.tail
            if tail is not None and tail.has_more(begun_at):
                packed, end = tail.take(begun_at, limit)
                self.receive_live(packed)
            elif self.feed.has_more(begun_at):
                entries, end = self.feed.pull(begun_at, limit)
                if entries:
                    self.receive(entries)
                if tail is not None:
                    tail.forget_below(end)
            else:
                return
            self.read_to = max(self.read_to, end)
            self.follow()
            if self.read_to == begun_at:
                return  # it cannot be read now

    def gone(self, reason: str) -> None:
        self._readers.gone(self, reason)

    def unreadable(self, offset: int, source: int, problem: str) -> None:
        self._readers.unreadable(self, offset, source, problem)

    def vanished(self, source: int) -> None:
        self._readers.missed(self, 1)
        self._readers.unacknowledged(self, source, WhyUnacknowledged.UNREADABLE)

    def wanted(self, entry: FeedEntry) -> PackEntry | None:
        return None if entry.source in self.known else self.stamped(entry)

    def stamped(self, entry: FeedEntry) -> PackEntry | None:
        """An entry as it is stamped for the session; None when it is not, as that of an earlier life."""
        record, generation = entry.record, self.session.generation
        if record is not None:
            for stamp in record.stamps:
                if stamp.generation == generation:
                    return PackEntry(
                        entry.offset,
                        record.message,
                        stamp.qos,
                        stamp.retain_as_published,
                        stamp.subscription_identifiers,
                        entry.size,
                        -1 if entry.source is None else entry.source,
                    )
        return None

    def begin(self, end: TailsEnd, log_end: int) -> list[Delivery]:
        """A connection begins, with the log's tail; returns what is to be resent besides `resend`."""
        if self._readers.offsets_are_sources:
            # What is being handed on at this moment may be below it: that comes by the feed.
            self.tail = LogTail(end, log_end)
        return []

    def stored_place(self) -> ReaderPosition:
        """What is to be stored of its position now."""
        stored = self.positions.stored()
        self.written_base = stored.base_offset
        settled = self.settled if self.is_counted else UNCOUNTED
        return ReaderPosition(self.place.log_id, self.session.last_packet_id, stored, settled=settled)

    def close(self) -> None:
        """Close the feed: nothing comes any more."""
        self.feed.close()
        self.clear()
        if self.tail is not None:
            self.tail.clear()
