"""One durable queue: its messages, its groups, its limits.

Everything it decides goes into the tick's `QueueWrites` at once; dead letters for another queue gather in `buried`,
and whoever calls has to place them in the same tick. A message is enqueued in two steps, `accept` before the commit
of its record and `commit` after it; groups see nothing of it in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice, takewhile

from embermq.model.queue_rows import (
    DeadLetter,
    DeadLetterReason,
    DelayedRow,
    GroupRow,
    MessageState,
    Move,
    QueueWrites,
    StoredQueue,
)
from embermq.mqtt.value import replace
from embermq.queues.consumer import EARLIEST, LATEST, Client, Newcomer
from embermq.queues.consumer_clock import ConsumerClock
from embermq.queues.dead_letter_quota import DeadLetterQuota
from embermq.queues.dead_lettering import DeadLettering, Heads
from embermq.queues.entries import QueueEntry
from embermq.queues.errors import PropertyRefused, QueueFull, TooLarge
from embermq.queues.group import KEPT_MS, Group
from embermq.queues.intake import Intake
from embermq.queues.lanes import LOOKED_AT_MAX
from embermq.queues.ledger import QueueLedger
from embermq.queues.names import QueueKind, kind_of
from embermq.queues.publication import Publication, Stamps
from embermq.queues.scans import ADVANCED_MAX, Scans, at_a_time
from embermq.queues.settings import GroupSettings, Overflow, QueueSettings, check_change
from embermq.queues.settling import Outcome, SettleRequest, message_id_of, sequence_of
from embermq.queues.values import Acceptance, Burial, ConsumerDelivery, Fate, QueueCounts

__all__ = ["Acceptance", "Burial", "ConsumerDelivery", "Fate", "Queue"]

SETTLED_MAX = 10_000
"""Message ids times groups in one control message that names no group: some 25 ms."""


class Queue:
    """Pure. `writes` gives the present tick's."""

    def __init__(
        self,
        generation: int,
        settings: QueueSettings,
        timing: GroupSettings,
        writes: Callable[[], QueueWrites],
        *,
        client_of: Callable[[str], Client],
        touch: Callable[[], None],
        room: DeadLetterQuota,
    ) -> None:
        """`client_of` tells who has a client id; `touch` has the queue run though nothing has come to it; `room` is
        that of the dead letters of all queues."""
        self.generation = generation
        self._client_of = client_of
        self._run_soon = touch
        self.settings = settings
        self.counts = QueueCounts()
        self.clock = ConsumerClock()
        self._timing = timing
        self._writes = writes
        intake = self._intake = Intake(generation, settings, timing, writes)
        self._pending = intake.pending
        self.delayed, self.latency, self.arrivals = intake.delayed, intake.latency, intake.arrivals
        self.store_row = intake.store_row
        is_of_letters = kind_of(settings.name) is QueueKind.DEAD_LETTERS
        ledger = self._ledger = QueueLedger(
            generation, writes, intake.pending, intake.latency, room=room if is_of_letters else None
        )
        self.entries, self.groups = ledger.entries, ledger.groups
        self.message_id = ledger.identities.message_id
        self.sequence_of = ledger.identities.sequence_of
        self.dead_letter = ledger.identities.dead_letter
        ends = self._dead_lettering = DeadLettering(ledger, settings, room)
        self.room = room
        self.buried, self.dead_letters, self.dropped = ends.buried, ends.dead_letters, ends.dropped
        self.scans = Scans(ledger)
        self._heads = Heads(ledger.entries, ledger.groups)
        self._shrinking = 0
        """While it goes down to a lower depth, how often it may still find nothing that can go."""

    # Messages come.

    def accept(
        self,
        publication: Publication,
        size: int,
        expires_ms: int,
        record: int,
        now_ms: int,
        *,
        record_bytes: int = 0,
    ) -> Acceptance:
        """A PUBLISH of `size` bytes of payload, whose record is to be number `record` of this tick, and has
        `record_bytes`. `expires_ms` is the publisher's own deadline, 0 for none. Raises QueueRefusal when it is too
        large, or the queue is full."""
        limits = self.settings.limits
        if size > limits.max_message_size:
            raise TooLarge(
                f"queue {self.settings.name}: payload of {size} bytes, the limit is {limits.max_message_size}"
            )
        dedup_id = publication.dedup_id
        if dedup_id is not None and self._intake.dedup.knows(dedup_id, now_ms):
            return Acceptance(Fate.REPEATED)
        if not self._make_room(now_ms):
            self.note_dropped()
            return Acceptance(Fate.DROPPED)
        return self._intake.accept(
            publication, expires_ms, record, now_ms, record_bytes=max(size, record_bytes)
        )

    def commit(self, messages: Iterable[tuple[int, int]]) -> None:
        """Records are durable: ticket and offset of each, in the order of `accept`."""
        for ticket, offset in messages:
            row = self._pending.pop(ticket).row
            self.counts.enqueued += 1
            if isinstance(row, DelayedRow):
                self.delayed.add(replace(row, offset=offset, record=-1))
            else:
                self._ledger.place(row, offset)

    def note_dropped(self) -> None:
        """It was full, and who sent the message cannot be told: QoS 0, a will."""
        self.dropped[DeadLetterReason.OVERFLOW] += 1

    def withdraw(self, ticket: int) -> None:
        """Its tick was refused: nothing of it is stored."""
        self._intake.withdraw(ticket)

    def bury(self, burial: Burial, now_ms: int) -> int:
        """A dead letter comes, for which there is room; with the time to live of this queue, if it has one
        [queues-34]. Returns its sequence."""
        row = self._intake.new_row(
            burial.offset,
            burial.key,
            now_ms,
            dead_letter=burial.letter,
            record_bytes=burial.record_bytes,
        )
        self._ledger.put(row)
        return row.sequence

    def is_held(self, sequence: int) -> bool:
        """Whether a consumer of any group has the message."""
        return any(group.holds(sequence) for group in self.groups.values())

    def take_dead_letter(self, sequence: int) -> QueueEntry | None:
        """Take a dead letter out, to be put back where it came from in the same tick; None when there is none, or a
        consumer holds it [queues-35]."""
        entry = self.entries.get(sequence)
        if entry is None or self.dead_letter(sequence) is None:
            return None
        if self.is_held(sequence):
            return None
        for group in self.groups.values():
            if group.owes(sequence):
                group.drop(sequence, even_held=False)
        self._ledger.remove(sequence)
        return entry

    def retry(self, entry: QueueEntry, letter: DeadLetter, now_ms: int) -> int:
        """A dead letter comes back, at the tail, with its message id, for the group that failed [queues-35]. One id
        means one message: what a group of this name has been founded with since, or a former one has left, is it.
        Returns its sequence; 0 when it is there."""
        if letter.group:
            group = self.group(letter.group, now_ms, start=LATEST)
            if group.owes(self.sequence_of(letter.group, letter.message_id)):
                return 0
            if left := self._ledger.identities.returned(letter.group, letter.message_id):
                self._ledger.remove(left)
        row = self._intake.new_row(entry.offset, entry.key, now_ms, record_bytes=entry.record_bytes)
        self.counts.retried += 1
        self._ledger.put(replace(row, only_group=letter.group, origin_id=letter.message_id))
        return row.sequence

    def finish_move(self, sequence: int, name: str) -> None:
        """A message went to another queue, for the group `name` or with "" for all, and a crash was faster here."""
        if sequence not in self.entries:
            return
        group = self.groups.get(name)
        if group is not None and group.owes(sequence):
            group.drop(sequence, even_held=True)
            self.entries.owe(sequence, -1)
            self._ledger.mark(group, sequence, MessageState.DLQ)
        if not name or not self.entries.owed(sequence):
            self._remove(sequence)

    # Operators.

    def end(self) -> int:
        """The number that the next message gets: below it is what there is now."""
        return self._intake.next_sequence

    def purge(self, end: int, limit: int) -> int:
        """Let go of up to `limit` messages with numbers below `end`, held and delayed ones too, and of no publish that
        is under way; returns of how many. Whoever settles one of them hears that it is settled."""
        found = list(islice(takewhile(end.__gt__, self.entries), limit))
        for sequence in found:
            self._remove(sequence)
        late = self.delayed.take(end, limit - len(found))
        for row in late:
            self._writes().removed_delayed[self.generation, row.ticket] = row.offset
        self.counts.purged += len(found) + len(late)
        return len(found) + len(late)

    @property
    def is_paused(self) -> bool:
        """Whether nothing is handed out of it."""
        return self._intake.is_paused

    def pause(self, group: str, *, is_paused: bool) -> None:
        """Have a group wait, or go on, or with "" the whole queue: nothing is handed out meanwhile. Messages come,
        are settled and end as ever. It outlives a start. Groups that are made later wait with their queue."""
        if group:
            self.groups[group].pause(group=is_paused, queue=self.is_paused)
            self._store_group(self.groups[group])
            return
        self._intake.is_paused = is_paused
        for each in self.groups.values():
            each.pause(group=each.is_paused, queue=is_paused)
        self.store_row()

    def delayed_row(self, message_id: str) -> DelayedRow | None:
        """The delayed message of this id; None when there is none."""
        return self.delayed.rows.get(sequence_of(self.generation, message_id))

    def delete_message(self, message_id: str) -> bool:
        """Let go of one message for all groups, a held or delayed one too; False when there is none of this id. What
        came back for one group is the same message."""
        late = self.delayed.take_one(sequence_of(self.generation, message_id))
        if late is not None:
            self._writes().removed_delayed[self.generation, late.ticket] = late.offset
        numbers = {self.sequence_of(name, message_id) for name in ("", *self.groups)}
        for sequence in (found := [one for one in numbers if one in self.entries]):
            self._remove(sequence)
        self.counts.purged += late is not None or bool(found)
        return late is not None or bool(found)

    def _remove(self, sequence: int) -> None:
        """An operator lets go of it, whoever holds it."""
        for group in self.groups.values():
            if group.owes(sequence):
                group.drop(sequence, even_held=True)
        self._ledger.remove(sequence)

    def is_empty(self) -> bool:
        """Nothing is there, and nothing under way: it may be deleted."""
        return not (self.entries or self.delayed or self._pending)

    def delete(self) -> None:
        """Nothing of it stays in the store. It is not to be used any more."""
        for group in self.groups.values():
            group.disband()
        self._writes().end_queue(self.generation)

    # Consumers come, settle and go.

    def group(self, name: str, now_ms: int, *, start: int = EARLIEST) -> Group:
        """The group of this name. A new one gets the messages from `start` on [queues-18]."""
        group = self.groups.get(name)
        if group is None:
            first = self._intake.next_sequence if start == LATEST else min(start, self._intake.next_sequence)
            group = self._open_group(name, first, now_ms)
            self._store_group(group)
        return group

    def at_offset(self, offset: int) -> int:
        """The first message whose record stands at `offset` or behind, as that of a publish under way will."""
        coming = next(iter(self._pending), self._intake.next_sequence)
        return coming if (found := self.entries.at_offset(offset)) < 0 else min(found, coming)

    def remove_group(self, name: str) -> None:
        """What only this group owed is deleted, in pieces, unless it was the last one [queues-17]."""
        group = self.groups.pop(name)
        group.disband()
        writes = self._writes()
        key = (self.generation, name)
        writes.groups.pop(key, None)
        for mark in [mark for mark in writes.marks if mark[:2] == key]:
            del writes.marks[mark]
        writes.ended_groups.add(key)
        self.scans.let_go(group, self._intake.next_sequence, frozenset(self._pending))

    def join(self, name: str, consumer: Newcomer, now_ms: int) -> None:
        """A consumer subscribes or comes back to the group `name`, which is made when it is missing."""
        group = self.group(name, now_ms, start=consumer.start)
        was_idle = group.idle_since_ms
        kept = frozenset(self.sequence_of(name, message_id) for message_id in consumer.kept_ids)
        group.join(consumer, now_ms, kept)
        if was_idle:
            self._store_group(group)
        self._drain(group, now_ms)

    def leave(self, name: str, client_id: str, now_ms: int, *, may_return: bool = False) -> None:
        """It unsubscribes, or its connection is gone; with `may_return` its session is kept."""
        group = self.groups.get(name)
        if group is None:
            return
        if may_return:
            group.go_away(client_id, now_ms)
        else:
            group.leave(client_id, now_ms)
            if group.idle_since_ms:
                self._store_group(group)
        self._drain(group, now_ms)

    def written(self, deliveries: Iterable[ConsumerDelivery], now_ms: int) -> None:
        """Their PUBLISHes have been written to the socket: leases begin."""
        for delivery in deliveries:
            group, stamps = self.groups.get(delivery.stamps.group), delivery.stamps
            if group is not None and group.written(delivery.handed, now_ms, stamps.first_delivered_ms):
                self.latency.delivered(stamps.sequence, now_ms)

    def holds(self, delivery: ConsumerDelivery, epoch: int) -> bool:
        """Whether a delivery still stands: its consumer, with this epoch, holds the message."""
        group = self.groups.get(delivery.stamps.group)
        return group is not None and group.stands(delivery.handed, epoch)

    def held_ids(self, name: str, client_id: str) -> list[str]:
        """Messages that a consumer of the group `name` has not settled."""
        group = self.groups.get(name)
        member = group.members.get(client_id) if group is not None else None
        return [self.message_id(sequence) for sequence in sorted(member.held)] if member is not None else []

    def acknowledge(self, delivery: ConsumerDelivery, epoch: int, now_ms: int) -> bool:
        """Its consumer, with this epoch, is done with what it was handed. False, and nothing happens, when it does not
        hold it by this delivery any more: `settle` tells what its word is worth then."""
        group = self.groups.get(delivery.stamps.group)
        if group is None or not group.acknowledge(delivery.handed, epoch):
            return False
        self.counts.acked += 1
        self._drain(group, now_ms)
        return True

    def settle(self, request: SettleRequest, client_id: str, epoch: int, now_ms: int) -> list[Outcome]:
        """One outcome a message id. Without a group in the request it is the one in which the consumer is or, of what
        nobody has handed it there, one that it has left; of several the first where it can be done, or the best
        answer. Raises PropertyRefused when the group has to be named, since so many would be looked at."""
        names, left = ([request.group], []) if request.group else self._groups_of(client_id)
        count = len(request.message_ids)
        if len(names) * count > SETTLED_MAX:
            raise PropertyRefused(
                f"{count} message ids in {len(names)} groups: user property group-id is needed"
            )
        left = left[: SETTLED_MAX // count]
        holder = (client_id, epoch)
        outcomes: list[Outcome] = []
        for message_id in request.message_ids:
            found = self._settle_in(names, message_id, request, holder, now_ms)
            if left and found >= Outcome.UNKNOWN:
                found = min(found, self._settle_in(left, message_id, request, holder, now_ms))
            outcomes.append(found)
        for group in [self.groups[name] for name in (*names, *left) if name in self.groups]:
            self._drain(group, now_ms)
        return outcomes

    def deliver(self, now_ms: int) -> list[ConsumerDelivery]:
        """What is to be sent now. Call `advance` before."""
        deliveries: list[ConsumerDelivery] = []
        name, identities = self.settings.name, self._ledger.identities
        for group in self.groups.values():
            for handed in group.deliver(now_ms):
                sequence, attempts = handed.sequence, handed.attempts
                entry, message_id = self.entries[sequence], identities.message_id(sequence)
                count, first_ms = attempts.deliveries + 1, attempts.first_delivered_ms or now_ms
                about = (count, entry.partition, sequence, first_ms, identities.dead_letter(sequence))
                owed = (entry.offset, entry.expires_ms, Stamps(message_id, group.name, *about), handed)
                deliveries.append(ConsumerDelivery(name, handed.client_id, handed.epoch, *owed))
                self.counts.delivered += 1
        return deliveries

    # Time passes.

    def advance(self, now_ms: int) -> None:
        """Whatever is due: delayed messages, ends of messages, leases, retries, rebalancing, idle groups."""
        most = at_a_time(ADVANCED_MAX, len(self.groups))
        for row in self.delayed.due(now_ms, most):
            self._writes().removed_delayed[self.generation, row.ticket] = row.offset
            entry = self._intake.new_row(
                row.offset, row.key, now_ms, record_bytes=row.record_bytes, expires_ms=row.expires_ms
            )
            # Operators were shown it by this id, and it is that of its deliveries.
            self._ledger.put(replace(entry, origin_id=message_id_of(self.generation, row.ticket)))
            self._writes().moves.append(
                Move(self.generation, row.ticket, "", self.generation, entry.sequence)
            )
        deadlines = self._ledger.deadlines
        for sequence in deadlines.take_over(now_ms, self._intake.next_sequence, most):
            if sequence in self.entries and not self._dead_lettering.end(
                sequence, DeadLetterReason.EXPIRED, now_ms
            ):
                deadlines.ask_again(sequence, now_ms + KEPT_MS)
        if self._shrinking:
            self._shrink(most, now_ms)
        left = ADVANCED_MAX
        for group in list(self.groups.values()):
            was_idle = group.idle_since_ms
            left -= group.advance(now_ms, left)
            self._drain(group, now_ms)
            if group.idle_since_ms and not was_idle:
                self._store_group(group)
            if 0 < group.removed_at_ms() <= now_ms:
                self.remove_group(group.name)

    def next_due_ms(self) -> int | None:
        """When `scans`, `advance` and `deliver` have something to do; 0 for at once, None for never."""
        if self.scans or self._shrinking:
            return 0
        times = [due for group in self.groups.values() if (due := group.next_due_ms()) is not None]
        if self.delayed:
            times.append(self.delayed.first_ms())
        ends_ms = self._ledger.deadlines.next_due_ms()
        if ends_ms is not None:
            times.append(ends_ms)
        return min(times, default=None)

    # What there is.

    def depth(self) -> int:
        """Messages that the slowest group has not settled; without groups, all. Delayed ones count [queues-31]."""
        slowest = max((group.owed for group in self.groups.values()), default=len(self.entries))
        return slowest + len(self._pending) + len(self.delayed)

    def states(self, sequence: int) -> dict[str, MessageState]:
        """Of an entry, for each group that owes it."""
        return {name: group.state_of(sequence) for name, group in self.groups.items() if group.owes(sequence)}

    def configure(self, settings: QueueSettings) -> None:
        """Take other settings. Raises SettingsRefused when they need an empty queue [queues-10]. Leases that run stay
        as long as they were."""
        check_change(self.settings, settings, len(self.entries) + len(self._pending) + len(self.delayed))
        self.settings = self._intake.settings = self._dead_lettering.settings = settings
        for group in self.groups.values():
            group.configure(settings)
        self._begin_to_shrink()
        self.store_row()

    def restore(self, stored: StoredQueue, now_ms: int) -> None:
        """Take over what the store holds; nobody is connected yet. To be called once, on a new queue."""
        for row in stored.groups:
            group = self._open_group(row.group, row.first_sequence, row.idle_since_ms or now_ms)
            group.is_paused, group.is_queue_paused = row.is_paused, stored.row.is_paused
            if not row.idle_since_ms:
                self._store_group(group)  # else each start would give it the whole time again
        ledger, last = self._ledger, 0
        for entry in stored.entries:
            last = max(last, entry.sequence)
            ledger.place(entry, entry.offset, stored.marks)
            ledger.pass_over(entry)
            if not self.entries.owed(entry.sequence) and ledger.was_settled(entry.sequence):
                ledger.remove(entry.sequence)  # a crash was faster
        self._intake.restore(stored, last)
        self._begin_to_shrink()

    def store_anew(self) -> None:
        """Have everything stored that is known here: the store has lost it."""
        writes, generation = self._writes(), self.generation
        self.store_row()
        for group in self.groups.values():
            self._store_group(group)
            marks = group.stored_marks()
            writes.marks.update(((generation, group.name, sequence), mark) for sequence, mark in marks)
        row_of = self._ledger.identities.row
        writes.entries.update(((generation, one), row_of(one, self.entries[one])) for one in self.entries)
        writes.delayed.update(((generation, one), row) for one, row in self.delayed.rows.items())
        writes.dedup_ids.update(((generation, one), until) for one, until in self._intake.dedup.known())

    # Inside.

    def _store_group(self, group: Group) -> None:
        self._writes().groups[self.generation, group.name] = GroupRow(
            self.generation, group.name, group.first_sequence, group.idle_since_ms, group.is_paused
        )

    def _open_group(self, name: str, first_sequence: int, idle_since_ms: int) -> Group:
        is_for = self._ledger.identities.is_for
        group = Group(
            name,
            first_sequence,
            self.settings,
            self._timing,
            self.entries,
            clock=self.clock,
            is_for=is_for,
            client_of=self._client_of,
            touch=self._run_soon,
            reserve=self._dead_lettering.reserve,
        )
        group.idle_since_ms = idle_since_ms
        group.is_queue_paused = self.is_paused
        self.groups[name] = group
        self.scans.fill(group)
        return group

    def _groups_of(self, client_id: str) -> tuple[list[str], list[str]]:
        """In which it is, and which it has left."""
        names = [name for name, group in self.groups.items() if client_id in group.members]
        return names, [name for name, group in self.groups.items() if hash(client_id) in group.left]

    def _settle_in(
        self,
        names: list[str],
        message_id: str,
        request: SettleRequest,
        holder: tuple[str, int],
        now_ms: int,
    ) -> Outcome:
        best = Outcome.NOT_YOURS
        for name in names:
            best = min(best, self._settle_one(name, message_id, request, holder, now_ms))
            if best is Outcome.DONE:
                break
        return best

    def _settle_one(
        self, name: str, message_id: str, request: SettleRequest, holder: tuple[str, int], now_ms: int
    ) -> Outcome:
        group = self.groups.get(name)
        sequence = self._ledger.identities.sequence_of(name, message_id)
        if group is None or not group.first_sequence <= sequence < self._intake.next_sequence or sequence < 1:
            return Outcome.UNKNOWN
        if not group.owes(sequence):
            return Outcome.UNKNOWN if sequence in self._pending else Outcome.ALREADY_SETTLED
        outcome = group.settle(sequence, request, *holder, now_ms)
        if outcome is Outcome.DONE:
            self.counts.settled(request.verb)
        return outcome

    def _drain(self, group: Group, now_ms: int) -> None:
        """Write down what a group has decided."""
        writes = self._writes()
        for finish in group.finished:
            sequence = finish.sequence
            owed = self.entries.owe(sequence, -1)
            if finish.reason:
                self._dead_lettering.lose(sequence, group.name, finish.reason, finish.attempts, now_ms)
            if owed or (self.scans.filling and self.scans.awaits(sequence)):
                self._ledger.mark(group, sequence, MessageState.DLQ if finish.reason else MessageState.ACKED)
            else:
                self._ledger.remove(sequence)
        group.finished.clear()
        for sequence, mark in group.marks.items():
            writes.marks[self.generation, group.name, sequence] = mark
        group.marks.clear()

    def _make_room(self, now_ms: int) -> bool:
        """Whether one more message may come; False when it is to be dropped. Raises QueueRefusal."""
        limits = self.settings.limits
        limit = limits.max_queue_depth
        if len(self.entries) + len(self._pending) + len(self.delayed) < limit or self.depth() < limit:
            return True
        if limits.overflow is Overflow.DROP_NEW:
            return False
        if limits.overflow is Overflow.DROP_HEAD and self._drop_head(now_ms):
            if not self._shrinking:
                self._begin_to_shrink()  # as far as what was held then has come back
            return True
        no_room = "; its oldest cannot go: dead letters have no room" if self.room.is_full else ""
        raise QueueFull(
            f"queue {self.settings.name} holds {self.depth()} messages, the limit is {limit}{no_room}"
        )

    def _drop_head(self, now_ms: int) -> bool:
        """The oldest that nobody holds ends; False when none is found, or has room as a dead letter."""
        head = self._heads.find(next(iter(self._pending), self._intake.next_sequence))
        return head > 0 and self._dead_lettering.end(head, DeadLetterReason.OVERFLOW, now_ms)

    def _begin_to_shrink(self) -> None:
        """What is above the depth goes where the head is to be dropped; dead letters, which are never refused either,
        stay."""
        limits = self.settings.limits
        is_over = limits.overflow is Overflow.DROP_HEAD and self.depth() > limits.max_queue_depth
        if is_over and kind_of(self.settings.name) is not QueueKind.DEAD_LETTERS:
            self._shrinking = 2 + len(self.entries) // LOOKED_AT_MAX
        else:
            self._shrinking = 0

    def _shrink(self, limit: int, now_ms: int) -> None:
        """End up to `limit` messages above the depth. What is held or delayed stays, and is waited for no longer than
        it takes to see that nothing else is left."""
        for _ in range(limit):
            if self.depth() <= self.settings.limits.max_queue_depth:
                self._shrinking = 0
                return
            if not self._drop_head(now_ms):
                self._shrinking -= 1
                return
