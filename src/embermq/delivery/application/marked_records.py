"""Records of a log that are marked for a client, or that it waits for since its own log has lost them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial

from embermq.model.session_writes import QueueState
from embermq.model.tick_writes import ApplicationMark
from embermq.ports.application_feed import ApplicationFeed, ApplicationFeeds, FeedEntry, FeedTaker
from embermq.ports.errors import StoreError
from embermq.ports.source_records import FoundRecords, SourceRecords
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState

LOG = logging.getLogger("embermq")


class MarkedRecords(FeedTaker):
    """Reads from the first to the last of them, once. What does not come is not in `found`: the log has let go of
    it."""

    def __init__(self, session: Session, marks: Collection[ApplicationMark]) -> None:
        """`marks`: one at least, in order."""
        self.session = session
        self.found: dict[int, FeedEntry] = {}
        """What was sent and is to be sent again."""
        self.sources: dict[int, int | None] = {}
        """Where each of them that is there comes from."""
        self._sent = {mark.offset: mark.state == QueueState.SENT for mark in marks}
        self._first, self._last = min(self._sent), max(self._sent)
        self._then: Callable[[], None]
        self._feed: ApplicationFeed | None = None

    def begin(self, feeds: ApplicationFeeds, log: str, then: Callable[[], None]) -> None:
        """Start to read; `then` is called when it is through."""
        self._then = then
        self._feed = feeds.open(log, {0: self._first}, self)

    def take(self, partition: int, entries: list[FeedEntry]) -> None:
        assert self._feed is not None
        for entry in entries:
            is_sent = self._sent.get(entry.offset)
            if is_sent is not None:
                self.sources[entry.offset] = entry.source
            if is_sent:
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
        LOG.error("client %r is refused: %s", self.session.client_id, reason)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()


class CutSearch:
    """Looks for the place where a log was cut, and has grown again, with few reads of one record each: where a marked
    record is still there, everything before it is. `then` gets the offset of the first mark whose place another record
    has, None without any. `marks` know their source positions, one at least, and are in order."""

    def __init__(
        self,
        session: Session,
        marks: Sequence[ApplicationMark],
        feeds: ApplicationFeeds,
        log: str,
        then: Callable[[int | None], None],
    ) -> None:
        self._session = session
        self._marks = marks
        self._feeds = feeds
        self._log = log
        self._then = then
        self._first, self._end = 0, len(marks)
        """The mark that is looked for is one of these, or the end."""
        self._reading: MarkedRecords

    def begin(self) -> None:
        """With the last one: mostly that is all."""
        self._look(len(self._marks) - 1)

    def _look(self, at: int) -> None:
        self._reading = MarkedRecords(self._session, self._marks[at : at + 1])
        self._reading.begin(self._feeds, self._log, partial(self._looked, at))

    def _looked(self, at: int) -> None:
        mark = self._marks[at]
        if self._reading.sources.get(mark.offset, mark.source) == mark.source:
            self._first = at + 1
        else:
            self._end = at
        if self._first < self._end:
            self._look((self._first + self._end) // 2)
        else:
            self._then(self._marks[self._end].offset if self._end < len(self._marks) else None)

    def close(self) -> None:
        self._reading.close()


Fetched = Callable[[FoundRecords | StoreError], None]
KEPT_MS = 60_000
"""How long records are kept for a client that did not wait for them."""


class FetchedRecords:
    """What the message log is asked for, and what it has answered, by generation of the session."""

    def __init__(self, state: BrokerState, records: SourceRecords) -> None:
        self._state = state
        self._records = records
        self._fetches: dict[int, _Fetch] = {}

    def fetch(self, generation: int, wanted: frozenset[int], then: Fetched) -> None:
        """It may take longer than a client waits: then the answer is for the next time that it comes."""
        fetch = self._fetches.get(generation)
        if fetch is None or fetch.wanted != wanted:
            fetch = self._fetches[generation] = _Fetch(wanted, then)
            self._records.fetch(wanted, partial(self._fetched, generation, fetch))
        elif fetch.found is None:
            fetch.then = then
        else:
            then(fetch.found)

    def _fetched(self, generation: int, fetch: _Fetch, answer: FoundRecords | StoreError) -> None:
        if self._fetches.get(generation) is not fetch:
            return
        if isinstance(answer, StoreError):
            del self._fetches[generation]
        else:
            fetch.found = answer
            due_ms = self._state.tick.now_ms + KEPT_MS
            self._state.timers.at(due_ms, partial(self._forget, generation, fetch))
        fetch.then(answer)

    def _forget(self, generation: int, fetch: _Fetch) -> None:
        if self._fetches.get(generation) is fetch:
            del self._fetches[generation]

    def drop(self, generation: int) -> None:
        """Forget a question: who asked it has gone."""
        fetch = self._fetches.pop(generation, None)
        if fetch is not None:  # the timer holds it for a while
            fetch.found, fetch.then = None, _nobody_waits


class _Fetch:
    """Of what the message log is asked for a client; `found` is what it has answered."""

    def __init__(self, wanted: frozenset[int], then: Fetched) -> None:
        self.wanted = wanted
        self.then = then
        self.found: FoundRecords | None = None


def _nobody_waits(_answer: FoundRecords | StoreError) -> None:
    """The records were taken."""
