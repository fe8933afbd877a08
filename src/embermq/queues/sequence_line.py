"""Numbers that wait in a line, eight bytes each."""

from array import array
from collections.abc import Iterator

_GONE_MAX = 4_096
"""Numbers that are taken and still have their place, while they are less than half of it."""


class SequenceLine:
    """Sequence numbers in line, first in, first out."""

    __slots__ = ("_head", "_numbers", "append")

    def __init__(self) -> None:
        self._numbers = array("q")
        self._head = 0
        self.append = self._numbers.append

    def first(self) -> int:
        """Who calls knows that there is one, here and in `popleft`."""
        return self._numbers[self._head]

    def popleft(self) -> int:
        head = self._head
        number = self._numbers[head]
        head += 1
        if head > _GONE_MAX and 2 * head > len(self._numbers):
            del self._numbers[:head]
            head = 0
        self._head = head
        return number

    def __len__(self) -> int:
        return len(self._numbers) - self._head

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers[self._head :])
