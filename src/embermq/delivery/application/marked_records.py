"""Records of a log that a client was sent and has not acknowledged: read again before it is let in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from embermq.broker.session import Session
from embermq.ports.application_feed import ApplicationFeed, ApplicationFeeds, FeedEntry, FeedTaker

LOG = logging.getLogger("embermq")


class MarkedRecords(FeedTaker):
    """Reads from the first to the last of them, once. What does not come is not in `found`: the log has let go of
    it."""

    def __init__(self, session: Session, offsets: Sequence[int]) -> None:
        self.session = session
        self.found: dict[int, FeedEntry] = {}
        self._wanted = frozenset(offsets)
        self._last = offsets[-1]
        self._then: Callable[[], None]
        self._feed: ApplicationFeed | None = None

    def begin(self, feeds: ApplicationFeeds, log: str, then: Callable[[], None]) -> None:
        """Start to read; `then` is called when it is through."""
        self._then = then
        self._feed = feeds.open(log, {0: min(self._wanted)}, self)

    def take(self, partition: int, entries: list[FeedEntry]) -> None:
        assert self._feed is not None
        for entry in entries:
            if entry.offset in self._wanted:
                self.found[entry.offset] = entry
        self._feed.release(sum(entry.size for entry in entries))
        if entries[-1].offset >= self._last:
            self.close()
            self._then()

    def begins(self, partition: int, first: int) -> None:
        if first > self._last:
            self.close()
            self._then()

    def gone(self, reason: str) -> None:
        """It was there a moment ago. Whoever waits gives up; who comes again has it made again."""
        LOG.error("client %r is not let in: %s", self.session.client_id, reason)

    def close(self) -> None:
        """Read no more."""
        if self._feed is not None:
            self._feed.close()
