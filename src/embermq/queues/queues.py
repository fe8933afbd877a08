"""All queues of a broker: the door of this room.

A tick calls what happened, then `run`; what comes back from `run` is to be sent, what is to be stored stands in the
tick's writes. Dead letters are in the queue they go to by the time a call returns, so one `QueueWrites` has both ends
of each move.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import groupby, islice

from embermq.model.queue_rows import Move, QueueWrites, StoredQueue
from embermq.ports.dead_letter_alerts import DeadLetterAlert
from embermq.queues.consumer import EARLIEST, Client, Newcomer
from embermq.queues.dead_letter_quota import DeadLetterQuota
from embermq.queues.doubts import Doubts
from embermq.queues.errors import SettingsRefused
from embermq.queues.publication import Publication
from embermq.queues.queue import Acceptance, ConsumerDelivery, Queue
from embermq.queues.scans import PIECE
from embermq.queues.settings import GroupSettings, QueueSettings, check_settings, parse_settings
from embermq.queues.settling import Outcome, SettleRequest
from embermq.queues.values import Returned

OUTDATED_MAX = 1_000
"""Times at which a queue was to be looked at and need not be any more, besides as many as there are others."""


def _owns_all(_name: str) -> bool:
    return True


def _queue_of(delivery: ConsumerDelivery) -> str:
    return delivery.queue


class Queues:
    """Queues by name. `next_generation` is above those of all queues that ever were."""

    def __init__(
        self,
        timing: GroupSettings,
        next_generation: int,
        writes: Callable[[], QueueWrites],
        *,
        letter_bytes_max: int = sys.maxsize,
        owns: Callable[[str], bool] = _owns_all,
    ) -> None:
        """`writes` gives those of the present tick; `letter_bytes_max` is for the dead letters of all queues; `owns`
        tells by its name whether a queue is this broker's, or of another slot of its cluster."""
        self.owns = owns
        self.room = DeadLetterQuota(letter_bytes_max)
        self._alerts: list[DeadLetterAlert] = []
        self._stalled: list[tuple[str, str, str]] = []
        self._made: list[str] = []
        self._other_prefetch: list[str] = []
        self._present_writes = writes
        self._timing = timing
        self._next_generation = next_generation
        self._queues: dict[str, Queue] = {}
        self._touched: dict[str, Queue] = {}
        self._due: list[tuple[int, str]] = []
        self._scheduled: dict[str, int] = {}
        self._clients: dict[str, Client] = {}
        self.doubts = Doubts()
        self._unsure: list[tuple[Queue, int]] = []

    def take_alerts(self) -> list[DeadLetterAlert]:
        """Of dead letters that stand in the tick's writes: to be told once those are durable."""
        alerts, self._alerts = self._alerts, []
        return alerts

    def take_stalled(self) -> list[tuple[str, str, str]]:
        """Queue, group and client id of consumers that took nothing for a whole lease: each gets nothing more until
        `resume`, and what had not reached it is given back."""
        stalled, self._stalled = self._stalled, []
        return stalled

    def take_made(self) -> list[str]:
        """Names of queues that were made since it was asked last, or have a group less."""
        made, self._made = self._made, []
        return made

    def take_other_prefetch(self) -> list[str]:
        """Names of queues whose prefetch was changed since it was asked last."""
        names, self._other_prefetch = self._other_prefetch, []
        return names

    def doubt(self) -> None:
        """Another broker may have the queues by now: of each nothing is handed out, and nothing that is due happens,
        before `believe`."""
        self.doubts.begin(self._queues)

    def run_soon(self, name: str) -> None:
        """There may be something to do for a queue, if it is there still."""
        if name in self._queues:
            self._touch(name)

    def take_unsure(self) -> list[tuple[Queue, int]]:
        """Queues in doubt that have something to do, with the number of the question whether they are still ours."""
        unsure, self._unsure = self._unsure, []
        return unsure

    def believe(self, name: str, number: int) -> None:
        """The question of this number is answered: the queue is still ours."""
        if self.doubts.end(name, number):
            self.run_soon(name)

    def __contains__(self, name: str) -> bool:
        return name in self._queues

    def __len__(self) -> int:
        return len(self._queues)

    def queue(self, name: str) -> Queue:
        """The queue of this name, made with default settings when it is missing."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._make(self._next_generation, parse_settings(name, b"{}"))
            queue.store_row()
            self._made.append(name)
        return queue

    def configure(self, settings: QueueSettings) -> None:
        """Make a queue, or give it other settings. Raises SettingsRefused."""
        check_settings(settings)
        self._check_slot(settings)
        queue = self._touch(settings.name)
        before = queue.settings.performance.prefetch
        queue.configure(settings)
        if settings.performance.prefetch != before:
            self._other_prefetch.append(settings.name)

    def _check_slot(self, settings: QueueSettings) -> None:
        """A dead letter moves in one write, so its queue has to be where it comes from."""
        about = f"settings of queue {settings.name}"
        if not self.owns(settings.name):
            raise SettingsRefused(f"{about}: name: the queue belongs to another slot of the cluster")
        target = settings.dead_letter_queue
        if target and not self.owns(target):
            raise SettingsRefused(
                f"{about}: dlq_config.topic: {target[:80]} belongs to another slot of the cluster; with the topic that "
                "is there by default dead letters stay where they come from"
            )

    def accept(
        self,
        name: str,
        publication: Publication,
        size: int,
        record: int,
        now_ms: int,
        *,
        expires_ms: int = 0,
        record_bytes: int = 0,
    ) -> Acceptance:
        queue = self._touch(name)
        try:
            return queue.accept(publication, size, expires_ms, record, now_ms, record_bytes=record_bytes)
        finally:
            self._bury(queue, now_ms)

    def commit(self, name: str, messages: list[tuple[int, int]]) -> None:
        """Records of accepted publishes are durable: see `Queue.commit`."""
        self._touch(name).commit(messages)

    def withdraw(self, name: str, ticket: int) -> None:
        """It is not, and will not be."""
        self._touch(name).withdraw(ticket)

    def open_group(self, name: str, group: str, now_ms: int, *, start: int = EARLIEST) -> None:
        """See to it that there is such a group; a new one gets the messages from the sequence `start` on."""
        self._touch(name).group(group, now_ms, start=start)

    def join(self, name: str, group: str, consumer: Newcomer, now_ms: int) -> None:
        """A consumer subscribes, or comes back."""
        queue = self._touch(name)
        queue.join(group, consumer, now_ms)
        self._bury(queue, now_ms)

    def leave(self, name: str, group: str, client_id: str, now_ms: int, *, may_return: bool = False) -> None:
        """A consumer unsubscribes, or its connection is gone."""
        if name not in self._queues:
            return
        queue = self._touch(name)
        queue.leave(group, client_id, now_ms, may_return=may_return)
        self._bury(queue, now_ms)

    def resume(self, name: str, group: str, client_id: str, now_ms: int) -> None:
        """A consumer that has stalled takes again what it is sent."""
        queue = self._queues.get(name)
        if queue is not None and group in queue.groups:
            self._touch(name).groups[group].resume(client_id, now_ms)

    def set_prefetch(self, name: str, group: str, client_id: str, prefetch: int, now_ms: int) -> None:
        """A consumer may hold so many from now on; what it holds it keeps."""
        queue = self._queues.get(name)
        found = queue.groups.get(group) if queue is not None else None
        member = found.members.get(client_id) if found is not None else None
        if found is None or member is None:
            return
        if not member.is_taking:
            member.prefetch = prefetch  # it gets nothing now
            return
        self._touch(name)
        found.join(Newcomer(client_id, member.epoch, prefetch, concurrency=member.concurrency), now_ms)

    def written(self, deliveries: Sequence[ConsumerDelivery], now_ms: int) -> None:
        """Deliveries have been written to the socket, in this order."""
        for name, of_one in groupby(deliveries, _queue_of):
            if name in self._queues:
                self._touch(name).written(of_one, now_ms)

    def holds(self, delivery: ConsumerDelivery, epoch: int) -> bool:
        """Whether its consumer, with this epoch, still holds the message by this delivery."""
        queue = self._queues.get(delivery.queue)
        return queue is not None and queue.holds(delivery, epoch)

    def is_newest(self, delivery: ConsumerDelivery) -> bool:
        """Whether nobody was given the message since, and its group has not settled it."""
        queue = self._queues.get(delivery.queue)
        group = queue.groups.get(delivery.stamps.group) if queue is not None else None
        return group is not None and group.is_newest(delivery.handed)

    def held_ids(self, name: str, group: str, client_id: str) -> list[str]:
        """Messages that a consumer has not settled."""
        queue = self._queues.get(name)
        return queue.held_ids(group, client_id) if queue is not None else []

    def is_member(self, name: str, group: str, client_id: str) -> bool:
        """Whether a client is a consumer of the group."""
        queue = self._queues.get(name)
        found = queue.groups.get(group) if queue is not None else None
        return found is not None and client_id in found.members

    def acknowledge(self, delivery: ConsumerDelivery, epoch: int, now_ms: int) -> bool:
        """See `Queue.acknowledge`; False when there is no such queue."""
        if delivery.queue not in self._queues:
            return False
        return self._touch(delivery.queue).acknowledge(delivery, epoch, now_ms)

    def settle(
        self, name: str, request: SettleRequest, client_id: str, epoch: int, now_ms: int
    ) -> list[Outcome]:
        """One outcome a message id. A queue that is not there knows none. Raises PropertyRefused as `Queue.settle`."""
        if name not in self._queues:
            return [Outcome.UNKNOWN] * len(request.message_ids)
        queue = self._touch(name)
        outcomes = queue.settle(request, client_id, epoch, now_ms)
        self._bury(queue, now_ms)
        return outcomes

    def find(self, name: str) -> Queue | None:
        """The queue of this name; None when there is none."""
        return self._queues.get(name)

    def names(self) -> Collection[str]:
        """Of all queues, in no order; none may come or go meanwhile."""
        return self._queues.keys()

    def store_anew(self, is_lost: Callable[[str], bool]) -> list[Queue]:
        """Have queues stored of which the store has lost what it had, by name; returns them. Their records are not
        here."""
        lost = [queue for name, queue in self._queues.items() if is_lost(name)]
        for queue in lost:
            queue.store_anew()
        return lost

    def purge(self, name: str, end: int, limit: int) -> int:
        """See `Queue.purge`; a queue that is not there is empty."""
        return self._touch(name).purge(end, limit) if name in self._queues else 0

    def pause(self, name: str, group: str, *, is_paused: bool) -> bool:
        """See `Queue.pause`; False when there is no such queue or group."""
        queue = self._queues.get(name)
        if queue is None or (group and group not in queue.groups):
            return False
        self._touch(name).pause(group, is_paused=is_paused)
        return True

    def delete_message(self, name: str, message_id: str) -> bool:
        return name in self._queues and self._touch(name).delete_message(message_id)

    def delete(self, name: str) -> bool:
        """Let go of an empty queue with its settings and groups; False when it is not empty, or not there. What its
        consumers have subscribed to is none of ours."""
        queue = self._queues.get(name)
        if queue is None or not queue.is_empty():
            return False
        del self._queues[name]
        self._touched.pop(name, None)
        queue.delete()
        return True

    def remove_group(self, name: str, group: str) -> bool:
        """See `Queue.remove_group`; False when there is no such group."""
        queue = self._queues.get(name)
        if queue is None or group not in queue.groups:
            return False
        self._touch(name).remove_group(group)
        self._made.append(name)
        return True

    def retry_dead_letters(
        self, name: str, sequences: Iterable[int], now_ms: int, *, groups_max: int | None = None
    ) -> Returned:
        """Put dead letters of the queue `name` back where they came from, unless that queue is gone, or would have more
        than `groups_max` groups then [queues-35]."""
        dead, found = self._touch(name), Returned()
        for sequence in sequences:
            letter = dead.dead_letter(sequence)
            if letter is None:
                continue
            if letter.queue not in self._queues:
                found.orphaned[letter.queue] += 1
                continue
            groups = self._queues[letter.queue].groups
            is_new = bool(letter.group) and letter.group not in groups
            if is_new and groups_max is not None and len(groups) >= groups_max:
                found.crowded[letter.queue] += 1
                continue
            entry = dead.take_dead_letter(sequence)
            if entry is None:
                found.held += 1
                continue
            source = self._touch(letter.queue)
            if number := source.retry(entry, letter, now_ms):
                self._note_move(dead, sequence, "", source, number)
            found.put_back += 1
        return found

    def run(self, now_ms: int) -> list[ConsumerDelivery]:
        """Do what is due, then hand out messages: of queues where something happened, or whose time has come."""
        while self._due and self._due[0][0] <= now_ms:
            due_ms, name = heappop(self._due)
            if self._scheduled.get(name) == due_ms:
                del self._scheduled[name]
                if name in self._queues:
                    self._touch(name)
        deliveries: list[ConsumerDelivery] = []
        left = PIECE
        for _ in range(len(self._touched)):
            queue = self._touched.pop(next(islice(self._touched, 1)))
            if self.doubts and (name := queue.settings.name) in self.doubts:
                if number := self.doubts.ask(name):
                    self._unsure.append((queue, number))
                continue
            left = queue.scans.work(left)
            groups = len(queue.groups)
            queue.advance(now_ms)
            if len(queue.groups) < groups:
                self._made.append(queue.settings.name)
            self._bury(queue, now_ms)
            self._note_stalled(queue)
            deliveries += queue.deliver(now_ms)
            self._schedule(queue)
        return deliveries

    def asked(self, now_ms: int, is_away: Callable[[str], bool]) -> list[Queue]:
        """Queues of which to find out whether a settlement of now is taken: see `ConsumerClock`. Of those that are
        known to be away, by name, it is not; their clocks know that consumers are there all the same."""
        found: list[Queue] = []
        for name, queue in self._queues.items():
            if not any(group.members for group in queue.groups.values()):
                queue.clock.rest()
                continue
            queue.clock.runs(now_ms)
            if not is_away(name) and queue.clock.ask(now_ms):
                found.append(queue)
        return found

    def next_due_ms(self) -> int | None:
        """When `run` has something to do; 0 for at once, None for never."""
        if self._touched:
            return 0
        return self._due[0][0] if self._due else None

    def outdated(self) -> int:
        """Times that are remembered and at which nothing is due any more."""
        return len(self._due) - len(self._scheduled)

    def restore(self, stored: Iterable[StoredQueue], now_ms: int) -> None:
        """Take over what the store holds, before anything else happens."""
        unfinished: list[Move] = []
        for each in stored:
            queue = self._make(each.row.generation, parse_settings(each.row.name, each.row.settings))
            queue.restore(each, now_ms)
            unfinished += each.unfinished
        generations = {queue.generation: queue for queue in self._queues.values()}
        for move in unfinished:
            generations[move.source].finish_move(move.sequence, move.group)

    def _make(self, generation: int, settings: QueueSettings) -> Queue:
        assert self.owns(settings.name), "who uses a queue has been sent to its slot"
        self._next_generation = max(self._next_generation, generation + 1)
        name = settings.name
        queue = Queue(
            generation,
            settings,
            self._timing,
            self._present_writes,
            client_of=self._client_of,
            touch=lambda: self._touched.update({name: queue}),
            room=self.room,
        )
        self._queues[name] = self._touched[name] = queue
        return queue

    def _client_of(self, client_id: str) -> Client:
        """One for all places of a client, as long as it has any."""
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients[client_id] = Client(partial(self._clients.pop, client_id))
        return client

    def _touch(self, name: str) -> Queue:
        queue = self._touched[name] = self.queue(name)
        return queue

    def _bury(self, queue: Queue, now_ms: int) -> None:
        """Dead letters go where they belong."""
        if not queue.buried:
            return
        url = queue.settings.dlq_config.alert_webhook
        for burial in queue.buried:
            self.room.free(burial.record_bytes)  # it was reserved, and is counted where it goes
            target = self._touch(burial.target)
            number = target.bury(burial, now_ms)
            self._note_move(queue, burial.sequence, burial.letter.group, target, number)
            if url is not None:
                self._alerts.append(DeadLetterAlert(url, burial.target, burial.letter))
        queue.buried.clear()

    def _note_move(self, source: Queue, sequence: int, group: str, target: Queue, number: int) -> None:
        self._present_writes().moves.append(
            Move(source.generation, sequence, group, target.generation, number)
        )

    def _note_stalled(self, queue: Queue) -> None:
        for group in queue.groups.values():
            if group.stalled:
                self._stalled += [(queue.settings.name, group.name, client_id) for client_id in group.stalled]
                group.stalled.clear()

    def _schedule(self, queue: Queue) -> None:
        name, due_ms = queue.settings.name, queue.next_due_ms()
        if due_ms is not None and due_ms < self._scheduled.get(name, due_ms + 1):
            self._scheduled[name] = due_ms
            heappush(self._due, (due_ms, name))
            if len(self._due) > 2 * len(self._scheduled) + OUTDATED_MAX:
                self._due = [(each_ms, one) for one, each_ms in self._scheduled.items()]
                heapify(self._due)
