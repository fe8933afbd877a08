"""The lanes of a group: whose they are, and which message goes to whom next [queues-15] [queues-16] [queues-30]."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop
from itertools import islice

from embermq.queues.consumer import Consumer, LoadTable
from embermq.queues.entries import Entries
from embermq.queues.lane import QueueLane
from embermq.queues.partitioner import assign
from embermq.queues.settings import Ordering, QueueSettings

LOOKED_AT_MAX = 10_000
"""Messages that are looked at for one call of `deliver`; the rest is the next call's."""

_STRICT_KEY = ""


class QueueLanes:
    """One for each partition, with an owner; where nothing is ordered a single one, of which any consumer with room may
    take. `owes` tells whether the group still owes a message."""

    def __init__(self, entries: Entries, settings: QueueSettings, owes: Callable[[int], bool]) -> None:
        self._entries = entries
        self._owes = owes
        self._loads = LoadTable()
        self._awake: OrderedDict[str, Consumer] = OrderedDict()
        """Consumers that may have room and work."""
        self._draining: Consumer | None = None
        """Where nothing is ordered: who gets nothing until it holds nothing, since a suspect waits for it."""
        self._lay(settings)

    def configure(self, settings: QueueSettings, members: Iterable[Consumer]) -> None:
        """Other partitions, or another ordering: the queue is empty."""
        self._lay(settings)
        self._awake.clear()
        for consumer in members:
            self.stop_draining(consumer)
            consumer.work.clear()
            self._loads.remove(consumer)
            self.update_room(consumer)

    def _lay(self, settings: QueueSettings) -> None:
        self._ordering = settings.ordering
        self.is_pinned = settings.ordering is not Ordering.NONE
        """Whether partitions belong to consumers."""
        self._lanes = [QueueLane(self._owes) for _ in range(settings.partitions if self.is_pinned else 1)]
        self._suspected: dict[QueueLane, None] = {}
        """Those that may have suspects."""

    # Messages.

    def add(self, sequence: int) -> None:
        """One is ready, younger than all that were."""
        lane = self._lanes[self._entries.partition(sequence) if self.is_pinned else 0]
        lane.ready.append(sequence)
        self._list(lane)

    def take_turn(self, sequence: int) -> None:
        """One was handed out before the start: its key is taken."""
        key = self._key(sequence)
        if key is not None:
            self._lane(sequence).take_turn(key, sequence)

    def give_back(self, sequence: int, *, is_suspect: bool = False) -> None:
        """One is ready again, in its old place; a suspect for a consumer that has nothing else."""
        lane = self._lane(sequence)
        lane.give_back(sequence, is_suspect=is_suspect)
        if is_suspect:
            self._suspected[lane] = None
        self._list(lane)

    def end_turn(self, sequence: int) -> None:
        """One is settled: the next of its key may go."""
        key = self._key(sequence)
        if key is not None:
            lane = self._lane(sequence)
            if lane.end_turn(key, sequence):
                self._list(lane)

    def drop(self, sequence: int) -> None:
        """One is owed no more, and perhaps nobody comes to find that out."""
        self.end_turn(sequence)
        self._lane(sequence).trim(self._key(sequence))

    def take(self, batch: int) -> Iterator[tuple[int, Consumer]]:
        """What there is and who has room for it, up to `batch` messages for one consumer at a time. Before the next is
        asked for the consumer has to hold this one."""
        is_pinned = self.is_pinned
        looked_at = LOOKED_AT_MAX
        while looked_at > 0:
            if is_pinned:
                if not self._awake:
                    return
                consumer = self._awake.popitem(last=False)[1]
            else:
                least = self._loads.least()
                if least is None or not self.has_work():
                    self._end_draining()
                    return
                idle = self._loads.idle() if self._lanes[0].has_suspect() else None
                consumer = idle or least
            if not consumer.has_room():  # it has gone away since, or holds a suspect of another group
                self.update_room(consumer)
                continue
            looked_at -= 1
            if self._suspected or self._draining is not None or consumer.client.draining:
                suspect = self._suspect_for(consumer)
                if suspect is not None:
                    yield suspect, consumer
                if suspect is not None or not consumer.has_room():
                    self.update_room(consumer)
                    continue
            room = batch
            while room and looked_at > 0 and consumer.has_room():
                lane = self._work_of(consumer)
                if lane is None:
                    break
                looked_at -= 1
                sequence = lane.next()
                if self._owes(sequence) and self._may_go(lane, sequence):
                    yield sequence, consumer
                    if not is_pinned:
                        self._loads.update(consumer)
                    room -= 1
            if is_pinned and consumer.has_room() and consumer.work:
                self._awake[consumer.client_id] = consumer

    def has_work(self) -> bool:
        """Whether `take` has something to look at."""
        if self.is_pinned:
            return bool(self._awake)
        least, lane = self._loads.least(), self._lanes[0]
        if least is None:
            return False
        is_suspect_next = lane.has_suspect() and (self._draining is None or self._loads.idle() is not None)
        return is_suspect_next or lane.has_work()

    # Consumers.

    def update_room(self, consumer: Consumer) -> None:
        """What it holds has changed, or whether it takes something."""
        if not consumer.is_taking:
            self.stop_draining(consumer)
        if not self.is_pinned:
            self._loads.update(consumer)
        elif consumer.has_room() and (consumer.work or consumer in consumer.client.draining):
            self._awake[consumer.client_id] = consumer

    def forget(self, consumer: Consumer) -> None:
        self.stop_draining(consumer)
        self._loads.remove(consumer)
        self._awake.pop(consumer.client_id, None)

    def stop_draining(self, consumer: Consumer) -> None:
        """No suspect waits for it any more."""
        consumer.client.end_draining(consumer)
        if consumer is self._draining:
            self._draining = None

    def list_again(self, consumer: Consumer) -> None:
        """One that got nothing for a while takes part again: what its lanes have is its work."""
        consumer.work.clear()
        for lane in self._lanes:
            if lane.listed is consumer:
                lane.listed = None
                self._list(lane)

    def rebalance(self, members: Iterable[Consumer]) -> None:
        """Spread them over these, but not over those that have stalled while there are others. Only what has another
        owner than before is touched [queues-16]."""
        if not self.is_pinned:
            return
        everybody = sorted(members, key=lambda each: (each.joined_ms, each.client_id))
        taking = [each for each in everybody if not each.is_stalled] or everybody
        for lane, owner in zip(self._lanes, assign(len(self._lanes), taking), strict=True):
            if lane.owner is not owner:
                lane.owner = owner
                self._list(lane)
        for consumer in everybody:
            if consumer in consumer.client.draining:  # perhaps the suspect has another owner
                self.update_room(consumer)

    # What there is to see.

    def owners(self) -> list[str]:
        """Client id for each partition, "" for nobody; empty where partitions are not pinned."""
        return [lane.owner.client_id if lane.owner else "" for lane in self._lanes] if self.is_pinned else []

    def blocker(self, sequence: int) -> int:
        """The message behind which it waits, of the same key; 0 for none."""
        key = self._key(sequence)
        turn = self._lane(sequence).turns.get(key) if key is not None else None
        return 0 if turn is None or turn.head == sequence else turn.head

    def blocked_keys(self) -> int:
        """Keys behind whose message others wait, as far as anybody has looked."""
        return sum(lane.blocked for lane in self._lanes)

    def blocking(self, limit: int) -> list[tuple[str, int]]:
        """Up to `limit` of those keys, each with the message that is in the way."""
        turns = ((key, turn) for lane in self._lanes if lane.blocked for key, turn in lane.turns.items())
        return list(islice(((key, turn.head) for key, turn in turns if turn.waiting), limit))

    def suspects(self) -> int:
        """Messages that wait for a consumer that has nothing else; a late ack may have settled some since."""
        return sum(len(lane.suspects) for lane in self._lanes)

    # Inside.

    def _suspect_for(self, consumer: Consumer) -> int | None:
        """Take a suspect for a consumer that has room, if it has nothing else; else it gets nothing until that is so.
        Where nothing is ordered one consumer does that, the others go on."""
        lane = self._lane_with_suspect(consumer)
        if lane is None:
            self.stop_draining(consumer)
            self._end_draining()
            return None
        if not consumer.client.held:
            self.stop_draining(consumer)
            return heappop(lane.suspects)
        if self.is_pinned:
            consumer.client.drain(consumer)
        elif self._draining is None:
            self._draining = consumer
            consumer.client.drain(consumer)
        return None

    def _lane_with_suspect(self, consumer: Consumer) -> QueueLane | None:
        for lane in list(self._suspected):
            if not lane.has_suspect():
                del self._suspected[lane]
            elif lane.owner is consumer or not self.is_pinned:
                return lane
        return None

    def _end_draining(self) -> None:
        """Where nothing is ordered: who was to get a suspect goes on as before, when there is none left."""
        consumer = self._draining
        if consumer is not None and not self._lanes[0].has_suspect():
            self.stop_draining(consumer)
            self._loads.update(consumer)

    def _work_of(self, consumer: Consumer) -> QueueLane | None:
        """A lane of the consumer with work, another one each time."""
        if not self.is_pinned:
            return self._lanes[0] if self._lanes[0].has_work() else None
        while consumer.work:
            lane = consumer.work.popleft()
            if lane.owner is consumer and lane.has_work():
                consumer.work.append(lane)
                return lane
            if lane.listed is consumer:
                lane.listed = None
        return None

    def _may_go(self, lane: QueueLane, sequence: int) -> bool:
        key = self._key(sequence)
        return key is None or lane.take_turn(key, sequence)

    def _list(self, lane: QueueLane) -> None:
        """The lane may have work: its owner hears of it."""
        owner = lane.owner
        if owner is None or not (lane.has_work() or lane.suspects):
            return
        if lane.listed is not owner:
            lane.listed = owner
            owner.work.append(lane)
        if owner.has_room():
            self._awake[owner.client_id] = owner

    def _lane(self, sequence: int) -> QueueLane:
        return self._lanes[self._entries.partition(sequence) if self.is_pinned else 0]

    def _key(self, sequence: int) -> str | None:
        """What its order hangs on; None for nothing [queues-30]."""
        if self._ordering is Ordering.PARTITION:
            return self._entries.key(sequence)
        return _STRICT_KEY if self._ordering is Ordering.STRICT else None
