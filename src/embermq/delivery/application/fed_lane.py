"""One partition of an application log, read for one session: what comes is sorted out, and waits for the client."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Set

from embermq.delivery.application.lane import LogLane
from embermq.delivery.application.positions import Positions
from embermq.delivery.application.window import PackEntry
from embermq.ports.application_feed import FeedEntry
from embermq.sessions.session import Session


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
            if packed is not None and self.is_due(packed, is_moved=entry.is_moved):
                self.waiting.append(packed)
            else:
                freed += entry.size
        self.read_to = entries[-1].offset + 1
        self.follow()
        return freed

    def is_due(self, entry: PackEntry, *, is_moved: bool) -> bool:
        """Whether the client is to get it; False for a repeat, and for what was settled before. Asked once of each
        entry, in the order of the log."""
        take = self.positions.take_moved if is_moved else self.positions.take
        return take(entry.offset, entry.source) and entry.offset >= self.resumed_to

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
