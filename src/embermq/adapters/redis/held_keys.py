"""Keys of which nothing more is asked for the present, because something else has to be stored first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from embermq.ports.tick_store import Stored

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
