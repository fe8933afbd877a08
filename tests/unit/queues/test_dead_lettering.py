"""Messages that end without having been settled: to the dead letters, or counted."""

from __future__ import annotations

import pytest
from tests.support.queue_bench import START_MS, TIMING
from tests.support.queue_writes import GatheredWrites

from embermq.model.queue_rows import Attempts, DeadLetter, DeadLetterReason, EntryRow, GroupMark, MessageState
from embermq.queues.consumer import Client, Newcomer
from embermq.queues.consumer_clock import ConsumerClock
from embermq.queues.dead_letter_quota import DeadLetterQuota
from embermq.queues.dead_lettering import DeadLettering
from embermq.queues.group import Group
from embermq.queues.latency import LatencyWindow
from embermq.queues.ledger import QueueLedger
from embermq.queues.settings import DeadLetterConfig, Limits, QueueSettings, TtlAction
from embermq.queues.settling import message_id_of

EXPIRED, OVERFLOW = DeadLetterReason.EXPIRED, DeadLetterReason.OVERFLOW


class LossesBench:
    """Message 1, for these groups."""

    def __init__(
        self,
        *groups: str,
        enabled: bool = True,
        ttl_action: TtlAction = TtlAction.DLQ,
        room_bytes: int = 10_000,
    ) -> None:
        self.settings = QueueSettings(
            name="q", dlq_config=DeadLetterConfig(enabled=enabled), limits=Limits(ttl_action=ttl_action)
        )
        self.gathered = GatheredWrites()
        self.ledger = QueueLedger(7, self.gathered, (), LatencyWindow())
        self.dead_lettering = DeadLettering(self.ledger, self.settings, DeadLetterQuota(room_bytes))
        for name in groups:
            self.ledger.groups[name] = Group(
                name,
                0,
                self.settings,
                TIMING,
                self.ledger.entries,
                clock=ConsumerClock(),
                is_for=self.ledger.identities.is_for,
                client_of=lambda _: Client(int),
                touch=lambda: None,
                reserve=self.dead_lettering.reserve,
            )
        self.ledger.put(EntryRow(7, 1, 0, 40, -1, "k", START_MS))

    def letters(self) -> list[tuple[str, str]]:
        return [(burial.letter.group, burial.letter.reason) for burial in self.dead_lettering.buried]


@pytest.mark.promise("queues-34")
def test_each_group_that_owes_it_has_a_dead_letter_of_its_own() -> None:
    bench = LossesBench("g", "h")
    bench.dead_lettering.end(1, EXPIRED, START_MS)
    assert bench.letters() == [("g", EXPIRED), ("h", EXPIRED)]
    burial = bench.dead_lettering.buried[0]
    assert (burial.target, burial.offset, burial.key) == ("dlq/q", 40, "k")
    assert burial.letter == DeadLetter("q", "g", EXPIRED, message_id_of(7, 1), Attempts(), START_MS)
    assert bench.dead_lettering.dead_letters == {EXPIRED: 2} and not bench.dead_lettering.dropped
    assert not bench.ledger.entries and bench.gathered.present.removed == {(7, 1): 40}


@pytest.mark.promise("queues-31", "queues-34")
def test_whoever_holds_it_keeps_it() -> None:
    bench = LossesBench("g", "h")
    holder = bench.ledger.groups["g"]
    holder.join(Newcomer("c", 1, 1), START_MS)
    assert [each.sequence for each in holder.deliver(START_MS)] == [1]
    bench.dead_lettering.end(1, OVERFLOW, START_MS)
    assert bench.letters() == [("h", OVERFLOW)] and 1 in bench.ledger.entries
    assert bench.gathered.present.marks == {(7, "h", 1): GroupMark(MessageState.DLQ)}
    assert bench.ledger.entries.owed(1) == 1


def test_what_nobody_got_is_a_dead_letter_of_no_group() -> None:
    bench = LossesBench()
    bench.dead_lettering.end(1, EXPIRED, START_MS)
    assert bench.letters() == [("", EXPIRED)] and not bench.ledger.entries


@pytest.mark.promise("queues-31", "queues-33")
@pytest.mark.parametrize(
    ("enabled", "ttl_action", "reason", "dropped"),
    [
        (False, TtlAction.DLQ, OVERFLOW, 1),
        (True, TtlAction.DROP, EXPIRED, 1),
        (True, TtlAction.DROP, OVERFLOW, 0),
        (True, TtlAction.DLQ, EXPIRED, 0),
    ],
)
def test_where_it_may_not_become_one_it_is_dropped_and_counted(
    enabled: bool, ttl_action: TtlAction, reason: str, dropped: int
) -> None:
    bench = LossesBench("g", enabled=enabled, ttl_action=ttl_action)
    bench.dead_lettering.end(1, reason, START_MS)
    assert (bench.dead_lettering.dropped[reason], bench.dead_lettering.dead_letters[reason]) == (
        dropped,
        1 - dropped,
    )
    assert len(bench.dead_lettering.buried) == 1 - dropped and not bench.ledger.entries
