"""One consumer group of one queue: who gets what, and what becomes of it.

The queue offers messages and drains `finished` and `marks` after each call; consumers come, go, settle; time passes.
Each message is offered once and stays in the group until it is finished or dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from functools import partial

from embermq.model.queue_rows import Attempts, DeadLetterReason, GroupMark, MessageState
from embermq.mqtt.value import replace
from embermq.queues.consumer import Client, Consumer, Newcomer
from embermq.queues.consumer_clock import ConsumerClock
from embermq.queues.entries import FILLED, Entries
from embermq.queues.lanes import QueueLanes
from embermq.queues.leases import Leases
from embermq.queues.message_states import TRANSITIONS, VERB_EVENTS, Event, MessageAction
from embermq.queues.message_status import NO_ATTEMPTS, Finish, Handed, MessageStatus
from embermq.queues.names import QueueKind, kind_of
from embermq.queues.retries import RetryWaits, limited, wait_of
from embermq.queues.settings import GroupSettings, QueueSettings
from embermq.queues.settling import Outcome, SettleRequest

LEASE_OVER = "the lease is over"
CONSUMER_GONE = "the consumer is gone"
KEPT_MS = 60_000
"""How often it is tried again to make a dead letter for which there was no room."""
LEFT_MAX = 1_000
"""Consumers that are remembered when they have left."""


class Group:
    """Pure: everything that happens is a call."""

    def __init__(
        self,
        name: str,
        first_sequence: int,
        settings: QueueSettings,
        timing: GroupSettings,
        entries: Entries,
        *,
        clock: ConsumerClock,
        is_for: Callable[[str, int], bool],
        client_of: Callable[[str], Client],
        touch: Callable[[], None],
        reserve: Callable[[int, str], bool],
    ) -> None:
        """`is_for` tells whether a message is for the group of this name, `client_of` who has a client id; `touch` has
        the queue run, since something may be handed out because of what a client has settled elsewhere; `reserve`
        tells whether a message may end for a reason, and has room as a dead letter if it becomes one."""
        self.name = name
        self.first_sequence = first_sequence
        """It owes nothing below."""
        self.unfilled_from = FILLED
        """What the queue has from this sequence on it owes without having been offered it; see `scans`."""
        self.owed = 0
        """Messages that it has not settled."""
        self.settled: set[int] = set()
        """Messages of the queue that other groups owe and this one does not."""
        self.finished: list[Finish] = []
        self.marks: dict[int, GroupMark] = {}
        self.members: dict[str, Consumer] = {}
        self.stalled: list[str] = []
        """Members that have just stalled: whoever calls `advance` is to empty it."""
        self.idle_since_ms = 0
        self.is_paused = False
        """An operator has it wait: nothing is handed out."""
        self.is_queue_paused = False
        """The same for all groups of the queue."""
        self.left: OrderedDict[int, None] = OrderedDict()
        """Clients that have left while messages were unsettled: of what each had last it may still say so, without
        naming the group. The last ones, by hashes since ids may be long: who holds what is compared all the same."""
        self._away: OrderedDict[str, Consumer] = OrderedDict()
        """Members whose connection is gone, in the order of going: all may come back for equally long."""
        self._settings = settings
        self._timing = timing
        self._entries = entries
        self._is_for = is_for
        self._client_of = client_of
        self._touch = touch
        self._reserve = reserve
        self._buries = kind_of(settings.name) is not QueueKind.DEAD_LETTERS
        self.lanes = QueueLanes(entries, settings, self.owes)
        self._stalled: set[str] = set()
        """Members that take nothing."""
        self._statuses: dict[int, MessageStatus] = {}
        self._clock = clock
        self._leases = Leases(settings.performance.delivery_timeout, clock)
        self._waits = RetryWaits(self._waits_until)
        self.kept: set[int] = set()
        """Messages that are to become dead letters, and have no room."""
        self._first_attempt = Attempts(1)
        """That of the messages that were delivered last."""
        self._freed: dict[Consumer, None] = {}
        """Consumers that work on one message less than before: the lease of the next one begins."""
        self._rebalance_at_ms = 0

    def offer(self, sequence: int, mark: GroupMark | None = None) -> None:
        """A message is there for this group. `mark` is what was stored of it."""
        self.owed += 1
        if mark is not None:
            status = self._statuses[sequence] = MessageStatus(mark.state, attempts=mark.attempts)
            self.lanes.take_turn(sequence)
            if mark.state is MessageState.RETRY:
                status.due_ms = mark.due_ms
                self._waits.add(sequence, mark.due_ms, len(self._statuses))
                return
            if mark.attempts.is_suspect:
                self.lanes.give_back(sequence, is_suspect=True)
                return
        self.lanes.add(sequence)

    def drop(self, sequence: int, *, even_held: bool) -> bool:
        """The queue lets go of a message; False when a consumer holds it and it stays."""
        if sequence >= self.unfilled_from:
            self.owed -= 1
            self.settled.add(sequence)
            return True
        status = self._statuses.get(sequence)
        if status is not None:
            if status.state is MessageState.DELIVERED and not even_held:
                return False
            self._unhold(sequence, status)
            del self._statuses[sequence]
            self.kept.discard(sequence)
        self.settled.add(sequence)
        self.owed -= 1
        self.lanes.drop(sequence)
        return True

    def stored_marks(self) -> Iterator[tuple[int, GroupMark]]:
        """What is stored of messages that it does not simply owe."""
        for sequence in self.settled:
            yield sequence, GroupMark(MessageState.ACKED)
        for sequence, status in self._statuses.items():
            if status.state is MessageState.RETRY or status.attempts.failures:
                yield sequence, GroupMark(MessageState.RETRY, status.attempts, status.due_ms)

    def owes(self, sequence: int) -> bool:
        """Whether it has not settled a message that is for it."""
        return (
            sequence in self._entries
            and sequence not in self.settled
            and sequence >= self.first_sequence
            and (sequence < self.unfilled_from or self._is_for(self.name, sequence))
        )

    def attempts_of(self, sequence: int) -> Attempts:
        """How often a message that the group owes was tried."""
        status = self._statuses.get(sequence)
        return NO_ATTEMPTS if status is None else status.attempts

    def configure(self, settings: QueueSettings) -> None:
        """Take other settings. Partitions and ordering change only while the queue is empty."""
        before, self._settings = self._settings, settings
        self._leases.change(settings.performance.delivery_timeout)
        if (before.partitions, before.ordering) != (settings.partitions, settings.ordering):
            self.lanes.configure(settings, self.members.values())
            self._rebalance()

    def holds(self, sequence: int) -> bool:
        """Whether a consumer holds it now."""
        status = self._statuses.get(sequence)
        return status is not None and status.state is MessageState.DELIVERED

    def is_newest(self, handed: Handed) -> bool:
        """Whether the message was not handed out again since, to whomever; and is still owed."""
        status = self._statuses.get(handed.sequence)
        return status is not None and status.handed is handed

    def stands(self, handed: Handed, epoch: int) -> bool:
        """Whether its consumer, with this epoch, holds the message by having been handed it then."""
        status = self._statuses.get(handed.sequence)
        return (
            status is not None
            and status.handed is handed
            and status.state is MessageState.DELIVERED
            and status.epoch == epoch
        )

    def status(self, sequence: int) -> MessageStatus | None:
        """What it knows of a message that was handed out before; not to be changed."""
        return self._statuses.get(sequence)

    def lease_until_ms(self, sequence: int) -> int:
        """0 when no lease runs: nobody holds it, or it is not written to the socket yet."""
        return self._leases.until_ms(sequence)

    def away_until_ms(self, consumer: Consumer) -> int:
        """Until when it may come back; 0 while it is connected."""
        return self._clock.until_ms(consumer.away_until_ms) if consumer.away_until_ms else 0

    def in_flight(self) -> int:
        """Messages that consumers hold."""
        return sum(len(consumer.held) for consumer in self.members.values())

    def in_backoff(self) -> tuple[int, int]:
        """Messages that wait for a retry, and when the first of them comes; what was acked late meanwhile counts until
        then."""
        return len(self._waits), self._waits.first_ms()

    def removed_at_ms(self) -> int:
        """When it goes unless a consumer comes [queues-18]; 0 while it has one."""
        return self.idle_since_ms + self._timing.idle_expiry_ms if self.idle_since_ms else 0

    def rebalance_at_ms(self) -> int:
        """When joins that wait take effect, and those who have left this tick; 0 when none waits."""
        return self._rebalance_at_ms

    def state_of(self, sequence: int) -> MessageState:
        """Of a message that the group owes [queues-20]."""
        status = self._statuses.get(sequence)
        return MessageState.QUEUED if status is None else status.state

    def join(self, newcomer: Newcomer, now_ms: int, kept: Container[int] = ()) -> None:
        """A consumer subscribes, or comes back with another epoch: of what it held it has `kept`; the rest is given
        back [queues-16] [queues-19]."""
        client_id, epoch = newcomer.client_id, newcomer.epoch
        consumer = self.members.get(client_id)
        takes_part = consumer is not None and not consumer.is_stalled
        if consumer is None:
            client = self._client_of(client_id)
            consumer = self.members[client_id] = Consumer(newcomer, now_ms, client)
            client.places[consumer] = partial(self._wake, consumer)
        elif consumer.epoch != epoch:
            consumer.epoch = epoch
            for sequence in sorted(consumer.held):
                status = self._statuses[sequence]
                if sequence in kept:
                    status.epoch = epoch
                    status.is_carried = True
                else:
                    self._apply(sequence, status, Event.HOLDER_GONE, now_ms)
        consumer.away_until_ms = 0
        self._away.pop(client_id, None)
        self.left.pop(hash(client_id), None)
        consumer.prefetch, consumer.concurrency = newcomer.prefetch, newcomer.concurrency
        self._freed[consumer] = None
        self.idle_since_ms = 0
        if not takes_part:
            self._seat(consumer, now_ms)
        self.lanes.update_room(consumer)

    def _seat(self, consumer: Consumer, now_ms: int) -> None:
        """It takes part from now on: a first one at once, others with those who come meanwhile."""
        was_stalled, consumer.is_stalled = consumer.is_stalled, False
        self._stalled.discard(consumer.client_id)
        if len(self.members) - len(self._stalled) == 1:
            self._rebalance()
        elif not self._rebalance_at_ms:
            self._rebalance_at_ms = now_ms + self._timing.join_debounce_ms
        if was_stalled:
            self.lanes.list_again(consumer)

    def leave(self, client_id: str, now_ms: int) -> None:
        """A consumer has unsubscribed, or is gone for good. Unknown ones are none of ours."""
        consumer = self.members.get(client_id)
        if consumer is None:
            return
        if self._statuses:
            self.left[hash(client_id)] = None
            if len(self.left) > LEFT_MAX:
                self.left.popitem(last=False)
        for sequence in sorted(consumer.held):
            self._apply(sequence, self._statuses[sequence], Event.HOLDER_GONE, now_ms)
        del self.members[client_id]
        self.lanes.forget(consumer)
        consumer.client.leave(consumer)
        self._freed.pop(consumer, None)
        self._away.pop(client_id, None)
        self._stalled.discard(client_id)
        if not self.members:
            self.idle_since_ms = now_ms
        self._rebalance_at_ms = now_ms  # once for all that leave in this tick

    def disband(self) -> None:
        """The group is removed: its members are none any more."""
        for consumer in self.members.values():
            for sequence in sorted(consumer.held):
                consumer.let_go(sequence)
            consumer.client.leave(consumer)
        self.members.clear()

    def go_away(self, client_id: str, now_ms: int) -> None:
        """The connection of a consumer with a kept session is gone: it has a while to come back [queues-19]."""
        consumer = self.members.get(client_id)
        if consumer is not None and not consumer.away_until_ms:
            consumer.away_until_ms = self._clock.at(now_ms) + self._timing.disconnect_grace_ms
            self._away[client_id] = consumer
            self.lanes.update_room(consumer)

    def _stall(self, sequence: int, now_ms: int) -> None:
        """It was handed out a whole lease ago and has not reached its socket: it is given back, free of charge, with
        what waits behind it; and its consumer takes no part until `resume` [queues-22]."""
        consumer = self.members[self._statuses[sequence].holder]
        if consumer.away_until_ms:
            self._apply(sequence, self._statuses[sequence], Event.HOLDER_GONE, now_ms)
            return
        consumer.is_stalled = True
        self._stalled.add(consumer.client_id)
        self.stalled.append(consumer.client_id)
        for each in sorted(consumer.held):
            status = self._statuses[each]
            if not status.is_written:
                self._apply(each, status, Event.HOLDER_GONE, now_ms)
        self.lanes.forget(consumer)
        self._rebalance_at_ms = now_ms

    def resume(self, client_id: str, now_ms: int) -> None:
        """A consumer takes again what it is sent. Who has not stalled goes on as before."""
        consumer = self.members.get(client_id)
        if consumer is not None and consumer.is_stalled:
            self._seat(consumer, now_ms)
            self.lanes.update_room(consumer)

    def written(self, handed: Handed, now_ms: int, first_ms: int) -> bool:
        """The PUBLISH has been written to the socket: the lease begins [queues-22]. False when it is too late for that,
        which is no fault. `first_ms` is what the consumer was told as the time of the first delivery."""
        sequence = handed.sequence
        status = self._statuses.get(sequence)
        if (
            status is None
            or status.handed is not handed
            or status.state is not MessageState.DELIVERED
            or status.is_written
        ):
            return False
        status.is_written = True
        self._leases.wrote(sequence)
        consumer = self.members[status.holder]
        consumer.unbegun[sequence] = None
        self._begin_leases(consumer, now_ms)
        before = status.attempts
        if before is NO_ATTEMPTS:  # as most are
            if self._first_attempt.first_delivered_ms != first_ms:
                self._first_attempt = Attempts(1, first_delivered_ms=first_ms)
            status.attempts = self._first_attempt
        else:
            status.attempts = replace(
                before,
                deliveries=before.deliveries + 1,
                first_delivered_ms=before.first_delivered_ms or first_ms,
            )
        return True

    def acknowledge(self, handed: Handed, epoch: int) -> bool:
        """Its consumer, with this epoch, is done with what it was handed; False when it does not hold it so."""
        if not self.stands(handed, epoch):
            return False
        self._finish(handed.sequence, self._statuses[handed.sequence], "")
        return True

    def settle(
        self, sequence: int, request: SettleRequest, client_id: str, epoch: int, now_ms: int
    ) -> Outcome:
        """What a consumer says of a message that the group owes [queues-23] [queues-28]."""
        status = self._statuses.get(sequence)
        if status is None or not status.holder:
            return Outcome.UNKNOWN
        if (status.holder, status.epoch) != (client_id, epoch):
            return Outcome.NOT_YOURS
        action = self._apply(sequence, status, VERB_EVENTS[request.verb], now_ms, request)
        return Outcome.LATE if action is MessageAction.IGNORE else Outcome.DONE

    def advance(self, now_ms: int, limit: int) -> int:
        """Time has passed: leases, retries, consumers that take nothing or did not come back, joins that waited. Of
        leases and retries up to `limit`; returns how many it were. With more of them `next_due_ms` is in the past."""
        left = limit
        while (late := self._leases.first_unwritten(now_ms)) is not None:
            self._stall(late, now_ms)
        while left > 0 and (over := self._leases.first_over(now_ms)) is not None:
            left -= self._end_lease(over, now_ms)
        while self._freed:
            self._begin_leases(self._freed.popitem()[0], now_ms)
        while left > 0 and (due := self._waits.take(now_ms)) is not None:
            left -= 1
            if due:
                self._apply(due, self._statuses[due], Event.DUE, now_ms)
        while self._away:
            client_id = next(iter(self._away))
            if self._away[client_id].away_until_ms > self._clock.at(now_ms):
                break
            self.leave(client_id, now_ms)
        if 0 < self._rebalance_at_ms <= now_ms:
            self._rebalance()
        return limit - left

    def next_due_ms(self) -> int | None:
        """When `advance` or `deliver` has something to do next; 0 for at once."""
        if (self.lanes.has_work() and not self.waits) or self._freed:
            return 0
        away = next(iter(self._away.values()), None)
        times = [self._clock.due_ms(away.away_until_ms)] if away is not None else []
        times += self._leases.due_ms()
        if self._waits:
            times.append(self._waits.first_ms())
        if self._rebalance_at_ms:
            times.append(self._rebalance_at_ms)
        if self.idle_since_ms:
            times.append(self.removed_at_ms())
        return min(times, default=None)

    @property
    def waits(self) -> bool:
        """Whether nothing is handed out, since an operator has paused it or its queue."""
        return self.is_paused or self.is_queue_paused

    def pause(self, *, group: bool, queue: bool) -> None:
        """Have it wait, or go on: the group itself, and its queue. What consumers have they keep, and settle."""
        self.is_paused, self.is_queue_paused = group, queue
        for consumer in self.members.values():
            if self.waits:
                self.lanes.stop_draining(
                    consumer
                )  # other queues need not wait for a suspect that does not come
            else:
                self.lanes.update_room(consumer)

    def deliver(self, now_ms: int) -> list[Handed]:
        """Hand out what there is and whom there is room for, `batch_size` messages to one consumer at a time."""
        handed: list[Handed] = []
        if self.waits:
            return handed
        for sequence, consumer in self.lanes.take(self._settings.performance.batch_size):
            handed.append(self._hand(sequence, consumer))
            self._leases.hand_out(sequence, now_ms)
        return handed

    def _hand(self, sequence: int, consumer: Consumer) -> Handed:
        status = self._statuses.get(sequence)
        if status is None:
            status = self._statuses[sequence] = MessageStatus(MessageState.DELIVERED)
        status.state = MessageState.DELIVERED
        status.holder = consumer.client_id
        status.epoch = consumer.epoch
        status.is_written = status.is_carried = False
        status.handed = Handed(sequence, consumer.client_id, consumer.epoch, status.attempts)
        consumer.hold(sequence, is_suspect=status.attempts.is_suspect)
        return status.handed

    def _begin_leases(self, consumer: Consumer, now_ms: int) -> None:
        """A consumer works on the oldest that it has, as many at a time as it has said; the others wait for their
        lease [queues-22]."""
        while consumer.unbegun and len(consumer.working) < consumer.concurrency:
            sequence = consumer.unbegun.popitem(last=False)[0]
            consumer.working.add(sequence)
            self._leases.begin(sequence, now_ms)

    def _end_lease(self, sequence: int, now_ms: int) -> int:
        """The lease of a message is over; returns of how many it was the end. Its consumer may not know of it: its
        connection is lost, or it has come back without what it had before. That is the end for all that it has from
        there."""
        status = self._statuses[sequence]
        consumer = self.members[status.holder]
        if status.is_carried:
            gone = [each for each in sorted(consumer.held) if self._statuses[each].is_carried]
        elif consumer.away_until_ms:
            gone = [sequence]
        else:
            self._apply(sequence, status, Event.LEASE_OVER, now_ms)
            return 1
        for each in gone:
            self._apply(each, self._statuses[each], Event.HOLDER_GONE, now_ms)
        return len(gone)

    def _wake(self, consumer: Consumer) -> None:
        """It may have room again, by what it has settled elsewhere."""
        self.lanes.update_room(consumer)
        self._touch()

    def _apply(
        self,
        sequence: int,
        status: MessageStatus,
        event: Event,
        now_ms: int,
        request: SettleRequest | None = None,
    ) -> MessageAction:
        action = TRANSITIONS[status.state, event]
        if action is MessageAction.FINISH:
            self._finish(sequence, status, "")
        elif action is MessageAction.BURY:
            if request is not None and request.reason:
                status.attempts = replace(status.attempts, last_error=request.reason)
            self._unhold(sequence, status)
            self._lose(sequence, status, DeadLetterReason.REJECTED, now_ms)
        elif action is MessageAction.RENEW:
            if self._leases.until_ms(sequence):  # else it waits for its lease
                self._leases.begin(sequence, now_ms)
        elif action is MessageAction.QUEUE:
            self._after_failure(sequence, status, 0, now_ms)
            if not status.attempts.doomed:
                self.marks.pop(sequence, None)  # what is stored says the same: RETRY, and the time has come
        elif action is MessageAction.FAIL:
            self._unhold(sequence, status)
            self._fail(sequence, status, now_ms, request)
        elif action is MessageAction.GIVE_BACK:
            self._unhold(sequence, status)
            before = status.attempts
            if status.is_written and before.is_suspect:  # it was alone
                status.attempts = replace(before, failures=before.failures + 1, last_error=CONSUMER_GONE)
            elif status.is_written:
                status.attempts = replace(before, is_suspect=True)
            self._after_failure(sequence, status, 0, now_ms)
        return action

    def _fail(self, sequence: int, status: MessageStatus, now_ms: int, request: SettleRequest | None) -> None:
        """A nack, or without a request a lease that is over."""
        before = status.attempts
        wait_ms, uses_step = wait_of(self._settings.retry_policy, before, is_nack=request is not None)
        error = LEASE_OVER
        if request is not None:
            error = request.reason
            if request.delay_ms is not None:
                wait_ms, uses_step = request.delay_ms, False
        status.attempts = replace(
            before,
            failures=before.failures + 1,
            nacks=before.nacks + (request is not None),
            steps=before.steps + uses_step,
            last_error=error,
            is_suspect=before.is_suspect and request is None,  # who nacks it is well
        )
        self._after_failure(sequence, status, wait_ms, now_ms)

    def _after_failure(self, sequence: int, status: MessageStatus, wait_ms: int, now_ms: int) -> None:
        """DLQ, RETRY or QUEUED [queues-25]."""
        attempts, due_ms, reason = status.attempts, now_ms + wait_ms, ""
        if attempts.doomed:
            reason = attempts.doomed
        elif self._entries.expires_ms(sequence) <= now_ms:
            reason = DeadLetterReason.EXPIRED
        elif self._buries and attempts.failures:
            due_ms, reason = limited(self._settings.retry_policy, attempts, due_ms, now_ms)
        if reason:
            self._lose(sequence, status, reason, now_ms)
            return
        if due_ms > now_ms:
            status.state, status.due_ms = MessageState.RETRY, due_ms
            self._waits.add(sequence, due_ms, len(self._statuses))
        else:
            status.state, status.due_ms = MessageState.QUEUED, 0
            self.lanes.give_back(sequence, is_suspect=attempts.is_suspect)
        if attempts.failures or attempts.is_suspect:
            self.marks[sequence] = GroupMark(status.state, attempts, status.due_ms)

    def _lose(self, sequence: int, status: MessageStatus, reason: str, now_ms: int) -> None:
        """It becomes a dead letter, or is dropped; when there is no room for the letter it stays, and nobody gets
        it until there is [queues-34]."""
        if self._reserve(sequence, reason):
            self._finish(sequence, status, reason)
            return
        self.kept.add(sequence)
        if not status.attempts.doomed:
            status.attempts = replace(status.attempts, doomed=reason)
            self.marks[sequence] = GroupMark(MessageState.RETRY, status.attempts, now_ms)
        status.state, status.due_ms = MessageState.RETRY, now_ms + KEPT_MS
        self._waits.add(sequence, status.due_ms, len(self._statuses))

    def _waits_until(self, sequence: int) -> int:
        """0 when it waits for no retry."""
        status = self._statuses.get(sequence)
        return status.due_ms if status is not None and status.state is MessageState.RETRY else 0

    def _finish(self, sequence: int, status: MessageStatus, reason: str) -> None:
        self._unhold(sequence, status)
        del self._statuses[sequence]
        self.kept.discard(sequence)
        self.marks.pop(sequence, None)
        self.settled.add(sequence)
        self.owed -= 1
        self.lanes.end_turn(sequence)
        self.finished.append(Finish(sequence, reason, status.attempts))

    def _unhold(self, sequence: int, status: MessageStatus) -> None:
        """Nobody holds it now. Who held it last is remembered."""
        if status.state is not MessageState.DELIVERED:
            return
        self._leases.end(sequence)
        consumer = self.members.get(status.holder)
        if consumer is not None:
            consumer.let_go(sequence)
            if consumer.unbegun:
                self._freed[consumer] = None
            self.lanes.update_room(consumer)

    def _rebalance(self) -> None:
        self._rebalance_at_ms = 0
        self.lanes.rebalance(self.members.values())
