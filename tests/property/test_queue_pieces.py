"""Groups that come and go in pieces, between publishes, acks, purges and crashes: whatever the order, a group gets what
was there when it came and what came later, in order, and a message is there for as long as somebody owes it. Dead
letters go back meanwhile, and whatever else is there an id means one message to a group."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.queue_rows import QueueRows
from tests.support.queue_writes import GatheredWrites

from embermq.queues.consumer import EARLIEST, LATEST, Newcomer
from embermq.queues.entries import FILLED
from embermq.queues.names import Verb
from embermq.queues.publication import Publication
from embermq.queues.queue import ConsumerDelivery
from embermq.queues.queues import Queues
from embermq.queues.settings import GroupSettings, parse_settings
from embermq.queues.settling import Outcome, SettleRequest

QUEUE = "work"
DEAD = "dlq/work"
GROUPS = ("a", "b", "c")
NOW_MS = 1_000_000


class PiecesModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rows = QueueRows()
        self.log_end = 0
        self.epoch = 0
        self.owed: dict[str, set[int]] = {}
        """By group, offsets that it has to settle."""
        self.acked: dict[str, set[int]] = {}
        self.held: dict[str, list[ConsumerDelivery]] = {}
        self.letters: dict[int, tuple[str, int]] = {}
        """Dead letters by their sequence: group and offset."""
        self.gathered = GatheredWrites()
        self.queues = Queues(GroupSettings(), 1, self.gathered)
        self.queues.configure(
            parse_settings(QUEUE, b'{"partitions": 1, "retry_policy": {"max_retries": 1000}}')
        )
        self.store()

    def store(self) -> None:
        self.rows.apply(self.gathered.take(), self.log_end)

    def step(self) -> None:
        """One tick: one piece."""
        for delivery in self.queues.run(NOW_MS):
            held = self.held[delivery.stamps.group]
            assert delivery.offset in self.owed[delivery.stamps.group]
            before = held[-1].stamps.sequence if held else 0
            assert before < delivery.stamps.sequence, "no message is offered before an older one"
            held.append(delivery)
            self.queues.written((delivery,), NOW_MS)
        self.store()

    @rule(count=st.integers(1, 6))
    def publish(self, count: int) -> None:
        tickets = [self.queues.accept(QUEUE, Publication(), 1, record, NOW_MS) for record in range(count)]
        self.store()
        for acceptance in tickets:
            self.queues.commit(QUEUE, [(acceptance.ticket, self.log_end)])
            for owed in self.owed.values():
                owed.add(self.log_end)
            self.log_end += 1
        self.step()

    @rule(group=st.sampled_from(GROUPS), start=st.sampled_from([EARLIEST, EARLIEST, LATEST, 4]))
    def come(self, group: str, start: int) -> None:
        queue = self.queues.queue(QUEUE)
        self.epoch += 1
        if group not in self.owed:
            first = queue.end() if start == LATEST else start
            self.owed[group] = {
                queue.entries[each].offset
                for each in queue.entries
                if each >= first and self.only_group(each) in ("", group)
            }
            self.acked[group] = set()
        self.held[group] = []
        self.queues.join(QUEUE, group, Newcomer(f"{group}-1", self.epoch, 1_000, start=start), NOW_MS)
        self.step()

    def only_group(self, sequence: int) -> str:
        return self.rows.entries[self.queues.queue(QUEUE).generation, sequence].only_group

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), verb=st.sampled_from([Verb.ACK, Verb.ACK, Verb.REJECT]))
    def settle(self, data: st.DataObject, verb: Verb) -> None:
        group = data.draw(st.sampled_from(sorted(one for one, held in self.held.items() if held)))
        self.end(verb, group, data.draw(st.integers(0, len(self.held[group]) - 1)))

    def end(self, verb: Verb, group: str, at: int) -> None:
        delivery = self.held[group].pop(at)
        request = SettleRequest(verb, (delivery.stamps.message_id,), group)
        outcomes = self.queues.settle(QUEUE, request, delivery.client_id, delivery.epoch, NOW_MS)
        assert outcomes == [Outcome.DONE]
        self.owed[group].discard(delivery.offset)
        if verb is Verb.ACK:
            self.acked[group].add(delivery.offset)
        else:
            self.letters[self.queues.queue(DEAD).end() - 1] = (group, delivery.offset)
        self.store()

    @precondition(lambda self: self.letters)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.letters)), unique=True, min_size=1))
        assert self.queues.retry_dead_letters(DEAD, chosen, NOW_MS).put_back == len(chosen)
        for sequence in chosen:
            group, offset = self.letters.pop(sequence)
            self.owed.setdefault(group, set()).add(offset)
            self.acked.setdefault(group, set())
            self.held.setdefault(group, [])
        self.store()

    @precondition(lambda self: self.owed)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.owed)))
        self.queues.leave(QUEUE, group, f"{group}-1", NOW_MS)
        assert self.queues.remove_group(QUEUE, group)
        del self.owed[group], self.acked[group]
        self.held.pop(group, None)
        self.store()

    @rule(limit=st.integers(1, 3))
    def purge(self, limit: int) -> None:
        queue = self.queues.queue(QUEUE)
        gone = list(queue.entries)[:limit]
        for name in self.owed:
            owing = [each for each in gone if queue.groups[name].owes(each)]
            self.owed[name] -= {queue.entries[each].offset for each in owing}
            self.held[name] = [each for each in self.held.get(name, []) if each.stamps.sequence not in gone]
        self.queues.purge(QUEUE, queue.end(), limit)
        self.store()

    @rule()
    def tick(self) -> None:
        self.step()

    def work(self) -> None:
        for _ in range(1_000):
            if self.queues.next_due_ms() != 0:
                break
            self.step()

    def try_suspects(self) -> None:
        """A consumer that came back gets what it held before as suspects, one at a time: it acks each, so that the
        next one comes, and at last all that is no suspect."""
        for group, held in self.held.items():
            while held and held[0].handed.attempts.is_suspect:
                assert len(held) == 1, "a suspect is alone"
                self.end(Verb.ACK, group, 0)
                self.work()

    @rule()
    def finish(self) -> None:
        """Everything is offered, and gone, that is to be."""
        self.work()
        self.try_suspects()
        queue = self.queues.queue(QUEUE)
        for sequence in queue.entries:
            offset = queue.entries[sequence].offset
            owing = sum(group.owes(sequence) for group in queue.groups.values())
            assert queue.entries.owed(sequence) == owing
            was_acked = any(offset in acked for acked in self.acked.values())
            assert owing or self.only_group(sequence) or not was_acked, "it had to go"
        for group, held in self.held.items():
            if queue.groups[group].members:
                assert {delivery.offset for delivery in held} == self.owed[group]

    @rule()
    def kill(self) -> None:
        self.gathered.take()
        self.queues = Queues(GroupSettings(), 2, self.gathered)
        self.queues.restore(self.rows.load(), NOW_MS)
        for group in self.owed:
            self.held[group] = []
            self.epoch += 1
            self.queues.join(QUEUE, group, Newcomer(f"{group}-1", self.epoch, 1_000), NOW_MS)
        self.store()

    @invariant()
    def nothing_is_lost(self) -> None:
        queue = self.queues.queue(QUEUE)
        assert queue.groups.keys() == self.owed.keys()
        stored = {row.offset for row in self.rows.entries.values() if row.dead_letter is None}
        for name, owed in self.owed.items():
            group = queue.groups[name]
            owes = [each for each in queue.entries if group.owes(each)]
            assert sorted(queue.entries[each].offset for each in owes) == sorted(owed), "each once"
            assert owed <= stored
            if group.unfilled_from == FILLED:
                assert group.owed == len(owed)


@pytest.mark.promise("queues-17", "queues-18", "queues-35", "queues-43")
def test_groups_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embermq.queues.queues.PIECE", 2)
    examples = max(75, settings().max_examples // 40)
    run_state_machine_as_test(
        PiecesModel, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )
