"""What there is in a queue and who owes it: a message is owed by the groups that it is for, and leaves nothing."""

from __future__ import annotations

import pytest
from tests.support.queue_bench import START_MS, TIMING
from tests.support.queue_writes import GatheredWrites

from embermq.model.queue_rows import EntryRow, GroupMark, MessageState
from embermq.queues.consumer import Client
from embermq.queues.consumer_clock import ConsumerClock
from embermq.queues.group import Group
from embermq.queues.latency import LatencyWindow
from embermq.queues.ledger import QueueLedger
from embermq.queues.settings import QueueSettings
from embermq.queues.settling import message_id_of


class LedgerBench:
    def __init__(self, *groups: str) -> None:
        self.gathered = GatheredWrites()
        self.ledger = QueueLedger(7, self.gathered, (), LatencyWindow())
        for name in groups:
            self.opens(name, 0)

    def opens(self, name: str, first_sequence: int) -> Group:
        is_for = self.ledger.identities.is_for
        group = Group(
            name,
            first_sequence,
            QueueSettings(name="q"),
            TIMING,
            self.ledger.entries,
            clock=ConsumerClock(),
            is_for=is_for,
            client_of=lambda _: Client(int),
            touch=lambda: None,
            reserve=lambda _, __: True,
        )
        self.ledger.groups[name] = group
        return group

    def comes(self, sequence: int, only_group: str = "", origin_id: str = "") -> EntryRow:
        row = EntryRow(7, sequence, 0, 40, -1, None, START_MS + 9, only_group=only_group, origin_id=origin_id)
        self.ledger.put(row)
        return row

    def owing(self, sequence: int) -> list[str]:
        return [name for name, group in self.ledger.groups.items() if group.owes(sequence)]


@pytest.mark.promise("queues-14", "queues-18")
def test_every_group_owes_what_comes_from_its_beginning_on() -> None:
    bench = LedgerBench("g", "h")
    bench.opens("late", 2)
    bench.comes(1)
    bench.comes(2)
    assert [bench.owing(1), bench.owing(2)] == [["g", "h"], ["g", "h", "late"]]
    assert [bench.ledger.entries.owed(sequence) for sequence in (1, 2)] == [2, 3]
    assert bench.gathered.present.entries.keys() == {(7, 1), (7, 2)}
    assert bench.ledger.deadlines.take_over(START_MS + 9, 3, 9) == [1, 2]


@pytest.mark.promise("queues-35")
def test_what_came_back_for_a_group_is_its_alone_and_the_first_is_passed_over() -> None:
    bench = LedgerBench("g", "h")
    bench.comes(1)
    back = bench.comes(2, only_group="g", origin_id=message_id_of(7, 1))
    bench.ledger.pass_over(back)
    assert [bench.owing(1), bench.owing(2)] == [["h"], ["g"]]
    assert bench.gathered.present.marks == {(7, "g", 1): GroupMark(MessageState.ACKED)}
    assert not bench.ledger.was_settled(2), "h is none of those that it was for"
    bench.ledger.groups["g"].drop(2, even_held=True)
    assert bench.ledger.was_settled(2)


@pytest.mark.promise("queues-17")
def test_what_goes_is_known_to_nobody() -> None:
    bench = LedgerBench("g", "h")
    unfilled = bench.opens("new", 0)
    unfilled.unfilled_from = 1
    bench.comes(1, origin_id="7-99")
    assert unfilled.owed == 1 and bench.ledger.identities.sequence_of("", "7-99") == 1
    bench.ledger.groups["g"].drop(1, even_held=True)
    bench.ledger.remove(1)
    assert bench.gathered.present.removed == {(7, 1): 40}
    assert not bench.ledger.entries and not bench.ledger.groups["g"].settled and unfilled.owed == 0
    assert bench.ledger.identities.sequence_of("", "7-99") != 1


@pytest.mark.promise("queues-20")
def test_a_stored_mark_says_what_is_settled() -> None:
    bench = LedgerBench("g", "h")
    row = EntryRow(7, 1, 0, 40, -1, None, START_MS)
    bench.ledger.place(row, 40, {(7, "g", 1): GroupMark(MessageState.DLQ)})
    assert bench.owing(1) == ["h"] and bench.ledger.was_settled(1)
    assert not bench.gathered.present.entries, "it is stored already"
