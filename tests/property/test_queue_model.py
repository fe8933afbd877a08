"""Producers and consumers of a durable queue against a model that knows what each group must have seen.

Consumers ack, nack, reject, extend, stay silent, leave, crash and come back; the broker is killed before or after a
commit, and starts again from what was stored. A message is told by the offset of its record.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import json
from tests.support.queue_rows import QueueRows
from tests.support.queue_writes import GatheredWrites

from embermq.model.queue_rows import MessageState
from embermq.queues.consumer import Newcomer
from embermq.queues.names import Verb
from embermq.queues.publication import Publication
from embermq.queues.queue import ConsumerDelivery, Fate
from embermq.queues.queues import Queues
from embermq.queues.settings import GroupSettings, Ordering, QueueSettings, parse_settings
from embermq.queues.settling import Outcome, SettleRequest

QUEUE = "work"
DEAD = "dlq/work"
GROUPS = ("g", "h")
CLIENTS = ("c1", "c2", "c3")
PREFETCH = 3
PARTITIONS = 3
MAX_RETRIES = 2
LEASE_MS = 30_000

groups = st.sampled_from(GROUPS)
clients = st.sampled_from(CLIENTS)


class QueueModel(RuleBasedStateMachine):
    ordering = Ordering.PARTITION

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.rows = QueueRows()
        self.log_end = 0
        self.epoch = 0
        self.keys: dict[int, str | None] = {}
        """Of every message that was stored and is not a repeat."""
        self.acked: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.purged: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.generations = 1
        """Above all that ever were."""
        self.members: dict[tuple[str, str], int] = {}
        """Connected consumers -> epoch."""
        self.held: dict[tuple[str, int], ConsumerDelivery] = {}
        """(group, offset) -> what a consumer may settle now, as far as the model knows."""
        self.delivered: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.deaf: set[str] = set()
        """Clients whose sockets take nothing."""
        self.unwritten: list[ConsumerDelivery] = []
        """What waits for them."""
        self.stalled: set[tuple[str, str]] = set()
        """(group, client) that get nothing until they are heard of."""
        self.timing = GroupSettings(join_debounce_ms=50, disconnect_grace_ms=5_000)
        self.gathered = GatheredWrites()
        self.queues = Queues(self.timing, 1, self.gathered)

    @initialize()
    def two_groups(self) -> None:
        self.queues.configure(self.settings())
        for group in GROUPS:
            self.join(group, "c1")

    def settings(self) -> QueueSettings:
        return parse_settings(
            QUEUE,
            json.encode(
                {
                    "ordering": self.ordering.value,
                    "partitions": 1 if self.ordering is Ordering.STRICT else PARTITIONS,
                    "retry_policy": {"max_retries": MAX_RETRIES},
                    "limits": {"max_queue_depth": 1_000},
                }
            ),
        )

    # What happens.

    @rule(
        key=st.sampled_from([None, "a", "b", "c"]),
        delay_s=st.sampled_from([0, 0, 0, 20]),
        dedup_id=st.sampled_from([None, None, "x", "y"]),
        fate=st.sampled_from(["stored", "stored", "stored", "refused", "killed before", "killed after"]),
    )
    def publish(self, key: str | None, delay_s: int, dedup_id: str | None, fate: str) -> None:
        visible_ms = self.now_ms + delay_s * 1_000 if delay_s else 0
        publication = Publication(key, dedup_id, visible_ms)
        acceptance = self.queues.accept(QUEUE, publication, 10, 0, self.now_ms)
        if acceptance.fate is Fate.REPEATED:
            self.tick()
            return
        offset = self.log_end
        if fate == "killed before":
            self.kill()
            return
        writes = self.gathered.take()
        if fate == "refused":
            self.queues.withdraw(QUEUE, acceptance.ticket)
            self.gathered.give_back(writes)
            self.tick()
            return
        self.rows.apply(writes, offset)
        self.log_end += 1
        self.keys[offset] = key
        if fate == "killed after":
            self.kill()
            return
        self.queues.commit(QUEUE, [(acceptance.ticket, offset)])
        self.tick()

    @rule(group=groups, client=clients)
    def join(self, group: str, client: str) -> None:
        self.epoch += 1
        for key, delivery in list(self.held.items()):
            if key[0] == group and delivery.client_id == client:
                del self.held[key]
        self.queues.join(QUEUE, group, Newcomer(client, self.epoch, PREFETCH), self.now_ms)
        self.members[group, client] = self.epoch
        self.stalled.discard((group, client))
        self.tick()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), may_return=st.booleans())
    def disconnect(self, data: st.DataObject, may_return: bool) -> None:
        group, client = data.draw(st.sampled_from(sorted(self.members)))
        del self.members[group, client]
        self.stalled.discard((group, client))
        for key, delivery in list(self.held.items()):
            if key[0] == group and delivery.client_id == client:
                del self.held[key]
        self.queues.leave(QUEUE, group, client, self.now_ms, may_return=may_return)
        self.tick()

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        verb=st.sampled_from([Verb.ACK, Verb.ACK, *Verb]),
        delay_ms=st.sampled_from([None, 7_000]),
    )
    def settle(self, data: st.DataObject, verb: Verb, delay_ms: int | None) -> None:
        delivery = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        assert self.say(delivery, verb, delay_ms) is Outcome.DONE

    @precondition(lambda self: self.held)
    @rule(data=st.data(), client=clients)
    def meddle(self, data: st.DataObject, client: str) -> None:
        """Nobody but the holder settles."""
        delivery = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        epoch = delivery.epoch + (client == delivery.client_id)
        request = SettleRequest(Verb.ACK, (delivery.stamps.message_id,), delivery.stamps.group)
        assert self.queues.settle(QUEUE, request, client, epoch, self.now_ms) == [Outcome.NOT_YOURS]

    @rule(client=clients)
    def go_deaf(self, client: str) -> None:
        """What it is sent does not reach its socket from now on."""
        self.deaf.add(client)

    @rule(client=clients)
    def hear(self, client: str) -> None:
        """It takes everything."""
        self.deaf.discard(client)
        for delivery in [each for each in self.unwritten if each.client_id == client]:
            self.unwritten.remove(delivery)
            self.queues.written((delivery,), self.now_ms)
        for group in GROUPS:
            self.queues.resume(QUEUE, group, client, self.now_ms)
            self.stalled.discard((group, client))
        self.tick()

    @rule(seconds=st.sampled_from([1, 4, 6, 29, 31, 400]))
    def wait(self, seconds: int) -> None:
        """Time passes, and everything is done when it is due."""
        end_ms = self.now_ms + seconds * 1_000
        while (due_ms := self.queues.next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.tick()
        self.now_ms = end_ms

    @rule()
    def kill(self) -> None:
        """Nothing of the process is left; consumers are gone, and come back by themselves."""
        self.gathered = GatheredWrites()
        self.queues = Queues(self.timing, self.generations, self.gathered)
        self.queues.restore(self.rows.load(), self.now_ms)
        self.held.clear()
        self.members.clear()
        self.stalled.clear()
        self.tick()

    @rule(data=st.data())
    def retry_dead(self, data: st.DataObject) -> None:
        dead = sorted(self.queues.queue(DEAD).entries)
        chosen = data.draw(st.lists(st.sampled_from(dead), unique=True)) if dead else []
        assert self.queues.retry_dead_letters(DEAD, chosen, self.now_ms).put_back == len(chosen)
        self.tick()

    @rule(limit=st.sampled_from([1, 2, 1_000]))
    def purge(self, limit: int) -> None:
        """An operator lets go of the oldest, whoever holds them."""
        work = self.queues.queue(QUEUE)
        owed = {
            number: [group for group in GROUPS if work.groups[group].owes(number)]
            for number in sorted(work.entries)[:limit]
        }
        late = sorted(work.delayed.rows)[: limit - len(owed)]
        for number, owing in owed.items():
            for group in owing:
                self.purged[group].add(work.entries[number].offset)
                self.held.pop((group, work.entries[number].offset), None)
        for ticket in late:
            for group in GROUPS:
                self.purged[group].add(work.delayed.rows[ticket].offset)
        assert self.queues.purge(QUEUE, work.end(), limit) == len(owed) + len(late)
        self.tick()

    @rule(fate=st.sampled_from(["stored", "refused"]))
    def delete(self, fate: str) -> None:
        """An empty queue goes, and is made again; one with messages stays."""
        work = self.queues.queue(QUEUE)
        was_empty = not work.entries and not work.delayed
        assert self.queues.delete(QUEUE) is was_empty
        if not was_empty:
            return
        self.generations = work.generation + 2  # that of the dead letters may have come after it
        if fate == "refused":
            self.gathered.give_back(self.gathered.take())
        self.members.clear()
        self.held.clear()
        self.stalled.clear()
        self.tick()
        assert work.generation not in self.rows.queues
        assert not [key for key in self.rows.groups if key[0] == work.generation]
        self.queues.configure(self.settings())
        assert self.queues.queue(QUEUE).generation > work.generation
        for group in GROUPS:
            self.join(group, "c1")

    # What the model makes of it.

    def say(self, delivery: ConsumerDelivery, verb: Verb, delay_ms: int | None = None) -> Outcome:
        group, offset = delivery.stamps.group, delivery.offset
        request = SettleRequest(
            verb,
            (delivery.stamps.message_id,),
            group,
            "why",
            delay_ms if verb is Verb.NACK else None,
        )
        (outcome,) = self.queues.settle(QUEUE, request, delivery.client_id, delivery.epoch, self.now_ms)
        if verb is not Verb.EXTEND:
            self.held.pop((group, offset), None)
        if verb is Verb.ACK and outcome is Outcome.DONE:
            self.acked[group].add(offset)
        self.tick()
        return outcome

    def tick(self) -> None:
        """One commit, then what is to be sent is sent."""
        deliveries = self.queues.run(self.now_ms)
        self.rows.apply(self.gathered.take(), self.log_end)
        self.let_go()
        for _, group, client in self.queues.take_stalled():
            self.stalled.add((group, client))
            for each in self.unwritten:  # it may be with somebody else by now
                key = (group, each.offset)
                if each.client_id == client and self.held.get(key) is each:
                    del self.held[key]
        for delivery in deliveries:
            self.check(delivery)
            self.held[delivery.stamps.group, delivery.offset] = delivery
            self.delivered[delivery.stamps.group].add(delivery.offset)
            if delivery.client_id in self.deaf:
                self.unwritten.append(delivery)
            else:
                self.queues.written((delivery,), self.now_ms)
        self.queues.run(self.now_ms)

    def let_go(self) -> None:
        """Forget what is not held any more: leases that are over."""
        queue = self.queues.queue(QUEUE)
        for (name, offset), delivery in list(self.held.items()):
            states = (
                queue.states(delivery.stamps.sequence) if delivery.stamps.sequence in queue.entries else {}
            )
            if states.get(name) is not MessageState.DELIVERED:
                del self.held[name, offset]

    def check(self, delivery: ConsumerDelivery) -> None:
        """A delivery that may be, by the rules of the ordering."""
        group, offset, stamps = delivery.stamps.group, delivery.offset, delivery.stamps
        assert self.members[group, delivery.client_id] == delivery.epoch, "to a consumer that is there"
        assert (group, delivery.client_id) not in self.stalled, "to one that takes something"
        assert (group, offset) not in self.held, "one consumer at a time"
        assert offset not in self.acked[group], "an acked message does not come again"
        holds = [
            each
            for each in self.held.values()
            if (each.client_id, each.stamps.group) == (delivery.client_id, group)
        ]
        assert len(holds) < PREFETCH
        if delivery.handed.attempts.is_suspect or any(each.handed.attempts.is_suspect for each in holds):
            assert not holds, "a suspect is handed to a consumer that has nothing else"
        owners = self.queues.queue(QUEUE).groups[group].lanes.owners()
        assert not owners or owners[stamps.partition] == delivery.client_id, "from a partition of its own"
        key = self.keys[offset]
        if self.ordering is Ordering.NONE or (self.ordering is Ordering.PARTITION and key is None):
            return
        generation = self.queues.queue(QUEUE).generation
        for (queue, sequence), row in [(one, self.rows.entries[one]) for one in self.rows.entries]:
            if queue != generation or sequence >= stamps.sequence or row.only_group not in ("", group):
                continue
            mark = self.rows.marks.get((generation, group, sequence))
            is_settled = mark is not None and mark.state in (MessageState.ACKED, MessageState.DLQ)
            same = self.ordering is Ordering.STRICT or row.key == key
            assert is_settled or not same, "an older one of its key is not settled"

    @invariant()
    def each_message_is_in_one_place(self) -> None:
        """For each group: owed, or acked, or in the dead letters; in what is stored, and in what the core has."""
        work, dead = self.queues.queue(QUEUE), self.queues.queue(DEAD)
        for group in GROUPS:
            for places in (
                [
                    *(
                        row.offset
                        for (queue, _), row in self.rows.delayed.items()
                        if queue == work.generation
                    ),
                    *self.owed_rows(work.generation, group),
                    *self.dead_rows(dead.generation, group),
                    *self.acked[group],
                    *self.purged[group],
                ],
                [
                    *(row.offset for row in work.delayed.rows.values()),
                    *(
                        work.entries[number].offset
                        for number in work.entries
                        if work.groups[group].owes(number)
                    ),
                    *(
                        dead.entries[number].offset
                        for number in dead.entries
                        if (letter := dead.dead_letter(number)) is not None and letter.group == group
                    ),
                    *self.acked[group],
                    *self.purged[group],
                ],
            ):
                assert sorted(places) == sorted(self.keys)

    def owed_rows(self, generation: int, group: str) -> Iterable[int]:
        for (queue, sequence), row in [(one, self.rows.entries[one]) for one in self.rows.entries]:
            mark = self.rows.marks.get((generation, group, sequence))
            is_settled = mark is not None and mark.state in (MessageState.ACKED, MessageState.DLQ)
            if queue == generation and row.only_group in ("", group) and not is_settled:
                yield row.offset

    def dead_rows(self, generation: int, group: str) -> Iterable[int]:
        for (queue, _), row in [(one, self.rows.entries[one]) for one in self.rows.entries]:
            if queue == generation and row.dead_letter is not None and row.dead_letter.group == group:
                yield row.offset

    def teardown(self) -> None:
        """Whoever acks everything gets everything."""
        if not self.members and not self.keys:
            return
        for client in CLIENTS:
            self.hear(client)
        for group in GROUPS:
            self.join(group, "c1")
        self.retry_all()
        for _ in range(200):
            if all(self.acked[group] | self.purged[group] == set(self.keys) for group in GROUPS):
                break
            for delivery in list(self.held.values()):
                if (delivery.stamps.group, delivery.offset) in self.held:
                    assert self.say(delivery, Verb.ACK) is Outcome.DONE
            self.wait(10)
            self.retry_all()
        for group in GROUPS:
            assert self.acked[group] | self.purged[group] == set(self.keys)
            assert self.delivered[group] >= set(self.keys) - self.purged[group], "at least once"
        queue = self.queues.queue(QUEUE)
        assert not queue.entries and queue.depth() == 0
        assert not [key for key in self.rows.entries if key[0] == queue.generation]
        assert not [key for key in self.rows.marks if key[0] == queue.generation]

    def retry_all(self) -> None:
        self.queues.retry_dead_letters(DEAD, sorted(self.queues.queue(DEAD).entries), self.now_ms)
        self.tick()


@pytest.mark.parametrize("ordering", Ordering)
def test_each_group_sees_each_message_in_its_order(ordering: Ordering) -> None:
    class Model(QueueModel):
        pass

    Model.ordering = ordering
    examples = max(30, settings().max_examples // 40)
    run_state_machine_as_test(
        Model, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )
