"""The consumers of a group, and which of them has least to do."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from embermq.queues.lane import QueueLane

EARLIEST = 0
LATEST = -1
"""Behind all messages that are there."""


class Newcomer(Struct, frozen=True):
    """A consumer that joins a group. Of what it held under an earlier epoch it has `kept_ids`; the rest is given
    back. A group that it founds owes nothing below the sequence `start`, which may be EARLIEST or LATEST
    [queues-18]."""

    client_id: str
    epoch: int
    prefetch: int
    kept_ids: tuple[str, ...] = ()
    start: int = EARLIEST
    concurrency: int = 1
    """Messages that it works on at a time: for so many leases run [queues-22]."""


class Client:
    """One client in all groups of all queues where it is a consumer. A suspect is handed to it when it holds nothing,
    and it gets nothing else meanwhile: when its connection is lost then, the suspect is to blame [queues-19]."""

    __slots__ = ("_forget", "draining", "held", "places", "trial")

    def __init__(self, forget: Callable[[], object]) -> None:
        """`forget` is called when it has left its last place."""
        self._forget = forget
        self.held = 0
        """Messages that it has not settled, in all places."""
        self.trial: Consumer | None = None
        """The place in which it holds a suspect."""
        self.draining: dict[Consumer, None] = {}
        """Places in which a suspect waits until it holds nothing."""
        self.places: dict[Consumer, Callable[[], None]] = {}
        """What to call when a place may have room again because of another one."""

    def give(self, place: Consumer, *, is_suspect: bool) -> None:
        """It is handed a message there."""
        self.held += 1
        if is_suspect:
            self.trial = place

    def take_back(self, place: Consumer) -> None:
        """Count one message less that the client holds of that queue."""
        self.held -= 1
        was_trial = self.trial is place
        if was_trial:
            self.trial = None
        if not self.held and (was_trial or self.draining):
            self._wake_others(place)

    def drain(self, place: Consumer) -> None:
        """Nothing is handed to it anywhere until it has settled everything: a suspect waits for it there."""
        self.draining[place] = None

    def end_draining(self, place: Consumer) -> None:
        """No suspect waits for it there any more."""
        if place in self.draining:
            del self.draining[place]
            if not self.draining:
                self._wake_others(place)

    def leave(self, place: Consumer) -> None:
        """It is no consumer there any more, and holds nothing."""
        self.places.pop(place)
        self.end_draining(place)
        if not self.places:
            self._forget()

    def _wake_others(self, place: Consumer) -> None:
        for other, wake in list(self.places.items()):
            if other is not place:
                wake()


class Consumer:
    """One client in one group. `epoch` is another one on each connection: who takes over is another holder
    [queues-29]."""

    __slots__ = (
        "away_until_ms",
        "client",
        "client_id",
        "concurrency",
        "epoch",
        "held",
        "is_stalled",
        "joined_ms",
        "prefetch",
        "unbegun",
        "work",
        "working",
    )

    def __init__(self, newcomer: Newcomer, joined_ms: int, client: Client) -> None:
        self.client_id = newcomer.client_id
        self.epoch = newcomer.epoch
        self.prefetch = newcomer.prefetch
        self.concurrency = newcomer.concurrency
        self.joined_ms = joined_ms
        self.client = client
        self.away_until_ms = 0
        """Its connection is gone, it may come back until the consumers' clock shows this; 0 while it is connected."""
        self.is_stalled = False
        """What it was handed has not reached its socket for a whole lease: it gets nothing, and owns no partition that
        another one could have."""
        self.held: set[int] = set()
        """Sequences that it has not settled."""
        self.working: set[int] = set()
        """Of these, those whose lease runs: the oldest that have reached its socket, `concurrency` of them."""
        self.unbegun: OrderedDict[int, None] = OrderedDict()
        """Those that have reached its socket and wait for theirs, in this order."""
        self.work: deque[QueueLane] = deque()
        """Lanes of its own that may have something; lanes that were moved are found out when they are met."""

    @property
    def is_taking(self) -> bool:
        """Whether it is connected, and takes what it is sent."""
        return not self.away_until_ms and not self.is_stalled

    def has_room(self) -> bool:
        """Whether it may get one more [queues-32]; one for which a suspect waits has room when it holds nothing."""
        client = self.client
        if len(self.held) >= self.prefetch or not self.is_taking or client.trial is not None:
            return False
        return not client.draining or (self in client.draining and not client.held)

    def hold(self, sequence: int, *, is_suspect: bool) -> None:
        """Count a message, by its sequence number, that it is handed."""
        self.held.add(sequence)
        self.client.give(self, is_suspect=is_suspect)

    def let_go(self, sequence: int) -> None:
        """It holds a message no more, if it did."""
        if sequence not in self.held:
            return
        self.held.discard(sequence)
        self.working.discard(sequence)
        self.unbegun.pop(sequence, None)
        self.client.take_back(self)


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

    def idle(self) -> Consumer | None:
        """One of those with room that holds nothing at all, here or elsewhere: a suspect may go to it."""
        return next((each for each in self._by_load[0].values() if not each.client.held), None)
