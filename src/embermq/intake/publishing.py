"""Accepting a PUBLISH: match, log record; and what its commit or its failure sets off."""

from msgspec.structs import replace

from embermq.access.authorization.rule_set import Permissions
from embermq.formats.log_record import Origin, decode_record, encode_record
from embermq.intake.refusing import Refusing
from embermq.model.message import Message
from embermq.model.session import RetainedRow
from embermq.model.session_writes import RetainedWrite
from embermq.mqtt.wire.encoder import puback, pubrec
from embermq.mqtt.wire.packets import Publish
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError, StoreFull
from embermq.routing.retain_sources import source_of
from embermq.routing.router import NO_MATCH, Match, Receiver
from embermq.routing.shared_choice import choose_member
from embermq.sessions.awaiting_pubrel import Holding
from embermq.sessions.durable_queues import PUBLISHED_PREFIXES, QUEUE_PREFIX
from embermq.sessions.link import Link
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted, Batch, Verdict
from embermq.sessions.topic_aliases import resolve_alias

NOBODY = Verdict(ReasonCode.NO_MATCHING_SUBSCRIBERS)
PART_BYTES = 1024 * 1024
"""Records that are handed on before links are written."""


class Publishing:
    """The way in. `accept` is the hottest function of the broker: one call a PUBLISH."""

    def __init__(self, state: BrokerState, holding: Holding) -> None:
        self.refusing = Refusing(state)
        self._state = state
        self._holding = holding
        self._tick = state.tick
        self._counters = state.counters
        self._router = state.router
        settings = state.settings
        self._receive_maximum = settings.receive_maximum
        self._limits_rate = self.refusing.limits_rate
        self._takes_all = (
            settings.max_qos == 2
            and settings.retain_available
            and not settings.validate_payload_format
            and not settings.payload_bytes_max
        )

    def accept(self, link: Link, packet: Publish) -> None:
        """Take a PUBLISH from a connected client."""
        session = link.session
        if session is None:
            return
        properties = packet.properties
        topic = packet.topic
        if properties is not None or not topic:
            if properties is None or (properties.topic_alias is not None or not topic):
                resolved = resolve_alias(link, topic, properties, self._state.settings.topic_alias_maximum)
                if resolved is None:
                    return
                topic = resolved
            properties = kept_properties(properties) if properties is not None else None
        if (link.terms is not None or not self._takes_all) and self.refusing.is_unwanted(link, packet):
            return
        match = self._match(link, session, packet, topic)
        if match is None:
            return
        tick = self._tick
        payload = packet.payload
        counters = self._counters
        counters.messages_received += 1
        counters.payload_bytes_received += len(payload)
        qos = packet.qos
        date_ms = tick.date_ms
        due_ms = deadline_of(properties, tick.now_ms) if properties is not None else 0
        retain, publisher = packet.retain, session.client_id
        message = Message(topic, payload, qos, retain, publisher, link.version, date_ms, due_ms, properties)
        if qos == 0 and not retain:
            if not match.is_empty:
                self._deliver_now(Accepted(message, b"", match, None, 0))
            return
        receiving = None
        if qos == 2:
            receiving = session.receiving
            if receiving is None:
                receiving = session.receiving = set()
            if packet.packet_id in receiving:
                again = Message("", b"", 2, False, "", link.version, 0)  # its payload would wait in vain
                repeated = Accepted(again, b"", NO_MATCH, link, packet.packet_id, receiving=receiving)
                tick.batch.accepted.append(repeated)
                return
        elif session.receiving and self.refusing.is_in_use(link, session, packet):
            return
        if retain and not self.refusing.has_room(message):
            self.refusing.refuse_retained(link, packet)
            return
        if qos:
            unanswered = link.unanswered = link.unanswered + 1
            if unanswered > self._receive_maximum and link.version is ProtocolVersion.V5:
                self.refusing.end_at_receive_maximum(link)
                return
        state = self._state
        if (
            state.refuse_all or state.refused_generations or state.session_store_full or state.log_full
        ) and self.refusing.is_pinned(link, packet, match):
            return
        generation, packet_id = session.generation, packet.packet_id
        origin = Origin(generation, packet_id) if qos == 2 and session.persistent else None
        # What is QoS 0 has reached applications already, so its record names none.
        source = source_of(state, session.permissions) if retain else ()
        record = encode_record(message, match.stamps if qos else b"", origin, source)
        if len(record) > state.record_bytes_sure and self.refusing.is_too_large(link, packet, record):
            return
        if receiving is not None:
            receiving.add(packet_id)
            if origin is not None:
                tick.session_writes.receiving.append((generation, packet_id, len(tick.writes.records)))
        self._take(Accepted(message, record, match, link, packet_id, receiving=receiving))

    def accept_own(
        self, message: Message, origin: Origin | None = None, permissions: Permissions | None = None
    ) -> None:
        """Take a message that no client waits for: a will. `permissions` are those of who left it."""
        queues = self._state.queues
        if queues is not None and message.topic.startswith(QUEUE_PREFIX):
            queues.publish_own(message, origin, permissions)
            return
        match = self._state.router.match_for(message.topic, message.publisher)
        self._counters.deliveries_denied += match.denied
        if message.qos == 0 and not message.retain:
            self._deliver_now(Accepted(message, b"", match, None, 0))
            return
        if message.retain and not self.refusing.has_room(message):
            self._counters.refused_retained += 1
            message = replace(message, retain=False)
        source = source_of(self._state, permissions) if message.retain else ()
        record = encode_record(message, match.stamps if message.qos else b"", origin, source)
        if len(record) > self._state.record_bytes_sure and self._state.record_objection(record):
            self._counters.publishes_refused += 1  # nobody can be told
            return
        self._take(Accepted(message, record, match, None, 0))

    def publish_unstored(self, message: Message) -> None:
        """Deliver a message of QoS 0 that is nobody's and stays nowhere."""
        match = self._state.router.match_for(message.topic, message.publisher)
        if not match.is_empty:
            self._deliver_now(Accepted(message, b"", match, None, 0))

    def _take(self, accepted: Accepted) -> None:
        batch = self._tick.batch
        message = accepted.message
        if message.retain:
            record = accepted.record if message.payload else b""
            retained = RetainedWrite(message.topic, len(batch.writes.records), record)
            batch.writes.session.retained.append(retained)
            self._state.retained.announce(message.topic)
        batch.writes.records.append(accepted.record)
        batch.record_bytes += len(accepted.record)
        batch.accepted.append(accepted)
        if message.qos == 0 or (message.qos == 1 and accepted.match.direct):
            self._deliver_now(accepted)

    def _match(self, link: Link, session: Session, packet: Publish, topic: str) -> Match | None:
        """Who gets it; None when it was refused, or went to a durable queue."""
        router = self._router
        match = router.known(topic)
        if match is None:
            if self.refusing.is_refused(link, packet, topic):
                return None
            queues = self._state.queues
            # Never remembered, so it always comes here.
            if queues is not None and topic.startswith(PUBLISHED_PREFIXES):
                queues.publish(link, session, packet, topic)
                return None
            match = router.match(topic)
        if self._limits_rate and self.refusing.is_too_fast(link, session, packet):
            return None
        if session.permissions is not None and self.refusing.is_denied(link, session, packet, topic):
            return None
        if match.is_special:
            if match.no_local:
                match = router.match_for(topic, session.client_id)
            self._counters.deliveries_denied += match.denied
        return match

    def _deliver_now(self, accepted: Accepted) -> None:
        """The direct way: receivers that keep nothing, up to QoS 1, and everybody's QoS 0."""
        direct = self._state.direct
        match = accepted.match
        for receiver in match.direct:
            direct.deliver(receiver.session, receiver, accepted)
        if accepted.message.qos == 0:
            for receiver in match.durable:
                direct.deliver(receiver.session, receiver, accepted)
            for receiver in match.applications:
                direct.deliver(receiver.session, receiver, accepted)
            for group in match.groups:
                self._deliver_to_group(group.receivers, group.turn.next, accepted)
                group.turn.next += 1

    def _deliver_to_group(self, receivers: list[Receiver], turn: int, accepted: Accepted) -> None:
        chosen = choose_member(receivers, turn)
        if chosen is not None:
            keeps = accepted.message.qos and chosen.qos
            path = self._state.path(chosen.session) if keeps else self._state.direct
            path.deliver(chosen.session, chosen, accepted)

    def committed(self, batch: Batch, base_offset: int) -> None:
        """The batch is durable: acknowledge in publish order, then hand on to those who keep. A large batch is written
        in parts: a link that takes no more is known as such before it has got all of it."""
        if batch.record_bytes <= PART_BYTES:
            self._hand_on(batch.accepted, base_offset)
            return
        part: list[Accepted] = []
        part_bytes, offset = 0, base_offset
        for accepted in batch.accepted:
            part.append(accepted)
            part_bytes += len(accepted.record)
            if part_bytes >= PART_BYTES:
                offset = self._hand_on(part, offset)
                self._tick.flush()
                part, part_bytes = [], 0
        self._hand_on(part, offset)

    def _hand_on(self, part: list[Accepted], base_offset: int) -> int:
        """Returns the offset behind the part."""
        offset = base_offset
        durable, direct = self._state.durable, self._state.direct
        for accepted in part:
            message = accepted.message
            link = accepted.link
            if accepted.record:
                accepted.offset = offset
                offset += 1
            elif not self._answers_without_record(accepted):
                continue
            if link is not None and message.qos and not link.closing:
                if not link.out:
                    link.dirty.append(link)
                acknowledge = pubrec
                if message.qos == 1:
                    link.unanswered -= 1
                    acknowledge = puback
                if (
                    accepted.match.is_empty
                    and link.version is ProtocolVersion.V5
                    and (accepted.record or accepted.verdict is not None)
                ):
                    self.refusing.acknowledge(link, accepted, accepted.verdict or NOBODY)
                else:
                    link.out.append(acknowledge(accepted.packet_id))
            if not message.qos:
                continue
            match = accepted.match
            if message.qos == 2 and match.direct:
                self._hand_on_live(accepted)
            for receiver in match.durable:
                if receiver.qos:
                    durable.deliver(receiver.session, receiver, accepted)
                else:
                    direct.deliver(receiver.session, receiver, accepted)
            for receiver in match.applications:
                if not receiver.qos:
                    direct.deliver(receiver.session, receiver, accepted)
            for group in match.groups:
                if not group.stamped:
                    self._deliver_to_group(group.receivers, group.turn.next, accepted)
                    group.turn.next += 1
        return offset

    def _hand_on_live(self, accepted: Accepted) -> None:
        """A QoS 2 message is stored: those who keep nothing get it when its publisher has released it. Not before: a
        refused one comes again, and exactly once counts."""
        link = accepted.link
        receiving = accepted.receiving
        if link is not None and receiving is not None and accepted.packet_id in receiving:
            self._holding.hold(link, accepted)
            return
        for receiver in accepted.match.direct:
            self._state.direct.deliver(receiver.session, receiver, accepted)

    def retain(self, batch: Batch, base_offset: int) -> None:
        """What the batch retains; called before its subscriptions are answered, which must find it."""
        retained = self._state.retained
        offset = base_offset
        for accepted in batch.accepted:
            if not accepted.record:
                continue
            message = accepted.message
            if message.retain:
                retained.settle(message.topic)
            if message.retain and message.payload:
                row = RetainedRow(message.topic, offset, accepted.record)
                retained.put(row, message.expires_ms)
            elif message.retain:
                retained.discard(message.topic)
            offset += 1

    def _answers_without_record(self, accepted: Accepted) -> bool:
        """For what was not to be stored: False when the answer is given here. A repeated QoS 2 PUBLISH is only
        acknowledged while what it repeats is held; else that was refused, and the client has to send it anew."""
        link = accepted.link
        if link is None:
            return False
        if accepted.refusal:
            message = accepted.message
            self.refusing.answer(
                link, message.qos, accepted.packet_id, accepted.refusal_code, accepted.refusal
            )
            return False
        if accepted.verdict is not None:
            return True
        if accepted.receiving is None or accepted.packet_id not in accepted.receiving:
            link.close("a PUBLISH that it repeats was refused")
            return False
        return True

    def refused(self, batch: Batch, error: StoreError) -> None:
        """The batch could not be stored: tell the publishers; nothing of its records has taken effect."""
        full = isinstance(error, StoreFull)
        reason = ReasonCode.QUOTA_EXCEEDED if full else ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        text = "no room to store the message" if full else "the message could not be stored"
        for accepted in batch.accepted:
            message, link = accepted.message, accepted.link
            if not accepted.record and accepted.verdict is None:
                if self._answers_without_record(accepted) and link is not None and not link.closing:
                    link.send(pubrec(accepted.packet_id))
                continue
            if message.retain:
                self._state.retained.settle(message.topic)
            if link is None:
                self.accept_own(message, decode_record(accepted.record).origin)
                continue
            if accepted.receiving is not None:
                accepted.receiving.discard(accepted.packet_id)
            self.refusing.answer(link, message.qos, accepted.packet_id, reason, text)


def deadline_of(properties: Properties, now_ms: int) -> int:
    """The deadline that the Message Expiry Interval sets; 0 = none."""
    interval_s = properties.message_expiry_interval
    return 0 if interval_s is None else now_ms + interval_s * 1000


def kept_properties(properties: Properties) -> Properties | None:
    """What travels with the message: not the alias, which belongs to the connection [MQTT-3.3.2-7]."""
    if properties.topic_alias is None:
        return properties
    kept = Properties(
        payload_format_indicator=properties.payload_format_indicator,
        message_expiry_interval=properties.message_expiry_interval,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user_properties=properties.user_properties,
    )
    return None if kept == Properties() else kept
