"""Messages that end without having been settled: they become dead letters, or are dropped and counted
[queues-25] [queues-31]. Where dead letters have no room they do not end: the queue keeps them [queues-34]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from embermq.model.queue_rows import Attempts, DeadLetter, DeadLetterReason, MessageState
from embermq.queues.dead_letter_quota import DeadLetterQuota
from embermq.queues.entries import Entries
from embermq.queues.group import Group
from embermq.queues.lanes import LOOKED_AT_MAX
from embermq.queues.ledger import QueueLedger
from embermq.queues.settings import QueueSettings, TtlAction
from embermq.queues.values import Burial


class Heads:
    """Finds the oldest messages of one queue that no consumer holds, one after another: what was passed over, since
    it was held then, has its turn again when nothing is left behind it."""

    def __init__(self, entries: Entries, groups: Mapping[str, Group]) -> None:
        self._entries = entries
        self._groups = groups
        self._next = 1

    def find(self, end: int) -> int:
        """The oldest message below `end` that the slowest group owes and nobody holds; 0 when there is none."""
        slowest = max(self._groups.values(), key=lambda group: group.owed, default=None)
        began = self._next
        for _ in range(LOOKED_AT_MAX):
            sequence = self._entries.first_from(self._next, end)
            if sequence >= end:
                if began == 1:
                    return 0
                began = self._next = 1
                continue
            self._next = sequence + 1
            is_owed = slowest is None or slowest.owes(sequence)
            if is_owed and not any(group.holds(sequence) for group in self._groups.values()):
                return sequence
        return 0


class DeadLettering:
    """Dead letters of one queue: what becomes one, where it goes, and the room that it takes there."""

    def __init__(self, ledger: QueueLedger, settings: QueueSettings, room: DeadLetterQuota) -> None:
        self.settings = settings
        self.room = room
        self.buried: list[Burial] = []
        """Dead letters that have yet to be placed in their queue; their room is reserved."""
        self.dead_letters: Counter[str] = Counter()
        """By reason."""
        self.dropped: Counter[str] = Counter()
        """By reason: messages that ended without having been settled by all, for want of a dead-letter queue too."""
        self._ledger = ledger

    def end(self, sequence: int, reason: str, now_ms: int) -> bool:
        """A message ends, for every group that owes it and does not hold it; False when one of these keeps it, since
        there is no room for a dead letter."""
        ledger, ends = self._ledger, True
        owing = [group for group in ledger.groups.values() if group.owes(sequence)]
        if not owing:
            if not self.reserve(sequence, reason):
                return False
            self.lose(sequence, ledger.identities.only_group(sequence), reason, Attempts(), now_ms)
        for group in owing:
            if group.holds(sequence):
                continue
            attempts = group.attempts_of(sequence)
            cause = attempts.doomed or reason  # what is kept to become a dead letter is not dropped instead
            if not self.reserve(sequence, cause):
                ends = False
                continue
            group.drop(sequence, even_held=False)
            if sequence < group.unfilled_from:
                ledger.entries.owe(sequence, -1)
            self.lose(sequence, group.name, cause, attempts, now_ms)
            ledger.mark(group, sequence, MessageState.DLQ)
        if not any(group.owes(sequence) for group in owing):
            ledger.remove(sequence)
        return ends

    def reserve(self, sequence: int, reason: str) -> bool:
        """Whether a group may lose a message now: to be asked before each `lose`. What is dropped needs no room."""
        return not self._target(reason) or self.room.reserve(self._ledger.entries.record_bytes(sequence))

    def lose(self, sequence: int, group: str, reason: str, attempts: Attempts, now_ms: int) -> None:
        """A group loses a message that is there still, or with "" nobody got it."""
        target = self._target(reason)
        if not target:
            self.dropped[reason] += 1
            return
        self.dead_letters[reason] += 1
        entry, message_id = self._ledger.entries[sequence], self._ledger.identities.message_id(sequence)
        letter = DeadLetter(self.settings.name, group, reason, message_id, attempts, now_ms)
        self.buried.append(Burial(target, sequence, entry.offset, entry.key, letter, entry.record_bytes))

    def _target(self, reason: str) -> str:
        """The queue where it goes; "" when it is dropped."""
        is_let_go = reason == DeadLetterReason.EXPIRED and self.settings.limits.ttl_action is TtlAction.DROP
        return "" if is_let_go else self.settings.dead_letter_queue
