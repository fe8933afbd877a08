"""The consumers of a group, and which of them has least to do."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from embermq.queues.lane import Lane

EARLIEST = 0
LATEST = -1
"""Behind all messages that are there."""


class Newcomer(Struct, frozen=True):
    """Who joins a group. Of what it held under an earlier epoch it has `kept_ids`; the rest is given back. A group that
    it founds owes nothing below the sequence `start`, which may be EARLIEST or LATEST [queues-18]."""

    client_id: str
    epoch: int
    prefetch: int
    kept_ids: tuple[str, ...] = ()
    start: int = EARLIEST


class Consumer:
    """One client in one group. `epoch` is another one on each connection: who takes over is another holder
    [queues-29]."""

    __slots__ = (
        "away_until_ms",
        "client_id",
        "epoch",
        "held",
        "is_stalled",
        "joined_ms",
        "prefetch",
        "work",
    )

    def __init__(self, client_id: str, epoch: int, prefetch: int, joined_ms: int) -> None:
        self.client_id = client_id
        self.epoch = epoch
        self.prefetch = prefetch
        self.joined_ms = joined_ms
        self.away_until_ms = 0
        """Its connection is gone, it may come back until then; 0 while it is connected."""
        self.is_stalled = False
        """What it was handed has not reached its socket for a whole lease: it gets nothing, and owns no partition that
        another one could have."""
        self.held: set[int] = set()
        """Sequences that it has not settled."""
        self.work: deque[Lane] = deque()
        """Lanes of its own that may have something; lanes that were moved are found out when they are met."""

    def has_room(self) -> bool:
        """Whether it may get one more [queues-32]."""
        return len(self.held) < self.prefetch and not self.away_until_ms and not self.is_stalled


class LoadTable:
    """Consumers with room by what they hold, so that the least loaded is found in O(1) [queues-15]."""

    def __init__(self) -> None:
        self._by_load: list[OrderedDict[str, Consumer]] = [OrderedDict()]
        self._loads: dict[str, int] = {}
        self._least = 0

    def update(self, consumer: Consumer) -> None:
        """What it holds has changed, or whether it is there."""
        self.remove(consumer)
        if not consumer.has_room():
            return
        load = len(consumer.held)
        while len(self._by_load) <= load:
            self._by_load.append(OrderedDict())
        self._by_load[load][consumer.client_id] = consumer
        self._loads[consumer.client_id] = load
        self._least = min(self._least, load)

    def remove(self, consumer: Consumer) -> None:
        """It gets nothing."""
        load = self._loads.pop(consumer.client_id, -1)
        if load >= 0:
            del self._by_load[load][consumer.client_id]

    def least(self) -> Consumer | None:
        """The one that holds least, of several the one that got something longest ago; None when nobody has room."""
        if not self._loads:
            return None
        while not self._by_load[self._least]:
            self._least += 1
        return next(iter(self._by_load[self._least].values()))
