"""Whether queues are still this broker's, after its process stood still.

A broker that was stopped or suspended does not know that another one has taken its queues over, and what is over by its
own clock may be settled there. So it is asked first, of each queue when there is something to do for it.
"""

from __future__ import annotations

from collections.abc import Iterable


class Doubts:
    """Queues, by name, of which it is not known. A question counts until the process stands still again."""

    def __init__(self) -> None:
        self._number = 0
        self._asked: dict[str, bool] = {}
        """Whether it is being found out, of each that is in doubt."""

    def __bool__(self) -> bool:
        return bool(self._asked)

    def __contains__(self, name: str) -> bool:
        return name in self._asked

    def begin(self, names: Iterable[str]) -> None:
        """The process stood still. What was asked before is not answered by anything that comes now."""
        self._number += 1
        self._asked = dict.fromkeys(names, False)

    def ask(self, name: str) -> int:
        """The number of the question that is to be asked of one in doubt; 0 when it is asked already."""
        is_asked, self._asked[name] = self._asked[name], True
        return 0 if is_asked else self._number

    def end(self, name: str, number: int) -> bool:
        """The question of this number is answered: it is ours. False when that says nothing any more."""
        return number == self._number and self._asked.pop(name, None) is not None
