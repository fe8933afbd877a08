"""What the message log has got for connected clients since they came: handed on as soon as it is committed.

A reader that has read to where its tail begins goes on with that, and no longer waits for the pipeline. What the
pipeline writes of the same records stands below what it has read then, and is not read; where it has offsets of its
own, `FencedReader` knows it. A tail that gets no room begins anew behind what it could not take: until the reader is
there, all comes by the pipeline again. Nothing of a tail outlives the connection, or has to: what is not known to the
store comes by the pipeline.
"""

from __future__ import annotations

from collections import deque

from embermq.delivery.application.window import PackEntry
from embermq.delivery.sending import BULK_BYTES_MAX
from embermq.routing.router import Receiver
from embermq.sessions.tick import Accepted

BYTES_MAX = 8 * 1024 * 1024
"""Of one tail. It has to hold more than what is stored in the time that the pipeline needs, or a reader that was behind
never gets to its begin."""
TOTAL_BYTES_MAX = 64 * 1024 * 1024
"""Of all tails. None takes more than is left free, so however many stand still, one that is read finds room: `n` full
ones have a share of 1 / (n + 1) each, and leave as much."""
ENTRY_BYTES = 300
"""What an entry takes besides its record."""


class TailsEnd:
    """How far the log has been handed on to all tails of a broker."""

    def __init__(self) -> None:
        self.offset = 0
        self.bytes = 0
        """In all tails."""
        self.bytes_max = BYTES_MAX


class LogTail:
    """Of one reader. All its entries from `begin` up to the end that was handed on are here, or have been taken."""

    __slots__ = ("_bytes", "_end", "_entries", "_is_early", "begin")

    def __init__(self, end: TailsEnd, begin: int, *, is_early: bool = False) -> None:
        """`is_early`: the reader's log has offsets of its own, which are not known yet; `~source` stands for them."""
        self._end = end
        self._is_early = is_early
        self._entries: deque[PackEntry] = deque()
        self._bytes = 0
        self.begin = begin

    def deliver(self, receiver: Receiver, accepted: Accepted) -> None:
        """A record that is committed, in the order of the log."""
        offset = accepted.offset
        if offset < self.begin:
            return
        record_bytes, end = len(accepted.record), self._end
        size = record_bytes + ENTRY_BYTES
        if self._bytes + size > min(end.bytes_max, TOTAL_BYTES_MAX - end.bytes):
            self.clear()
            self.begin = offset + 1
            return
        self._entries.append(
            PackEntry(
                ~offset if self._is_early else offset,
                accepted.message,
                receiver.qos,
                receiver.retain_as_published,
                receiver.identifiers,
                record_bytes,
                offset,
            )
        )
        self._bytes += size
        end.bytes += size

    def has_more(self, offset: int) -> bool:
        """Whether a reader that has everything below `offset` may go on here."""
        return self.begin <= offset < self._end.offset

    def take(self, offset: int, limit: int) -> tuple[list[PackEntry], int]:
        """The next entries from `offset` on, at most so many and as many as one tick may put on a link, and the offset
        below which everything has come."""
        self.forget_below(offset)  # the pipeline may have read what is handed on only now
        entries: list[PackEntry] = []
        size = 0
        while self._entries and len(entries) < limit and size < BULK_BYTES_MAX:
            entries.append(self._pop())
            size += entries[-1].size
        come_to = entries[-1].source + 1 if entries else offset
        return entries, come_to if self._entries else max(come_to, self._end.offset)

    def forget_below(self, offset: int) -> None:
        """The reader has everything below it."""
        while self._entries and self._entries[0].source < offset:
            self._pop()

    def _pop(self) -> PackEntry:
        entry = self._entries.popleft()
        self._bytes -= entry.size + ENTRY_BYTES
        self._end.bytes -= entry.size + ENTRY_BYTES
        return entry

    def clear(self) -> None:
        """Let go of all entries, and of the bytes that they count."""
        self._entries.clear()
        self._end.bytes -= self._bytes
        self._bytes = 0
