"""Which way each record comes to a client that has both: the message log's tail, and the pipeline's copies in its own
log, which come later, in an order of their own, and perhaps twice.

Told by source positions alone. What the tail has served is ranges of them: all that is the client's between their
ends was sent, or had come by the log. So a copy from within one is a repeat, but for what is not acknowledged yet: that
is `early` until its copy comes. The copy gives it a place in the client's log, and from then on it is a delivery like
any other: marked, timed, and the committed offset waits for it.

The ranges are stored with the place in the log, without what is early: after a crash that comes by the log, as new.

The tail serves when the log has brought everything before its begin. From then on whichever brings a record first
sends it, and the other passes over it: copies of one topic come in the order of their positions, first ones that is, so
neither overtakes the other. What waits in the log's lane for the client has not come in this sense: it is judged when
it is its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from itertools import islice

from embermq.sessions.session import Delivery

HOLES_MAX = 64
"""So many that are early are left out of the stored ranges one by one; behind the last of them nothing is stored."""
RANGES_MAX = 256
"""With more of them the tail does not serve: floors rise, and forget them."""

Ranges = tuple[tuple[int, int], ...]


class Way(Enum):
    """What to do with a copy."""

    SEND = "send"
    """It may be a repeat still, by `Positions`: what the log itself has brought is known there."""
    BIND = "bind"
    """Its delivery is under way already."""
    REPEAT = "repeat"


class TailFence:
    """Of one session, over all its connections to one broker."""

    def __init__(self, served: Ranges = ()) -> None:
        self.early: dict[int, Delivery] = {}
        """By source position, ascending: sent by the tail, not acknowledged, its copy has not come."""
        self._past: list[tuple[int, int]] = list(served)
        self._start = self.taken_to = 0
        """The present range."""
        self.serves = False

    # The tail

    def may_serve(self, begin: int, caught_up: int) -> bool:
        """Whether the tail, which has everything from `begin` on, may go on for the log, which has brought everything
        below `caught_up`. The caller has sent all of it."""
        if not self.serves and begin <= caught_up and len(self._past) < RANGES_MAX:
            self.serves = True
            self._start = self.taken_to = max(begin, self.taken_to)
        return self.serves

    def sent(self, source: int, delivery: Delivery) -> None:
        """The tail sends this one."""
        self.early[source] = delivery
        self.taken_to = source + 1

    def passed(self, taken_to: int) -> None:
        """All below was sent, or is not to be: it has come by the log, or nobody wants it any more."""
        self.taken_to = max(self.taken_to, taken_to)

    def settled(self, source: int) -> None:
        """What was early is acknowledged."""
        del self.early[source]

    def stop(self) -> None:
        """The tail serves no more, until it may again: the connection is over, or it has no room."""
        if self.serves and self._start < self.taken_to:
            self._past.append((self._start, self.taken_to))
        self.serves = False

    # The log

    def judge(self, source: int) -> Way:
        """The copy that is next in the client's log."""
        if source in self.early:
            return Way.BIND
        if self.serves and source >= self._start:
            return Way.REPEAT if source < self.taken_to else Way.SEND
        return Way.REPEAT if any(start <= source < end for start, end in self._past) else Way.SEND

    def bind(self, source: int) -> Delivery:
        """It belongs to the log now."""
        return self.early.pop(source)

    def forget(self, is_below_floors: Callable[[int], bool]) -> None:
        """Floors have risen: `Positions` knows what is below them."""
        self._past = [one for one in self._past if not is_below_floors(one[1] - 1)]

    # The store

    def served(self) -> Ranges:
        """What to store: no copy from within these is to be sent after a crash."""
        ranges = [*self._past, (self._start, self.taken_to)] if self.serves else self._past
        holes = list(islice(self.early, HOLES_MAX + 1))
        end = holes.pop() if len(holes) > HOLES_MAX else None
        return tuple(_without(ranges, holes, end))


def _without(
    ranges: Iterable[tuple[int, int]], holes: list[int], end: int | None
) -> Iterable[tuple[int, int]]:
    for start, stop in ranges:
        at, limit = start, stop if end is None else min(stop, end)
        for hole in holes:
            if at <= hole < limit:
                if at < hole:
                    yield at, hole
                at = hole + 1
        if at < limit:
            yield at, limit
