"""Records of the message log that a client waits for, which has lost them in its own log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from embermq.ports.errors import StoreError
from embermq.ports.source_records import FoundRecords, SourceRecords
from embermq.sessions.state import BrokerState

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
