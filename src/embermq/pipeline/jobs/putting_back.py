"""Dead letters go back to their queues: by id, in pieces, through the broker that runs, so many a second.

The broker alone writes: a piece is one transaction of its own, and an id that is no dead letter any more is passed
over. So a piece whose answer was lost is asked for again, and nothing depends on how far this loop came.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from msgspec import Struct

from embermq.pipeline.errors import BrokerAway
from embermq.queues.settling import message_id_of

PIECE = 1_000
"""Ids of one request: one transaction, some ten milliseconds of the broker's."""
PIECES_PER_S = 10
"""With a rate, so that what a consumer gets is a stream and no lump a second."""
AGAIN_S = 0.5
QUEUES_NAMED_MAX = 100

Progress = Callable[[int, int], None]
"""Dead letters that are dealt with, and how many there are."""
Notice = Callable[[str], None]
"""A sentence for whoever waits."""
Answer = TypeVar("Answer")


class PieceDone(Struct, frozen=True, kw_only=True):
    """What the broker said: see `PutBack` of its API."""

    put_back: int
    held: int
    gone: int
    orphaned: int = 0
    missing_queues: tuple[str, ...] = ()
    crowded: int = 0
    full_queues: tuple[str, ...] = ()


class RunningBroker(Protocol):
    """Puts dead letters back: the broker that runs."""

    def put_back(self, letter_ids: Sequence[str]) -> PieceDone:
        """One transaction, durable when it returns. Raises BrokerAway when it may or may not be done."""
        ...


class Clock(Protocol):
    """The module `time`, or what a test plays."""

    def monotonic(self) -> float:
        """Seconds from some moment on, of a clock that nobody sets."""
        ...

    def sleep(self, seconds: float, /) -> None: ...


class Patient:
    """Asks the broker that runs, also while it is away for `patience_s` seconds; `notice` is told once when it is."""

    def __init__(self, *, patience_s: float, notice: Notice, clock: Clock = time) -> None:
        self._patience_s = patience_s
        self._notice = notice
        self._clock = clock

    def _wait(self, due_s: float) -> float:
        """Until then; when it is over, what was missed is not made up for. Returns when it is."""
        now_s = self._clock.monotonic()
        if due_s <= now_s:
            return now_s
        self._clock.sleep(due_s - now_s)
        return due_s

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """The answer to a question that may be asked again. Raises BrokerAway."""
        away_s: float | None = None
        while True:
            try:
                return question()
            except BrokerAway as error:
                now_s = self._clock.monotonic()
                if away_s is None:
                    away_s = now_s
                    self._notice(f"{error}; it is asked again for {self._patience_s:g} s")
                elif now_s - away_s >= self._patience_s:
                    raise
                self._clock.sleep(AGAIN_S)


class PuttingBack(Patient):
    """One run over the dead letters of one queue; `done` and the counts say how far it came, however it ends."""

    def __init__(
        self,
        door: RunningBroker,
        *,
        rate: float | None,
        patience_s: float,
        progress: Progress,
        notice: Notice,
        clock: Clock = time,
    ) -> None:
        """`rate` dead letters a second at most, None for as fast as the broker takes them; while it does not answer it
        is asked for `patience_s` seconds."""
        super().__init__(patience_s=patience_s, notice=notice, clock=clock)
        self._door = door
        self._rate = rate
        self._progress = progress
        self.done = self.put_back = self.held = self.gone = self.orphaned = self.crowded = 0
        self._missing: set[str] = set()
        self._full: set[str] = set()

    def run(self, generation: int, sequences: "array[int]") -> None:
        """In their order: what has one key comes back as it died. Raises BrokerAway."""
        piece = PIECE if self._rate is None else max(1, min(PIECE, int(self._rate / PIECES_PER_S)))
        due_s = self._clock.monotonic()
        for begin in range(0, len(sequences), piece):
            some = sequences[begin : begin + piece]
            due_s = self._wait(due_s)
            letter_ids = [message_id_of(generation, sequence) for sequence in some]
            found = self._ask(partial(self._door.put_back, letter_ids))
            if self._rate is not None:  # orphaned and crowded ones were looked at alone
                due_s += (len(some) - found.orphaned - found.crowded) / self._rate
            self.done += len(some)
            self.put_back += found.put_back
            self.held += found.held
            self.gone += found.gone
            self.orphaned += found.orphaned
            self.crowded += found.crowded
            if len(self._missing) < QUEUES_NAMED_MAX:
                self._missing.update(found.missing_queues)
            if len(self._full) < QUEUES_NAMED_MAX:
                self._full.update(found.full_queues)
            self._progress(self.done, len(sequences))

    def missing_queues(self) -> tuple[str, ...]:
        """Where the orphaned ones come from, by name: the first that were met."""
        return tuple(sorted(self._missing)[:QUEUES_NAMED_MAX])

    def full_queues(self) -> tuple[str, ...]:
        """Where the crowded ones come from, in the same way."""
        return tuple(sorted(self._full)[:QUEUES_NAMED_MAX])
