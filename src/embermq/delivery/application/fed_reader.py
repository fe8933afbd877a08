"""One reader of a log in a store of its own: what comes is sorted out and waits until the client may have it."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from embermq.delivery.application.lane import LogLane
from embermq.delivery.application.positions import Positions
from embermq.delivery.application.start_position import StartPosition
from embermq.delivery.application.window import PackEntry
from embermq.model.session_writes import QueueState
from embermq.ports.application_feed import ApplicationFeed, FeedEntry, FeedTaker
from embermq.sessions.session import Delivery, Session

UNKNOWN = -1
"""In place of a position in the message log."""


class ReaderOwner(Protocol):
    """Whose reader it is."""

    def came(self, reader: FedReader) -> None:
        """Something may wait in it now."""

    def missed(self, reader: FedReader, count: int) -> None:
        """So many records were deleted before they were read; the feed has logged that."""

    def unreadable(self, reader: FedReader, offset: int, problem: str) -> None:
        """A record of its log cannot be understood: it is passed over."""

    def gone(self, reader: FedReader, reason: str) -> None:
        """Its log is not there any more."""


class FedReader(LogLane, FeedTaker):
    """Reads the application log of one connected session, whose log is partition 0. Offsets are those of the log."""

    __slots__ = (
        "_origins",
        "_owner",
        "_sizes",
        "feed",
        "known",
        "last_packet_id",
        "log",
        "marks",
        "packed",
        "place",
        "positions",
        "read_to",
        "reported",
        "resend",
        "resumed_to",
        "trimmed_to",
        "waiting",
        "written_base",
    )

    def __init__(
        self,
        owner: ReaderOwner,
        session: Session,
        log: str,
        standing: StartPosition,
    ) -> None:
        stored, marks = standing.place.positions, standing.marks
        super().__init__(session, stored.committed_offset)
        self._owner = owner
        self.log = log
        self.place = standing.place
        """What was stored when it began."""
        self.marks = marks
        self.last_packet_id = standing.packet_id
        """Given on the connections before."""
        self.resend: list[Delivery] = []
        """What the marks stand for, when that is known."""
        self.positions = Positions(stored, (mark.offset for mark in marks if mark.state == QueueState.DONE))
        self.resumed_to = max([stored.committed_offset, *(mark.offset + 1 for mark in marks)])
        """What stands before it was sent, or not for the client: it is read again for its source positions alone."""
        self.next_offset = self.resumed_to
        self.read_to = stored.base_offset
        """Everything before it has come."""
        self.waiting: deque[PackEntry] = deque()
        """For the client, in order, not sent."""
        self._sizes: deque[int] = deque()
        """Of what waits, in bytes as the feed counts."""
        self._origins: deque[int] = deque()
        """Of what waits."""
        self.known: set[int] = set()
        """What comes of them is a repeat, whatever positions say."""
        self.packed: dict[int, int] = {}
        """By offset, of the pack that is being sent."""
        self.feed: ApplicationFeed
        self.reported: object = None
        """The pipeline's report that it has heard last."""
        self.written_base = self.trimmed_to = stored.base_offset

    # From the feed

    def take(self, partition: int, entries: list[FeedEntry]) -> None:
        missing = entries[0].offset - max(self.read_to, self.resumed_to)
        if missing > 0:
            self._owner.missed(self, missing)
        freed = 0
        for entry in entries:
            packed = self._judge(entry)
            if packed is None:
                freed += entry.size
            else:
                self.waiting.append(packed)
                self._sizes.append(entry.size)
                self._origins.append(UNKNOWN if entry.source is None else entry.source)
        self.read_to = entries[-1].offset + 1
        self.feed.release(freed)
        self.follow()
        self._owner.came(self)

    def gone(self, reason: str) -> None:
        self._owner.gone(self, reason)

    def _judge(self, entry: FeedEntry) -> PackEntry | None:
        """None for what is not to be sent: a repeat, an earlier life's record, one that was settled before."""
        at, source, record = entry.offset, entry.source, entry.record
        if record is None or source is None:
            self.positions.skip(at)
            if at >= self.resumed_to:
                self._owner.unreadable(self, at, entry.problem or "it does not say where it comes from")
            return None
        stamped = self.stamped(entry)
        if stamped is None or source in self.known:
            self.positions.skip(at)
            return None
        take = self.positions.take_moved if entry.is_moved else self.positions.take
        is_new = take(at, source)
        return stamped if is_new and at >= self.resumed_to else None

    def stamped(self, entry: FeedEntry) -> PackEntry | None:
        """An entry as the session is to get it; None when it is not for this session."""
        record, generation = entry.record, self.session.generation
        if record is not None:
            for stamp in record.stamps:
                if stamp.generation == generation:
                    identifiers = stamp.subscription_identifiers
                    return PackEntry(
                        entry.offset, record.message, stamp.qos, stamp.retain_as_published, identifiers
                    )
        return None

    # To the client

    def next_pack(self, room: int, bytes_max: int) -> list[PackEntry]:
        """What may be sent now; the feed may bring as much more."""
        pack: list[PackEntry] = []
        size = 0
        while self.waiting and len(pack) < room and size < bytes_max:
            entry = self.waiting.popleft()
            pack.append(entry)
            size += self._sizes.popleft()
            self.packed[entry.offset] = self._origins.popleft()
        self.feed.release(size)
        return pack

    def follow(self) -> None:
        """With nothing waiting, what has come and is not for the client is passed."""
        if not self.waiting:
            self.next_offset = max(self.next_offset, self.read_to)

    def close(self) -> None:
        """Nothing comes any more."""
        self.feed.close()
        self.waiting.clear()
        self._sizes.clear()
        self._origins.clear()
