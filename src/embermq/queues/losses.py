"""Messages that end without having been settled: they become dead letters, or are dropped and counted
[queues-25] [queues-31]."""

from __future__ import annotations

from collections import Counter

from embermq.model.queue_rows import Attempts, DeadLetter, DeadLetterReason, MessageState
from embermq.queues.ledger import Ledger
from embermq.queues.settings import QueueSettings, TtlAction
from embermq.queues.values import Burial


class Losses:
    """Of one queue."""

    def __init__(self, ledger: Ledger, settings: QueueSettings) -> None:
        self.settings = settings
        self.buried: list[Burial] = []
        """Dead letters that have yet to be placed in their queue."""
        self.dead_letters: Counter[str] = Counter()
        """By reason."""
        self.dropped: Counter[str] = Counter()
        """By reason: messages that ended without having been settled by all, for want of a dead-letter queue too."""
        self._ledger = ledger

    def end(self, sequence: int, reason: str, now_ms: int) -> None:
        """A message ends, for every group that owes it and does not hold it."""
        ledger = self._ledger
        owing = [group for group in ledger.groups.values() if group.owes(sequence)]
        if not owing:
            self.lose(sequence, ledger.identities.only_group(sequence), reason, Attempts(), now_ms)
        for group in owing:
            attempts = group.attempts_of(sequence)
            if group.drop(sequence, even_held=False):
                if sequence < group.unfilled_from:
                    ledger.entries.owe(sequence, -1)
                self.lose(sequence, group.name, reason, attempts, now_ms)
                ledger.mark(group, sequence, MessageState.DLQ)
        if not any(group.owes(sequence) for group in owing):
            ledger.remove(sequence)

    def lose(self, sequence: int, group: str, reason: str, attempts: Attempts, now_ms: int) -> None:
        """A group loses a message that is there still, or with "" nobody got it."""
        target = self.settings.dead_letter_queue
        is_let_go = reason == DeadLetterReason.EXPIRED and self.settings.limits.ttl_action is TtlAction.DROP
        if is_let_go or not target:
            self.dropped[reason] += 1
            return
        self.dead_letters[reason] += 1
        entry, message_id = self._ledger.entries[sequence], self._ledger.identities.message_id(sequence)
        letter = DeadLetter(self.settings.name, group, reason, message_id, attempts, now_ms)
        self.buried.append(Burial(target, entry.offset, entry.key, letter))
