"""Which way each record comes to a client that has both: the message log's tail, and the pipeline's copies in its own
log, which come later, in an order of their own, and perhaps twice.

Told by source positions alone. What the tail has served is ranges of them: all that is the client's between their
ends was sent, or had come by the log. So a copy from within one is a repeat, but for what is not settled yet: that is
`early` until its copy comes. The copy gives it a place in the client's log, and from then on it is a delivery like any
other: marked, timed, and the committed offset waits for it.

The tail serves from its begin on, when the log has brought everything before. From then on whichever brings a record
first sends it, and the other passes over it: first copies of one topic stand in the order of their positions, so
neither overtakes the other. When the tail ends, for want of room or with the connection, the log goes on with what
stands next in it. What waits in the log's lane for the client has not come in this sense: it is judged when it is its
turn.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from embermq.sessions.session import Delivery

RANGES_MAX = 256
"""With more of them the tail does not serve: floors rise, and forget them."""

Ranges = tuple[tuple[int, int], ...]


class Way(Enum):
    """What to do with a copy."""

    SEND = "send"
    """It may be a repeat still: what the log itself has brought is known elsewhere (`positions`)."""
    BIND = "bind"
    """It was sent before, and is not settled."""
    REPEAT = "repeat"


class TailFence:
    """Of one connection; `served` is what was stored before it."""

    def __init__(self, served: Ranges = ()) -> None:
        self.early: dict[int, Delivery] = {}
        """By source position: sent by the tail, not settled, its copy has not come."""
        self._past = list(served)
        self._start = self.taken_to = 0
        """The present range."""
        self.serves = False

    # The tail

    def serve(self, begin: int) -> bool:
        """The log has brought everything below `begin`, and all of it was sent: the tail, which has what follows, goes
        on."""
        if len(self._past) < RANGES_MAX:
            self.serves = True
            self._start = self.taken_to = max(begin, self.taken_to)
        return self.serves

    def passed(self, taken_to: int) -> None:
        """All below is sent, or is not to be: it has come by the log, or nobody wants it any more."""
        self.taken_to = max(self.taken_to, taken_to)

    def stop(self) -> None:
        """The tail serves no more, until it may again."""
        if self.serves and self._start < self.taken_to:
            self._past.append((self._start, self.taken_to))
        self.serves = False

    # The log

    def judge(self, source: int) -> Way:
        """The copy that is next in the client's log."""
        if source in self.early:
            return Way.BIND
        return Way.REPEAT if any(start <= source < end for start, end in self.served()) else Way.SEND

    # The store

    @property
    def remembers(self) -> bool:
        """Whether there are ranges that floors may forget."""
        return bool(self._past)

    def forget(self, is_below_floors: Callable[[int], bool]) -> None:
        """Floors have risen: what is below them is a repeat in any case."""
        self._past = [one for one in self._past if not is_below_floors(one[1] - 1)]

    def served(self) -> Ranges:
        """Ranges of positions that are served, [start, end) each, as they are stored."""
        present = ((self._start, self.taken_to),) if self.serves and self._start < self.taken_to else ()
        return (*self._past, *present)
