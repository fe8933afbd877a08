"""What has to look at every message of a queue, a piece at a time, so that nobody waits for it [queues-43].

A group that is made is offered what is there from the oldest on, and delivers what it has come to. What is published
meanwhile it meets in its place: no message is offered before one that came earlier. Of what a group owed that is
removed, the others' is left and the rest is let go of. Nothing of this is stored: a start offers everything anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from itertools import islice, takewhile

from msgspec import Struct

from embermq.queues.entries import FILLED
from embermq.queues.group import Group
from embermq.queues.ledger import QueueLedger

PIECE = 2_000
"""Messages that are looked at in one call, for all queues together."""
ADVANCED_MAX = 5_000
"""Messages of one queue that one call makes visible, that it ends, and whose leases and waits it ends."""
STANDINGS_MAX = 10_000
"""Messages times groups, where something is done to each of a message with each group: some 30 ms."""
LOOKS_MAX = 200_000
"""The same where it is only looked at."""


def at_a_time(most: int, groups: int, standings: int = STANDINGS_MAX) -> int:
    """How many messages, where there are so many groups: `most` or fewer."""
    return max(1, min(most, standings // max(1, groups)))


class _Removed(Struct):
    """A group that is none any more. It had been offered nothing of `pending`, nor what came at `end` or later.
    `is_last`: nobody was left, so everything stays [queues-17]."""

    group: Group
    next: int
    end: int
    pending: Container[int]
    is_last: bool


class Scans:
    """Offers what a queue holds to its groups, piece by piece."""

    def __init__(self, ledger: QueueLedger) -> None:
        self.filling: dict[str, Group] = {}
        """Groups that have not been offered everything."""
        self._ledger = ledger
        self._entries = ledger.entries
        self._groups = ledger.groups
        self._removed: deque[_Removed] = deque()

    def __bool__(self) -> bool:
        """Whether there is something to do."""
        return bool(self.filling or self._removed)

    def fill(self, group: Group) -> None:
        """A new group begins to be offered what it owes; how much that is it knows from now on."""
        group.owed = self._entries.count_from(group.first_sequence)
        if group.owed:
            group.unfilled_from = group.first_sequence
            self.filling[group.name] = group

    def let_go(self, group: Group, end: int, pending: Container[int]) -> None:
        """A group is removed, which stands in `groups` no more. Messages that come from now on have sequences from
        `end` on, or are in `pending`."""
        self.filling.pop(group.name, None)
        self._removed.append(_Removed(group, group.first_sequence, end, pending, not self._groups))

    def awaits(self, sequence: int) -> bool:
        """Whether there is a group that owes this message and has not been offered it."""
        return any(
            sequence >= group.unfilled_from and group.owes(sequence) for group in self.filling.values()
        )

    def work(self, limit: int) -> int:
        """Look at up to `limit` messages; returns how many of them are left for others."""
        while limit > 0 and self._removed:
            some = at_a_time(limit, len(self._groups), LOOKS_MAX)
            done = self._let_go_of_some(self._removed[0], some)
            limit = limit - done if some == limit or done < some else 0
        for group in list(self.filling.values()):
            if limit <= 0:
                break
            limit -= self._fill_some(group, limit)
        return limit

    def _fill_some(self, group: Group, limit: int) -> int:
        some = list(islice(self._entries.after(group.unfilled_from - 1), limit))
        if len(some) < limit:
            group.unfilled_from = FILLED
            del self.filling[group.name]
        else:
            group.unfilled_from = some[-1] + 1
        for sequence in some:
            if sequence not in group.settled:  # else it has ended before its turn
                group.owed -= 1  # it counts since the group is there
                self._ledger.offer(group, sequence)
                if sequence in group.settled:  # it has the message as one that came back
                    is_over = not self._entries.owed(sequence) and self._ledger.was_settled(sequence)
                    if is_over and not self.awaits(sequence):
                        self._ledger.remove(sequence)
        return len(some)

    def _let_go_of_some(self, removed: _Removed, limit: int) -> int:
        group, entries = removed.group, self._entries
        some = list(islice(takewhile(removed.end.__gt__, entries.after(removed.next - 1)), limit))
        if len(some) < limit:
            self._removed.popleft()
        else:
            removed.next = some[-1] + 1
        for sequence in some:
            if sequence in removed.pending or not group.owes(sequence):
                continue
            was_offered = sequence < group.unfilled_from
            owed = entries.owe(sequence, -1) if was_offered else entries.owed(sequence)
            if not owed and self._is_over(sequence, removed.is_last) and not self.awaits(sequence):
                self._ledger.remove(sequence)
        return len(some)

    def _is_over(self, sequence: int, had_no_others: bool) -> bool:
        """Whether a message that no group owes goes: not without any group, and where there was none for a while only
        if one has settled it since."""
        if had_no_others:
            return self._ledger.was_settled(sequence)
        return bool(self._groups)
