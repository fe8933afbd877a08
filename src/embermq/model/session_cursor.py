"""How far a session has consumed what the log owes it; kept beside the log, away from what it is checked against."""

from msgspec import Struct

OPEN_MAX = 1_024
"""Deliveries in flight that a cursor names one by one; from the next one on everything counts as not consumed."""
NOTHING_QUEUED = 2**63 - 1
"""In place of an offset, behind all others."""


class SessionCursor(Struct, frozen=True, gc=False):
    """The cursor of one session. Records below the dispatcher's floor are consumed, or were skipped on purpose, except
    those in flight, `open`, and those queued, at offsets >= `queued_from`.

    `open` has ascending entries as `entry_of` makes them, at most `OPEN_MAX`.
    """

    queued_from: int
    open: tuple[int, ...] = ()

    @property
    def next_offset(self) -> int:
        """Everything below it is consumed: the cursor of each of the session's topics is at least there."""
        return min(self.queued_from, self.open[0] >> 1) if self.open else self.queued_from

    def has_consumed(self, offset: int, *, shared: bool) -> bool:
        """Whether the session's copy of a record is consumed: the one of a shared subscription, or the other."""
        return offset < self.queued_from and entry_of(offset, shared=shared) not in self.open


def entry_of(offset: int, *, shared: bool) -> int:
    """An entry of `open`: twice the offset, one more for the copy that came by a shared subscription."""
    return offset << 1 | shared


def cursor_of(queued_from: int, in_flight: list[int]) -> SessionCursor:
    """From the entries of what is in flight, in any order."""
    in_flight.sort()
    if len(in_flight) > OPEN_MAX:
        queued_from = min(queued_from, in_flight[OPEN_MAX] >> 1)
        del in_flight[OPEN_MAX:]
    while in_flight and in_flight[-1] >> 1 >= queued_from:
        in_flight.pop()
    return SessionCursor(queued_from, tuple(in_flight))
