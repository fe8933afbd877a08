"""Application logs that are a part of the embedded message log: entries name records by their positions in it.

An offset is a source position, so nothing comes twice or late, and what was sent is found again by its offset. Nothing
is brought: whoever reads asks when there is room.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from embermq.delivery.sending import BULK_BYTES_MAX
from embermq.durability.retention import Bodies
from embermq.ports.application_feed import ApplicationFeed, ApplicationFeeds, FeedEntry, FeedTaker
from embermq.ports.application_log import ApplicationLog
from embermq.ports.errors import StoreError
from embermq.ports.message_log import MessageLog
from embermq.ports.parked_bodies import ParkedBodies


class EmbeddedFeeds(ApplicationFeeds):
    """Logs are called by the generations of their sessions. Bodies that `parked` has are no longer in `messages`."""

    def __init__(self, log: ApplicationLog, messages: MessageLog, parked: ParkedBodies) -> None:
        self.log = log
        self._messages = messages
        self._parked = parked
        self.complete = 0
        """All entries below it are there."""
        self.trouble = ""

    def open(self, log: str, starts: Mapping[int, int], taker: FeedTaker) -> ApplicationFeed:
        return EmbeddedFeed(self, int(log))

    def fetch(self, log: str, offsets: Collection[int]) -> Mapping[int, FeedEntry]:
        bodies = self.bodies(int(log))
        return {offset: _entry(bodies, offset) for offset in sorted(offsets)}

    def look(self) -> bool:
        was_failing, self.trouble = self.trouble, ""
        try:
            complete = self.log.complete_offset()
        except StoreError as error:
            self.trouble = str(error)
            return False
        has_more = complete != self.complete or was_failing != ""
        self.complete = complete
        return has_more

    @property
    def failing(self) -> str:
        return self.trouble

    def bodies(self, generation: int) -> Bodies:
        """Where the bodies of one session's log are read, by the session's generation."""
        return Bodies(self._messages, self._parked, generation)


class EmbeddedFeed(ApplicationFeed):
    """One log that is read for one client."""

    def __init__(self, feeds: EmbeddedFeeds, generation: int) -> None:
        self._feeds = feeds
        self._generation = generation
        self._bodies = feeds.bodies(generation)

    def has_more(self, offset: int) -> bool:
        return offset < self._feeds.complete

    def pull(self, offset: int, limit: int) -> tuple[list[FeedEntry], int]:
        feeds = self._feeds
        try:
            found = feeds.log.read(self._generation, offset, limit)
            entries = self._with_records(found)
        except StoreError as error:
            feeds.trouble = str(error)
            return [], offset
        come_to = entries[-1].offset + 1 if entries else offset
        return entries, max(come_to, feeds.complete) if len(entries) == len(found) < limit else come_to

    def _with_records(self, offsets: list[int]) -> list[FeedEntry]:
        """As many as one tick may put on a link."""
        entries: list[FeedEntry] = []
        size = 0
        for offset in offsets:
            entry = _entry(self._bodies, offset)
            entries.append(entry)
            size += entry.size
            if size >= BULK_BYTES_MAX:
                break
        return entries

    def release(self, size: int) -> None:
        """Nothing is brought that was not asked for."""

    def close(self) -> None:
        """Nothing is open between two questions, so there is nothing to end."""


def _entry(bodies: Bodies, offset: int) -> FeedEntry:
    problems: list[str] = []
    found = bodies.get(offset, problems.append)
    if found is None:
        return FeedEntry(offset, 0, offset, None, problems[0] if problems else "")
    return FeedEntry(offset, len(found[1]), offset, found[0])
