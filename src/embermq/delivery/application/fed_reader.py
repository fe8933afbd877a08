"""The lane of a client's own log, which has one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embermq.delivery.application.fed_lane import FedLane
from embermq.delivery.application.log_tail import LogTail, TailsEnd
from embermq.delivery.application.positions import Positions, SourceOffsets
from embermq.delivery.application.start_position import StartPosition
from embermq.delivery.application.window import PackEntry
from embermq.model.application_positions import UNCOUNTED, ReaderPosition
from embermq.model.session_writes import QueueState
from embermq.model.unacknowledged import WhyUnacknowledged
from embermq.ports.application_feed import ApplicationFeed, FeedEntry, FeedTaker
from embermq.sessions.session import Delivery, Session

if TYPE_CHECKING:
    from embermq.delivery.application.fed_readers import FedReaders


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
