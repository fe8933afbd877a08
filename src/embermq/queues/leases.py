"""How long consumers of a group may keep what they were handed: first until it has reached their socket, then until
they have settled it [queues-22].

All times of a kind are equally long, so their order is the order in which they began: each call is O(1). They run on
the consumers' clock; what comes in and goes out is broker time.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import itemgetter

from embermq.queues.consumer_clock import ConsumerClock


class Leases:
    """Keeps the leases of a group by sequence. `length_ms` of each is what it was when the lease began."""

    def __init__(self, length_ms: int, clock: ConsumerClock) -> None:
        self._length_ms = length_ms
        self._clock = clock
        self._unwritten: OrderedDict[int, int] = OrderedDict()
        """When it was handed out: what has not reached its socket."""
        self._running: OrderedDict[int, int] = OrderedDict()
        """Until when."""
        self._older: OrderedDict[int, int] = OrderedDict()
        """Those that began when leases were of another length."""

    def change(self, length_ms: int) -> None:
        """Leases that begin from now on are so long; what is on its way to a socket has that time, too."""
        if length_ms != self._length_ms:
            running = sorted((self._older | self._running).items(), key=itemgetter(1))
            self._older, self._running = OrderedDict(running), OrderedDict()
            self._length_ms = length_ms

    def hand_out(self, sequence: int, now_ms: int) -> None:
        """A consumer is to be sent it; it has no lease yet."""
        self._unwritten[sequence] = self._clock.at(now_ms)

    def wrote(self, sequence: int) -> None:
        """It has reached its socket; its lease begins when its consumer works on it."""
        self._unwritten.pop(sequence, None)

    def begin(self, sequence: int, now_ms: int) -> None:
        """Its consumer works on it, or asks for more time."""
        self._older.pop(sequence, None)
        self._running[sequence] = self._clock.at(now_ms) + self._length_ms
        self._running.move_to_end(sequence)

    def end(self, sequence: int) -> None:
        """Nobody holds it any more."""
        if self._running.pop(sequence, None) is None:
            self._unwritten.pop(sequence, None)
            self._older.pop(sequence, None)

    def until_ms(self, sequence: int) -> int:
        """0 when no lease runs: nobody holds it, or it is not written to the socket yet."""
        moment_ms = self._running.get(sequence) or self._older.get(sequence, 0)
        return self._clock.until_ms(moment_ms) if moment_ms else 0

    def first_unwritten(self, now_ms: int) -> int | None:
        """One that was handed out a whole lease ago and is still on its way."""
        if self._unwritten:
            sequence, handed_ms = next(iter(self._unwritten.items()))
            if handed_ms + self._length_ms <= self._clock.at(now_ms):
                return sequence
        return None

    def first_over(self, now_ms: int) -> int | None:
        """The sequence number of a message whose lease is over; None when no lease is."""
        for leases in (self._older, self._running):
            if leases:
                sequence, until_ms = next(iter(leases.items()))
                if until_ms <= self._clock.at(now_ms):
                    return sequence
        return None

    def due_ms(self) -> list[int]:
        """When each kind is over at the earliest, or to be looked at."""
        times = [next(iter(leases.values())) for leases in (self._older, self._running) if leases]
        if self._unwritten:
            times.append(next(iter(self._unwritten.values())) + self._length_ms)
        return [self._clock.due_ms(moment_ms) for moment_ms in times]
