"""Messages that go from one queue to another on Redis, between two slots: killed after each answer, they are in one
place, with their bodies [queues-34]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from tests.contracts.servers_stores import ServersStores

from embermq.adapters.redis.queue_parts import ROWS_MAX
from embermq.formats.log_record import decode_record, encode_record
from embermq.formats.redis_queues import moved_field, queue_keys
from embermq.model.message import Message
from embermq.model.tick_writes import TickWrites
from embermq.queues.consumer import Newcomer
from embermq.queues.mqtt.tail import enqueue_tail
from embermq.queues.names import Verb
from embermq.queues.publication import Publication
from embermq.queues.queue import ConsumerDelivery
from embermq.queues.queues import Queues
from embermq.queues.settings import GroupSettings, parse_settings
from embermq.queues.settling import SettleRequest
from embermq.sessions.tick import Tick

NOW_MS = 2**41
TEXTS = (b"one", b"two", b"three")
LATE_MS = 60_000
TIMING = GroupSettings(join_debounce_ms=0)


class Killed(Exception):
    """The broker has had as many answers as it gets."""


@pytest.fixture(params=["redis_server", pytest.param("redis_cluster", marks=pytest.mark.in_faults)])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServersStores]:
    opened = ServersStores(request.getfixturevalue(request.param).url, tmp_path)
    yield opened
    opened.close()


class Life:
    """A broker's queues on these stores; it is killed when it has had `answers`."""

    def __init__(self, stores: ServersStores, answers: int = -1) -> None:
        self.stores = stores
        self.left = answers
        self.now_ms = NOW_MS
        self.tick = Tick(NOW_MS)
        self.core = Queues(TIMING, stores.queues.next_generation(), lambda: self.tick.writes.queues)
        self.core.restore(stores.queues.load(), NOW_MS)
        store = stores.redis_queues
        enqueue_tail(self.core, self.tick, stores.log, store.log_start(), store.complete_to)

    def commit(self, *texts: bytes, delay_ms: int = 0) -> None:
        """A tick with these publishes; its answers are not waited for, but that of the log."""
        tickets: list[int] = []
        for number, text in enumerate(texts):
            visible_ms = self.now_ms + delay_ms if delay_ms else 0
            publication = Publication(None, None, visible_ms)
            tickets.append(self.core.accept("work", publication, len(text), number, self.now_ms).ticket)
        batch = self.tick.take()
        records = [
            encode_record(Message("$queue/work", text, 1, False, "p", 5, self.now_ms)) for text in texts
        ]
        writes = TickWrites(records=records, queues=batch.writes.queues)
        answers = self.stores.submit(writes)
        while not answers:
            self.step()
        base = answers[0].base_offset  # type: ignore[union-attr]
        for number, ticket in enumerate(tickets):
            self.core.commit("work", [(ticket, base + number)])

    def step(self) -> None:
        if not self.left:
            raise Killed
        self.left -= 1
        self.stores.posted.get(timeout=30)()

    def settle(self) -> None:
        while not self.stores.posted.empty():
            self.step()

    def run(self) -> dict[str, ConsumerDelivery]:
        """What is handed out, by message id."""
        return {delivery.stamps.message_id: delivery for delivery in self.core.run(self.now_ms)}

    def live(self) -> None:
        """Two are rejected by one group, of which one was acked by the other and one is put back; the third was
        delayed and comes."""
        self.core.configure(parse_settings("work", b'{"partitions":1,"ordering":"none"}'))
        for group in ("g", "h"):
            self.core.join("work", group, Newcomer(f"c{group}", 1, 10), self.now_ms)
        self.commit(*TEXTS[:2])
        self.commit(TEXTS[2], delay_ms=LATE_MS)
        first, second = self.run()
        self.settle_one(Verb.ACK, "h", first)
        self.commit()
        self.settle_one(Verb.REJECT, "g", first)
        self.settle_one(Verb.REJECT, "g", second)
        self.commit()
        letters = list(self.core.queue("dlq/work").entries)
        self.core.retry_dead_letters("dlq/work", letters[:1], self.now_ms)
        self.commit()
        self.now_ms += LATE_MS
        self.run()
        self.commit()
        self.settle()

    def settle_one(self, verb: Verb, group: str, message_id: str) -> None:
        request = SettleRequest(verb, (message_id,), group)
        self.core.settle("work", request, f"c{group}", 1, self.now_ms)

    def places(self) -> Counter[tuple[str, bytes]]:
        """For each group, where it has what; a body that cannot be read is nothing."""
        found: Counter[tuple[str, bytes]] = Counter()
        for name in ("work", "dlq/work"):
            queue = self.core.find(name)
            if queue is None:
                continue
            for sequence in queue.entries:
                text = self.text(queue.generation, queue.entries[sequence].offset, sequence)
                letter = queue.dead_letter(sequence)
                groups = [letter.group] if letter is not None else list(queue.states(sequence))
                found.update((group, text) for group in groups)
            for row in queue.delayed.rows.values():
                text = self.text(queue.generation, row.offset, row.ticket)
                found.update((group, text) for group in queue.groups)
        return found

    def text(self, generation: int, offset: int, number: int) -> bytes:
        (record,) = self.stores.body(generation, {offset: number}).values()
        return decode_record(record).message.payload if record is not None else b""


def kill(stores: ServersStores) -> None:
    """What it has not had answered it never hears of."""
    while not stores.posted.empty():
        stores.posted.get()
    stores.in_process.close()
    stores.raw.close()
    stores.posted = SimpleQueue[Callable[[], None]]()
    stores.in_process.post = stores.posted.put
    stores._open()


@pytest.mark.promise("queues-34", "queues-35")
def test_killed_after_each_answer_each_group_has_each_message_once(stores: ServersStores) -> None:
    expected = {(group, text) for group in ("g", "h") for text in TEXTS}
    answers = 0
    while True:
        life = Life(stores, answers)
        try:
            life.live()
        except Killed:
            kill(stores)
        else:
            break
        _judge(stores, expected)
        _clear(stores)
        answers += 1
    assert answers > 10
    _judge(stores, expected)


def test_what_was_taken_is_not_taken_from_a_group_of_that_name_that_came_later(stores: ServersStores) -> None:
    """The new queue remembers where the letter comes from until it has something to write."""
    life = Life(stores)
    for group in ("g", "h"):
        life.core.join("work", group, Newcomer(f"c{group}", 1, 10), life.now_ms)
    life.commit(b"one")
    (message_id,) = life.run()
    life.settle_one(Verb.REJECT, "g", message_id)
    life.commit()
    life.settle()
    life.core.remove_group("work", "g")
    life.core.open_group("work", "g", life.now_ms)
    life.commit()
    life.run()
    life.settle()
    assert life.places() == {("g", b"one"): 2, ("h", b"one"): 1}, "it owes it anew, and the letter stays"
    kill(stores)
    assert Life(stores).places() == {("g", b"one"): 2, ("h", b"one"): 1}


def test_a_deleted_queue_does_not_come_back_with_what_was_settled(stores: ServersStores) -> None:
    """The log has it still, above the floor; what is left of the queue goes when the floor has passed."""
    life = Life(stores)
    life.core.join("work", "g", Newcomer("cg", 1, 10), life.now_ms)
    life.commit(b"one")
    (message_id,) = life.run()
    life.settle_one(Verb.ACK, "g", message_id)
    life.commit()
    assert life.core.delete("work")
    life.commit()
    life.settle()
    kill(stores)
    life = Life(stores)
    assert life.core.find("work") is None
    key = "q:s:{work}"
    assert key in stores.all_keys()
    stores.writer_of_state.forget_below(stores.in_process.end)
    stores.settle()
    stores.writer_of_state.forget_below(stores.in_process.end)
    stores.settle()
    assert key not in stores.all_keys()
    kill(stores)
    assert Life(stores).core.find("work") is None


def test_a_deleted_queue_does_not_come_back_when_its_beginning_is_repeated(stores: ServersStores) -> None:
    """As when the broker is killed while it sends again what it had no answer to."""
    life = Life(stores)
    asked = stores.link.asked
    life.core.open_group("work", "g", life.now_ms)
    life.commit()
    assert life.core.delete("work")
    life.commit()
    life.settle()
    stores.link.repeat(stores.link.asked - asked, 2)
    kill(stores)
    assert Life(stores).core.find("work") is None


@pytest.mark.parametrize("ticks", [1, 2])
def test_a_queue_made_again_under_its_name_has_nothing_of_the_one_before(
    stores: ServersStores, ticks: int
) -> None:
    """The log has that still, above the floor."""
    life = Life(stores)
    life.core.join("work", "g", Newcomer("cg", 1, 10), life.now_ms)
    life.commit(b"one")
    (message_id,) = life.run()
    life.settle_one(Verb.ACK, "g", message_id)
    life.commit()
    assert life.core.delete("work")
    if ticks == 2:
        life.commit()
    life.core.open_group("work", "h", life.now_ms)
    life.commit()
    life.settle()
    kill(stores)
    life = Life(stores)
    assert not life.places()
    life.commit(b"two")
    life.settle()
    kill(stores)
    assert Life(stores).places() == {("h", b"two"): 1}


def test_a_queue_that_is_made_by_many_messages_loses_none_of_them(stores: ServersStores) -> None:
    """It may be killed between two of the calls that they need, and takes the others from the log."""
    texts = [b"%d" % number for number in range(ROWS_MAX + 1)]
    answers = 0
    while True:
        life = Life(stores, answers)
        try:
            life.commit(*texts)
            life.settle()
        except Killed:
            kill(stores)
        else:
            break
        queue = Life(stores).core.find("work")
        assert (len(queue.entries) if queue is not None else 0) == stores.in_process.end
        _clear(stores)
        answers += 1
    assert answers > 2


@pytest.mark.parametrize("most", range(4))
def test_a_message_is_there_once_when_only_the_first_calls_are_repeated(
    stores: ServersStores, most: int
) -> None:
    """As when the broker is killed while it sends again what it had no answer to."""
    life = Life(stores)
    life.core.open_group("work", "g", life.now_ms)
    asked = stores.link.asked
    for text in TEXTS:
        life.commit(text)
    life.settle()
    stores.link.repeat(stores.link.asked - asked, most)
    kill(stores)
    assert Life(stores).places() == dict.fromkeys((("g", text) for text in TEXTS), 1)


def test_a_queue_that_only_gets_letters_forgets_from_where(stores: ServersStores) -> None:
    """That they have left there is known a moment later, and nothing else may ever be stored of it."""
    life = Life(stores)
    life.core.join("work", "g", Newcomer("cg", 1, 10), life.now_ms)
    for text in TEXTS:
        life.commit(text)
        (message_id,) = life.run()
        life.settle_one(Verb.REJECT, "g", message_id)
        life.commit()
        life.settle()
    key = queue_keys("dlq/work", "").progress
    assert stores.raw.command(key, "HLEN", key) == 2, "how far it is complete, and the newest"


def test_very_much_to_forget_is_forgotten_bit_by_bit(stores: ServersStores) -> None:
    """A script takes some thousand words of a kind at most."""
    life = Life(stores)
    life.commit(*TEXTS)
    life.settle()
    key = queue_keys("work", "").progress
    for first in range(0, 9_000, 1_000):
        words = [word for number in range(first, first + 1_000) for word in (moved_field(7, number, 1), "[]")]
        stores.raw.command(key, "HSET", key, *words)
    kill(stores)
    life = Life(stores)
    for number in range(9_000 // ROWS_MAX):
        life.commit(b"%d" % number)
        life.settle()
    assert not stores.link.refused
    assert stores.raw.command(key, "HLEN", key) == 1


def _judge(stores: ServersStores, expected: set[tuple[str, bytes]]) -> None:
    for _ in range(2):  # as it is found, and as that is stored and found again
        life = Life(stores)
        life.now_ms += 1
        life.commit()
        life.settle()
        found = life.places()
        published = stores.in_process.end
        assert all(count == 1 for count in found.values()), found
        assert b"" not in {text for _, text in found}
        texts = set(TEXTS[:published] if published != 2 else TEXTS[:2])
        for group, text in expected:
            queue = life.core.find("work")
            if text in texts and queue is not None and group in queue.groups:
                is_acked = (group, text) == ("h", TEXTS[0])
                assert (group, text) in found or is_acked, (group, text)
        kill(stores)


def _clear(stores: ServersStores) -> None:
    for master in stores.raw.masters:
        master.flushall()
    stores.in_process.batches.clear()
    stores.in_process.end = 0
    kill(stores)
