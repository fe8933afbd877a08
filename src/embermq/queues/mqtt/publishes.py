"""Messages for queues: what PUBLISH and wills bring."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from embermq.access.authorization.rule_set import Permissions
from embermq.formats.log_record import Origin, encode_record
from embermq.intake.publishing import deadline_of, kept_properties
from embermq.intake.refusing import Refusing
from embermq.model.message import Message
from embermq.mqtt.wire.packets import Publish
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.queues.errors import QueueFull, QueueRefusal, TooLarge
from embermq.queues.mqtt.arriving import Arriving
from embermq.queues.mqtt.bodies import Bodies
from embermq.queues.mqtt.creating import Creating
from embermq.queues.publication import read_publication
from embermq.queues.queue import Acceptance, Fate
from embermq.queues.queues import Queues
from embermq.routing.router import NO_MATCH, Match
from embermq.sessions.client_events import EventKind
from embermq.sessions.link import Link
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted, Batch, Enqueued, Verdict

RETAIN_IGNORED = "queues retain nothing: the retain flag is ignored"
NOT_ENQUEUED = {
    Fate.REPEATED: "not enqueued again: its dedup-id is known",
    Fate.DROPPED: "dropped: the queue is full",
}
NOT_STORED = "the message that this one repeats could not be stored"

QUEUED = Match([], [], [], [], b"", False, False)
"""Nobody in particular gets it now, and somebody may later: no 0x10."""


class Publishes:
    """Puts messages into the core, with their records into the log, and answers publishers."""

    def __init__(
        self, state: BrokerState, core: Queues, refusing: Refusing, creating: Creating, bodies: Bodies
    ) -> None:
        self._state = state
        self._tick = state.tick
        self._core = core
        self._refusing = refusing
        self._creating = creating
        self._bodies = bodies
        self._arriving = Arriving(state, refusing)
        self._uncommitted: set[tuple[str, str]] = set()
        """Queue and `dedup-id` of messages whose tick is not durable: their repeats count on it."""
        self._wills: dict[tuple[str, str], list[_Will]] = {}
        """Wills among these repeats: nobody sends them again when the first one is refused."""

    def publish(self, link: Link, session: Session, packet: Publish, topic: str, name: str) -> None:
        """A PUBLISH to a queue that may be asked for by clients."""
        refusing = self._refusing
        if refusing.limits_rate and refusing.is_too_fast(link, session, packet):
            return
        if session.permissions is not None and refusing.is_denied(link, session, packet, topic):
            return
        if not self._arriving.takes(link, session, packet):
            return
        state = self._state
        if (state.refuse_all or state.session_store_full or state.log_full) and refusing.is_pinned(
            link, packet, NO_MATCH
        ):
            return
        now_ms = self._tick.now_ms
        properties = kept_properties(packet.properties) if packet.properties is not None else None
        due_ms = deadline_of(properties, now_ms) if properties is not None else 0
        message = Message(
            topic,
            packet.payload,
            packet.qos,
            False,
            session.client_id,
            link.version,
            self._tick.date_ms,
            due_ms,
            properties,
        )
        origin = None
        if packet.qos == 2 and session.persistent:
            origin = Origin(session.generation, packet.packet_id)
        record = encode_record(message, b"", origin)
        try:
            self._check_record(record)
            acceptance, dedup_id = self._accept(name, message, len(record), session.permissions)
        except QueueRefusal as refusal:
            self._refuse(link, packet, name, refusal)
            return
        if acceptance.ticket < 0:
            self._acknowledge_alone(link, session, packet, acceptance, (name, dedup_id or ""))
            return
        receiving = None
        if packet.qos == 2:
            receiving = self._arriving.remember(session, packet)
            if origin is not None:
                row = (session.generation, packet.packet_id, len(self._tick.writes.records))
                self._tick.session_writes.receiving.append(row)
        verdict = Verdict(ReasonCode.SUCCESS, RETAIN_IGNORED) if packet.retain else None
        accepted = Accepted(
            message,
            record,
            QUEUED if verdict is None else NO_MATCH,
            link,
            packet.packet_id,
            receiving=receiving,
            verdict=verdict,
        )
        self._take(accepted, name, acceptance.ticket, dedup_id)

    def publish_own(
        self, message: Message, name: str, origin: Origin | None, permissions: Permissions | None
    ) -> None:
        """A will. What a queue refuses is counted: nobody can be told."""
        if message.retain:
            message = replace(message, retain=False)
        record = encode_record(message, b"", origin)
        try:
            self._check_record(record)
            acceptance, dedup_id = self._accept(name, message, len(record), permissions)
        except QueueRefusal as refusal:
            self._count_refused(name, refusal)
            return
        if acceptance.ticket >= 0:
            accepted = Accepted(message, record, QUEUED, None, 0)
            self._take(accepted, name, acceptance.ticket, dedup_id)
        elif dedup_id is not None and (name, dedup_id) in self._uncommitted:
            self._wills.setdefault((name, dedup_id), []).append(_Will(message, origin, permissions))

    def _check_record(self, record: bytes) -> None:
        """Raise TooLarge for one that the log would not take: it would have its whole tick refused."""
        state = self._state
        if len(record) > state.record_bytes_sure and state.record_objection(record):
            raise TooLarge(f"the message log does not take a record of {len(record)} bytes")

    def _accept(
        self, name: str, message: Message, record_bytes: int, permissions: Permissions | None
    ) -> tuple[Acceptance, str | None]:
        """What the core makes of it, and its `dedup-id`. Raises QueueRefusal."""
        now_ms = self._tick.now_ms
        properties = message.properties
        said = properties.user_properties if properties is not None else ()
        publication = read_publication(said, now_ms, offset_ms=self._tick.offset_ms)
        self._creating.check(name, permissions)
        acceptance = self._core.accept(
            name,
            publication,
            len(message.payload),
            len(self._tick.writes.records),
            now_ms,
            expires_ms=message.expires_ms,
            record_bytes=record_bytes,
        )
        return acceptance, publication.dedup_id

    def _take(self, accepted: Accepted, name: str, ticket: int, dedup_id: str | None) -> None:
        batch = self._tick.batch
        enqueued = Enqueued(name, ticket, len(batch.writes.records), accepted.message, dedup_id)
        batch.writes.records.append(accepted.record)
        batch.record_bytes += len(accepted.record)
        batch.accepted.append(accepted)
        batch.enqueued.append(enqueued)
        if dedup_id is not None:
            self._uncommitted.add((name, dedup_id))

    def _acknowledge_alone(
        self,
        link: Link,
        session: Session,
        packet: Publish,
        acceptance: Acceptance,
        repeated: tuple[str, str],
    ) -> None:
        """There is nothing to store of it."""
        if not packet.qos:
            return
        verdict = Verdict(ReasonCode.SUCCESS, NOT_ENQUEUED[acceptance.fate])
        accepted = self._arriving.answer(link, session, packet, verdict)
        if acceptance.fate is Fate.REPEATED and repeated in self._uncommitted:
            accepted.repeats = repeated

    def _refuse(self, link: Link, packet: Publish, name: str, refusal: QueueRefusal) -> None:
        if refusal.reason_code is ReasonCode.NOT_AUTHORIZED:
            event = link.event(EventKind.DENIED, refusal.message, refusal.reason_code, topic=packet.topic)
            self._state.tell(event)
        if packet.qos:
            self._refusing.answer_later(link, packet, refusal.reason_code, refusal.message)
            return
        self._count_refused(name, refusal)
        if isinstance(refusal, TooLarge) and link.version is not ProtocolVersion.V5:
            link.close(f"PUBLISH: {refusal.message}")

    def _count_refused(self, name: str, refusal: QueueRefusal) -> None:
        """Nobody can be told: it shows in the figures of the broker, and in those of a queue that is full."""
        self._state.counters.publishes_refused += 1
        queue = self._core.find(name)
        if queue is not None and isinstance(refusal, QueueFull):
            queue.note_dropped()

    def committed(self, batch: Batch, base_offset: int) -> None:
        """The records are durable: groups may see the messages."""
        for enqueued in batch.enqueued:
            offset = base_offset + enqueued.record
            self._bodies.keep(offset, enqueued.message)
            self._core.commit(enqueued.queue, enqueued.ticket, offset)
            if enqueued.dedup_id is not None:
                first = (enqueued.queue, enqueued.dedup_id)
                self._uncommitted.discard(first)
                self._wills.pop(first, None)

    def refused(self, batch: Batch) -> None:
        """They are not, and the tick is given back already: what repeats one of them and waits for the next tick is
        refused with it."""
        lost: set[tuple[str, str]] = set()
        for enqueued in batch.enqueued:
            self._core.withdraw(enqueued.queue, enqueued.ticket)
            if enqueued.dedup_id is not None:
                lost.add((enqueued.queue, enqueued.dedup_id))
        if not lost:
            return
        self._uncommitted -= lost
        for accepted in self._tick.batch.accepted:
            if accepted.repeats in lost:
                accepted.verdict = None
                accepted.refusal = NOT_STORED
                accepted.refusal_code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
                if accepted.receiving is not None:
                    accepted.receiving.discard(accepted.packet_id)
        for queue, dedup_id in lost:
            for will in self._wills.pop((queue, dedup_id), ()):
                self.publish_own(will.message, queue, will.origin, will.permissions)


class _Will(Struct, frozen=True):
    """What `publish_own` was given."""

    message: Message
    origin: Origin | None
    permissions: Permissions | None
