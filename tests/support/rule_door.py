"""A broker that keeps in memory how far rules are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from embermq.pipeline.places import Places
from embermq.pipeline.rules.targets import RuleDoor, RuleTaken


class StandInDoor(RuleDoor):
    """Of one rule; those of the same folder are the same broker's."""

    known: ClassVar[dict[Path, dict[int, int]]] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(Places(folder), "hot")
        self._next = self.known.setdefault(folder, {})

    def look(self) -> RuleTaken:
        return RuleTaken(next=dict(self._next))

    def begin(self, numbers: Mapping[int, int]) -> RuleTaken:
        for partition, number in numbers.items():
            self._next.setdefault(partition, number)
        return self.look()

    def take(self, partition: int, messages: Sequence[tuple[int, bytes]], end: int) -> RuleTaken:
        assert not messages
        self._next[partition] = max(end, self._next[partition])
        return self.look()
