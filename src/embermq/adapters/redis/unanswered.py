"""What has been asked of Redis and is not answered yet: by tick, in the order of ticks, and by owner, each alone.

An *owner* is who some data belongs to, as `ports.tick_store` numbers them: a session, a shared group or a queue. What
is asked for one owner is answered in its order; owners do not wait for one another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from msgspec import Struct, field

from embermq.adapters.redis.answers import Answer, Refused
from embermq.ports.tick_store import Stored


class _Ticking(Struct):
    """The data of one tick on its way; `open` operations have no answer yet."""

    stored: Stored
    open: int = 1


class _Stretch(Struct):
    """Operations of one owner that were asked for one behind the other; `open` of them have no answer yet. `calls` wait
    for these and all before; what is asked for later is no part of it."""

    open: int = 0
    calls: list[Stored] = field(default_factory=list)


class Unanswered:
    """See the module. For the broker's own thread."""

    def __init__(self) -> None:
        self._ticks: deque[_Ticking] = deque()
        self._tick: _Ticking
        self._stretches: dict[int, deque[_Stretch]] = {}
        self.fenced = 0
        """Operations that Redis refused because it holds something newer."""
        self.refused = 0
        """Operations that Redis will never do; each is in the log."""

    @property
    def ticks(self) -> int:
        """Those that are not whole yet."""
        return len(self._ticks)

    def begin_tick(self, stored: Stored) -> Callable[[], None]:
        """What is asked from now on belongs to a tick. `stored` is called once: when this tick and all before are
        answered, and what is returned here was called, which says that nothing more is asked for it."""
        self._tick = tick = _Ticking(stored)
        self._ticks.append(tick)
        return partial(self._settle, tick)

    def asked(self, owner: int) -> Callable[[Answer], None]:
        """An operation is asked for; call what is returned with its answer."""
        self._tick.open += 1
        stretches = self._stretches.setdefault(owner, deque())
        if not stretches or stretches[-1].calls:
            stretches.append(_Stretch())
        stretches[-1].open += 1
        return partial(self._answered, self._tick, owner, stretches[-1])

    def asked_for_nobody(self) -> Callable[[Answer], None]:
        """The same of what no owner waits for."""
        self._tick.open += 1
        return partial(self._counted, self._tick)

    def when_stored(self, owner: int, call: Stored) -> None:
        """Make this call when all that was asked for this owner up to now is answered: at once, when it is."""
        stretches = self._stretches.get(owner)
        if stretches:
            stretches[-1].calls.append(call)
        else:
            call()

    def close(self) -> None:
        """Nobody is called any more."""
        self._ticks.clear()
        self._stretches.clear()

    def _answered(self, tick: _Ticking, owner: int, stretch: _Stretch, answer: Answer) -> None:
        self._counted(tick, answer)
        stretch.open -= 1
        stretches = self._stretches.get(owner)
        if stretches is None:
            return  # closed
        while stretches and not stretches[0].open:
            for call in stretches.popleft().calls:
                call()
        if not stretches:
            del self._stretches[owner]

    def count(self, answer: Answer) -> None:
        """What nobody waits for is counted all the same."""
        if answer is None:
            self.fenced += 1
        elif isinstance(answer, Refused):
            self.refused += 1

    def _counted(self, tick: _Ticking, answer: Answer) -> None:
        self.count(answer)
        self._settle(tick)

    def _settle(self, tick: _Ticking) -> None:
        tick.open -= 1
        ticks = self._ticks
        while ticks and not ticks[0].open:
            ticks.popleft().stored()
