"""Messages for queues: what PUBLISH and wills bring."""

from __future__ import annotations

from functools import partial

from embermq.access.authorization.rule_set import Permissions
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.tick_store import Receipt, queue_owner
from embermq.queues.errors import QueueFull, QueueRefusal, TooLarge
from embermq.queues.mqtt.bodies import BodyCache
from embermq.queues.mqtt.configuring import Creating
from embermq.queues.publication import read_publication
from embermq.queues.queue import Fate
from embermq.queues.queues import Queues
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted, Batch, Enqueued, PublishRefusal, Verdict

NOT_ENQUEUED = {
    Fate.REPEATED: "not enqueued again: its dedup-id is known",
    Fate.DROPPED: "dropped: the queue is full",
}


class Publishes:
    """Puts messages into the core, and shows them to groups when their records are durable."""

    def __init__(self, state: BrokerState, core: Queues, creating: Creating, bodies: BodyCache) -> None:
        self._tick = state.tick
        self._core = core
        self._creating = creating
        self._bodies = bodies
        self._uncommitted: set[tuple[str, str]] = set()
        """Queue and `dedup-id` of messages whose tick is not durable: their repeats count on it."""

    def put(
        self, name: str, accepted: Accepted, permissions: Permissions | None
    ) -> Enqueued | Verdict | PublishRefusal:
        """See `QueueSide.put`."""
        message, tick = accepted.message, self._tick
        record = len(tick.writes.records)
        properties = message.properties
        said = properties.user_properties if properties is not None else ()
        try:
            self._creating.check(name, permissions)
        except QueueRefusal as refusal:
            self._note_refused(name, accepted, refusal)
            return PublishRefusal(refusal.reason_code, refusal.message, is_of_queue=True)
        try:
            publication = read_publication(said, tick.now_ms, offset_ms=tick.offset_ms)
            acceptance = self._core.accept(
                name,
                publication,
                len(message.payload),
                record,
                tick.now_ms,
                expires_ms=message.expires_ms,
                record_bytes=len(accepted.record),
            )
        except QueueRefusal as refusal:
            self._note_refused(name, accepted, refusal)
            return PublishRefusal(refusal.reason_code, refusal.message, isinstance(refusal, QueueFull))
        dedup_id = publication.dedup_id
        first = (name, dedup_id) if dedup_id is not None else None
        if acceptance.ticket < 0:
            repeats = first if acceptance.fate is Fate.REPEATED and first in self._uncommitted else None
            return Verdict(ReasonCode.SUCCESS, NOT_ENQUEUED[acceptance.fate], repeats)
        if first is not None:
            self._uncommitted.add(first)
        return Enqueued(name, acceptance.ticket, record, message, dedup_id)

    def _note_refused(self, name: str, accepted: Accepted, refusal: QueueRefusal) -> None:
        """Nobody can be told of QoS 0 and of wills: it shows in the figures of a queue that is full. A client of MQTT 3
        loses its connection by a message that is too large all the same [queues-31]."""
        link = accepted.link
        if link is not None and accepted.message.qos:
            return
        queue = self._core.find(name)
        if queue is not None and isinstance(refusal, QueueFull):
            queue.note_dropped()
        if link is not None and isinstance(refusal, TooLarge) and link.version is not ProtocolVersion.V5:
            link.close(f"PUBLISH: {refusal.message}")

    def committed(self, batch: Batch, receipt: Receipt) -> None:
        """The records are durable. Groups may see the messages when their queue has stored them, too: a start would
        enqueue what it finds in the log alone under other message ids than consumers had been told."""
        stored: dict[str, list[tuple[int, int]]] = {}
        for enqueued in batch.enqueued:
            offset = receipt.base_offset + enqueued.record
            self._bodies.keep(offset, enqueued.message)
            if enqueued.dedup_id is not None:
                self._uncommitted.discard((enqueued.queue, enqueued.dedup_id))
            stored.setdefault(enqueued.queue, []).append((enqueued.ticket, offset))
        for name, messages in stored.items():
            if receipt.whole:
                self._core.commit(name, messages)
            else:
                owner = queue_owner(self._core.queue(name).generation)
                batch.when_stored(owner, partial(self._core.commit, name, messages))

    def refused(self, batch: Batch) -> set[tuple[str, str]]:
        """They are not. See `QueueSide.refused`."""
        lost: set[tuple[str, str]] = set()
        for enqueued in batch.enqueued:
            self._core.withdraw(enqueued.queue, enqueued.ticket)
            if enqueued.dedup_id is not None:
                lost.add((enqueued.queue, enqueued.dedup_id))
        self._uncommitted -= lost
        return lost
