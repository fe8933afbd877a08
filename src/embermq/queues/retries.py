"""When a message that failed comes again, and when it does not [queues-23] [queues-24] [queues-25]."""

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
