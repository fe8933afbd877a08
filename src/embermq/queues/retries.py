"""When a message that failed comes again, and when it does not [queues-23] [queues-24] [queues-25]."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from embermq.model.queue_rows import Attempts, DeadLetterReason
from embermq.queues.settings import NackDelay, RetryPolicy


def backoff_ms(policy: RetryPolicy, step: int) -> int:
    """The wait of a step, 1 being the first: initial × multiplier^(step - 1), capped."""
    cap = int(policy.max_backoff)
    initial = int(policy.initial_backoff)
    if not initial or step == 1 or policy.backoff_multiplier == 1:
        return initial
    try:
        return int(min(cap, initial * policy.backoff_multiplier ** (step - 1)))
    except OverflowError:
        return cap


def wait_of(policy: RetryPolicy, attempts: Attempts, *, is_nack: bool) -> tuple[int, bool]:
    """Milliseconds to wait after a failure, and whether that uses up a step. `attempts` are those before it."""
    if is_nack and (
        policy.nack_delay is NackDelay.IMMEDIATE
        or (policy.nack_delay is NackDelay.FIRST_IMMEDIATE and not attempts.nacks)
    ):
        return 0, False
    return backoff_ms(policy, attempts.steps + 1), True


def limited(policy: RetryPolicy, attempts: Attempts, due_ms: int, now_ms: int) -> tuple[int, str]:
    """When a message that failed and is to come at `due_ms` comes, and why it does not come any more, "" when it does.
    `attempts` are those with this failure."""
    if attempts.failures > policy.max_retries:
        return due_ms, DeadLetterReason.MAX_RETRIES
    if attempts.first_delivered_ms:
        last_ms = attempts.first_delivered_ms + policy.total_timeout
        if now_ms >= last_ms:
            return due_ms, DeadLetterReason.TIMEOUT
        due_ms = min(due_ms, last_ms)
    return due_ms, ""


OVER_MAX = 1_000
"""Waits that ended in another way and are still in the heap, besides twice as many as there are messages."""


class RetryWaits:
    """`until_ms` tells until when a message waits now, 0 when it does not: what was settled meanwhile, or waits for
    another time, is passed over."""

    def __init__(self, until_ms: Callable[[int], int]) -> None:
        self._until_ms = until_ms
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Waits, those too that ended in another way."""
        return len(self._heap)

    def add(self, sequence: int, due_ms: int, messages: int) -> None:
        """A message waits. The group knows something of so many `messages`: no more than these can wait."""
        heappush(self._heap, (due_ms, sequence))
        if len(self._heap) > 2 * messages + OVER_MAX:
            self._heap = [each for each in self._heap if self._until_ms(each[1]) == each[0]]
            heapify(self._heap)

    def take(self, now_ms: int) -> int | None:
        """Take out the first whose time has come: the message, 0 when it does not wait for it any more. None when no
        time has come."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        due_ms, sequence = heappop(self._heap)
        return sequence if self._until_ms(sequence) == due_ms else 0

    def first_ms(self) -> int:
        """When the first comes, or sooner; 0 when nothing waits."""
        return self._heap[0][0] if self._heap else 0
