"""The operations of one key while something is wrong with the first of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from embermq.adapters.redis.wire import Operation, Wire
from embermq.ports.store_node import Node
from embermq.ports.tick_store import Stored

FIRST_S = 0.01
LONGEST_S = 1.0


class Lane:
    """Keeps the order of a key: the first operation, `ops[0]`, has to be repeated, so all behind it have to.

    What had been sent already comes into `ops` as it is answered, and the answer is thrown away; what was still queued
    follows in `later`. Only when nothing of it is on the way any more is the first one sent, alone: the `probe`.
    """

    __slots__ = ("ask", "due_s", "later", "mark", "ops", "probe", "tries", "trouble", "wire")

    def __init__(self, wire: Wire | None) -> None:
        self.ops: deque[Operation] = deque()
        self.later: deque[Operation] = deque()
        self.wire = wire
        self.mark = wire.sent_total if wire is not None else 0
        self.probe: Operation | None = None
        self.due_s = 0.0
        self.tries = 0
        self.trouble = ""
        """What the operator must know: Redis's text."""
        self.ask: Node | None = None
        """Where the next one has to be asked for, once."""

    def is_due(self, now_s: float) -> bool:
        """Whether the first operation may be sent now."""
        return (
            self.probe is None and self.due_s <= now_s and (self.wire is None or self.wire.settled(self.mark))
        )

    def put_before(self, operations: list[Operation]) -> None:
        """They come first, but behind a probe that is on its way: what it does is among them once more."""
        if self.probe is None:
            self.ops.extendleft(reversed(operations))
        else:
            first = self.ops.popleft()
            self.ops.extendleft(reversed([first, *operations]))

    def gather(self) -> None:
        """Put behind one another what came back and what was never sent."""
        self.ops.extend(self.later)
        self.later.clear()

    def failed(self, now_s: float, *, at_once: bool) -> None:
        """The first operation, which was the probe if there was one, has to be sent again."""
        self.probe = None
        self.ops[0].kind = 0
        self.ops[0].asking = False
        pauses = self.tries - 1 if at_once else self.tries
        self.due_s = now_s + (min(LONGEST_S, FIRST_S * 2.0 ** min(pauses, 10)) if pauses >= 0 else 0.0)
        self.tries += 1


Put = Callable[[], None]


class _Hold:
    """In line between what was asked before and after it."""

    is_over = False


class HeldKeys:
    """What is asked for a key while that is held waits in its order. Holds of one key follow one another."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[_Hold | Put]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def hold(self, key: str) -> Stored:
        """From now on, until what is returned is called."""
        hold = _Hold()
        line = self._lines.setdefault(key, deque())
        line.append(hold)

        def release() -> None:
            hold.is_over = True
            self._go_on(key, line)

        return release

    def hold_until(self, key: str, owners: Iterable[int], when_stored: Callable[[int, Stored], None]) -> None:
        """Until all is stored that was asked for these owners up to now. That was asked earlier, and waits for still
        earlier things at most, so nothing waits in a circle."""
        left = set(owners)
        if not left:
            return
        release = self.hold(key)

        def stored(owner: int) -> None:
            left.discard(owner)
            if not left:
                release()

        for owner in tuple(left):
            when_stored(owner, partial(stored, owner))

    def put(self, key: str, put: Put) -> None:
        """Do it when its turn comes; of a key that is held."""
        self._lines[key].append(put)

    def _go_on(self, key: str, line: deque[_Hold | Put]) -> None:
        while line:
            first = line[0]
            if isinstance(first, _Hold):
                if not first.is_over:
                    return
                line.popleft()
            else:
                line.popleft()
                first()
        if self._lines.get(key) is line:
            del self._lines[key]
