"""One partition of a group: what is ready, what came back, and whose turn a key is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from msgspec import Struct

from embermq.queues.consumer import Consumer
from embermq.queues.sequence_line import SequenceLine

GONE_MAX = 1_000
"""Messages that were dropped and may still stand in the line of a key, besides half as many as there are others."""


class KeyTurn(Struct):
    """A key with a message that is not settled: `head`. What came behind it waits, in order; up to `gone` of them are
    there no more."""

    head: int
    waiting: deque[int] | None = None
    gone: int = 0


class QueueLane:
    """Sequences of one partition. `owes` tells whether the group still owes one: what it does not is passed over."""

    __slots__ = ("_owes", "blocked", "listed", "owner", "ready", "returned", "suspects", "turns")

    def __init__(self, owes: Callable[[int], bool]) -> None:
        self._owes = owes
        self.ready = SequenceLine()
        self.returned: list[int] = []
        """A heap. All of it is older than what is ready."""
        self.suspects: list[int] = []
        """A heap of what goes to a consumer that has nothing else, before everything else [queues-19]."""
        self.turns: dict[str, KeyTurn] = {}
        self.blocked = 0
        """Keys behind whose message others wait."""
        self.owner: Consumer | None = None
        self.listed: Consumer | None = None
        """Whose work it stands in."""

    def has_work(self) -> bool:
        """Whether there may be something to take, besides suspects."""
        return bool(self.returned or self.ready)

    def has_suspect(self) -> bool:
        """Whether one is owed; what is not is forgotten."""
        while self.suspects and not self._owes(self.suspects[0]):
            heappop(self.suspects)
        return bool(self.suspects)

    def next(self) -> int:
        """Take the oldest; the caller knows that there is one."""
        return heappop(self.returned) if self.returned else self.ready.popleft()

    def give_back(self, sequence: int, *, is_suspect: bool = False) -> None:
        """It is owed again, in its old place."""
        heappush(self.suspects if is_suspect else self.returned, sequence)

    def take_turn(self, key: str, sequence: int) -> bool:
        """Whether a message may go out now; else it waits in the line of its key [queues-30]."""
        turn = self.turns.get(key)
        if turn is None:
            self.turns[key] = KeyTurn(sequence)
            return True
        if turn.head == sequence:
            return True
        if turn.waiting is None:
            turn.waiting = deque()
            self.blocked += 1
        turn.waiting.append(sequence)
        return False

    def end_turn(self, key: str, sequence: int) -> bool:
        """A message is not owed any more; whether another one has become ready by that."""
        turn = self.turns.get(key)
        if turn is None or turn.head != sequence:
            return False
        while turn.waiting:
            following = turn.waiting.popleft()
            if self._owes(following):
                turn.head = following
                self.give_back(following)
                if not turn.waiting:
                    turn.waiting = None
                    self.blocked -= 1
                return True
        if turn.waiting is not None:
            self.blocked -= 1
        del self.turns[key]
        return False

    def trim(self, key: str | None) -> None:
        """A message was dropped: let go of what is not owed at the front, in the line of its key as well, since nobody
        may come to take it."""
        while self.ready and not self._owes(self.ready.first()):
            self.ready.popleft()
        turn = self.turns.get(key) if key is not None else None
        if turn is not None and turn.waiting is not None:
            turn.gone += 1
            if turn.gone > GONE_MAX + len(turn.waiting) // 2:
                turn.waiting, turn.gone = deque(filter(self._owes, turn.waiting)), 0
            while turn.waiting and not self._owes(turn.waiting[0]):
                turn.waiting.popleft()
            if not turn.waiting:
                turn.waiting = None
                self.blocked -= 1
