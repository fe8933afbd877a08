"""The operations of one key while something is wrong with the first of them."""

from __future__ import annotations

from collections import deque

from embermq.adapters.redis.wire import Operation, Wire
from embermq.ports.store_node import Node

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
