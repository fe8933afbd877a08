"""Messages that go between queues on Redis in all directions, many ticks at a time, while each server answers when it
likes: nothing waits in a circle, and nothing is taken away that is not stored elsewhere [queues-34]."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.queue_owners import QueueOwners
from embermq.adapters.redis.queue_writer import GENERATION, PUT, RedisQueueWriter
from embermq.adapters.redis.script import Script
from embermq.adapters.redis.unanswered import Unanswered
from embermq.adapters.redis.wire import Then, Word
from embermq.model.queue_rows import EntryRow, Move, QueueSettingsRow, QueueWrites

QUEUES = (1, 2, 3)
Stored = dict[int, bytes]


class Slots(RedisLink):
    """Each key does what it is asked in order, when it is told to."""

    def __init__(self) -> None:
        self.asked: dict[str, deque[tuple[Sequence[Word], Then]]] = {}
        self.queues: dict[str, Stored] = {f"q:s:{{q{number}}}": {} for number in QUEUES}
        self.copies_min = 0

    def ask(self, key: str, script: Script, keys: Sequence[Word], args: Sequence[Word], then: Then) -> None:
        assert script in (PUT, GENERATION)
        self.asked.setdefault(key, deque()).append((args, then))

    def command(self, key: str, words: Sequence[Word], then: Then) -> None:
        self.asked.setdefault(key, deque()).append((words, then))

    def answer(self, key: str) -> None:
        words, then = self.asked[key].popleft()
        if not self.asked[key]:
            del self.asked[key]
        if key not in self.queues:
            then(1)
        elif words[0] == "HMGET":
            then([self.queues[key].get(int(number)) for number in words[2:]])
        else:
            self._put_rows(self.queues[key], words)
            then(1)

    def _put_rows(self, stored: Stored, words: Sequence[Word]) -> None:
        lists: list[list[Word]] = []
        at = 4
        while at < len(words):
            count = int(words[at])
            lists.append(list(words[at + 1 : at + 1 + count]))
            at += count + 1
        bodies, removed = lists[2], lists[-1]
        for number, body in zip(bodies[::2], bodies[1::2], strict=True):
            assert isinstance(body, bytes)
            stored[int(number)] = body
        for number in removed:
            del stored[int(number)]


@given(st.data())
def test_every_message_is_somewhere_at_any_moment_and_all_ticks_end(data: st.DataObject) -> None:
    slots, ended = Slots(), list[int]()
    unanswered = Unanswered()
    writer = RedisQueueWriter(slots, QueueOwners(), unanswered, lambda _, then: then(), lambda: 0)
    places: dict[int, tuple[int, int]] = {}
    next_number = dict.fromkeys(QUEUES, 1)
    published = 0
    for tick in range(data.draw(st.integers(1, 6))):
        writes = QueueWrites()
        if not tick:
            writes.queues = {number: QueueSettingsRow(number, f"q{number}", b"{}", 1) for number in QUEUES}
        records: list[bytes] = []
        base = published
        older = dict(places)
        for _ in range(data.draw(st.integers(0, 2))):
            queue = data.draw(st.sampled_from(QUEUES))
            number, next_number[queue] = next_number[queue], next_number[queue] + 1
            writes.entries[queue, number] = EntryRow(queue, number, 0, -1, len(records), None, 0)
            records.append(b"%d" % published)
            places[published] = (queue, number)
            published += 1
        for message in data.draw(st.lists(st.sampled_from(sorted(older)), max_size=4)) if older else ():
            source, sequence = places[message]
            target = data.draw(st.sampled_from([queue for queue in QUEUES if queue != source]))
            number, next_number[target] = next_number[target], next_number[target] + 1
            writes.entries[target, number] = EntryRow(target, number, 0, message, -1, None, 0)
            writes.removed[source, sequence] = message
            writes.moves.append(Move(source, sequence, "", target, number))
            places[message] = (target, number)
        all_asked = unanswered.begin_tick(lambda tick=tick: ended.append(tick))  # type: ignore[misc]
        writer.submit(writes, base, published, records)
        all_asked()
        known = set[bytes]()
        for _ in range(data.draw(st.integers(0, 8))):
            if slots.asked:
                slots.answer(data.draw(st.sampled_from(sorted(slots.asked))))
            there = {body for stored in slots.queues.values() for body in stored.values()}
            assert known <= there, "what was stored is stored somewhere"
            known = there
    while slots.asked:
        slots.answer(data.draw(st.sampled_from(sorted(slots.asked))))
    assert ended == list(range(tick + 1)) and not writer.held_bytes
    for name, stored in slots.queues.items():
        queue = int(name[-2])
        assert stored == {number: b"%d" % message for message, (at, number) in places.items() if at == queue}
