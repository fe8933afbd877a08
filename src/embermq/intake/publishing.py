"""The way in, one for all: admit, record, batch; then what the commit of the batch or its failure sets off.

What is asked of a message before it has its record, in this order; the first that objects decides. Messages of clients
are asked everything, wherever they lead. A will is owed from its CONNACK on: what it is was asked at CONNECT (*), and
what passes with time is not asked of it. When nobody can be told (QoS 0, wills), a refusal is counted and the message
dropped; MQTT 3 loses the connection where MQTT 5 gets a PUBACK or PUBREC with the code.

     asked                                   of              MQTT 5
     topic alias                             PUBLISH         DISCONNECT 0x94, 0x82
     repeat of a QoS 2 message that is held  PUBLISH         acknowledged, nothing else is asked
     Receive Maximum                         PUBLISH         DISCONNECT 0x93
     packet id of a QoS 2 message            PUBLISH QoS 1   0x91 (MQTT 3: taken)
     retain, QoS: offered at all             PUBLISH, *      DISCONNECT 0x9A, 0x9B; *: CONNACK
     size, UTF-8 of the payload              PUBLISH, *      0x97, 0x99 (QoS 0: DISCONNECT 0x99)
     name of the topic, of the queue         PUBLISH, *      0x90; 0x83 where queues are switched off
     rate                                    PUBLISH         0x97 (MQTT 3: taken, and not read for a while)
     right to publish (settling, settings:   all, *          0x87
     rights of their own)
     queues: what leaves no record           all             settled, configured or put into its queue of responses now
     topics: QoS 0, not retained             all             delivered now
     log keeps up; session store, for what   PUBLISH         0x97 (log at a stand: DISCONNECT 0x97)
     goes into a queue
     room to retain                          PUBLISH, will   0x97; a will goes out without being retained
     size of the record                      all             0x97
     queues: properties, right to make it,   all             0x83, 0x87, 0x97, or acknowledged and not enqueued
     size, dedup-id, depth

$SYS and what is moved between queues (dead letters, redrive) bring no new message: they do not come by here.
"""

from collections.abc import Set
from functools import partial

from embermq.access.authorization.rule_set import Permissions
from embermq.formats.log_record import Origin, encode_record
from embermq.intake.kept_properties import deadline_of, kept_properties
from embermq.intake.other_slots import ELSEWHERE, OTHER_SLOT, OtherSlots
from embermq.intake.refusing import PUBLISHED, RETAINED_FULL, Refusing
from embermq.model.message import Message
from embermq.model.session import RetainedRow
from embermq.model.session_writes import RetainedWrite
from embermq.mqtt.value import replace
from embermq.mqtt.wire.encoder import puback, pubrec
from embermq.mqtt.wire.packets import Publish
from embermq.mqtt.wire.reason_codes import FIRST_ERROR, ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError, StoreFull
from embermq.ports.tick_store import Receipt
from embermq.routing.queue_target import QueueAim, QueueTarget
from embermq.routing.retained import publisher_of
from embermq.routing.router import NO_MATCH, Match
from embermq.sessions.awaiting_pubrel import Holding
from embermq.sessions.durable_queues import PUBLISHED_PREFIXES
from embermq.sessions.link import Link
from embermq.sessions.member_ids import client_of
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import (
    Accepted,
    Asked,
    Batch,
    Copied,
    Enqueued,
    Own,
    PublishRefusal,
    Replayed,
    Verdict,
    WaitingCall,
)
from embermq.sessions.topic_aliases import resolve_alias

NOBODY = Verdict(ReasonCode.NO_MATCHING_SUBSCRIBERS)
RETAIN_IGNORED = Verdict(ReasonCode.SUCCESS, "queues retain nothing: the retain flag is ignored")
NO_ROOM = PublishRefusal(ReasonCode.QUOTA_EXCEEDED, "no room to store the message")
NOT_COMMITTED = PublishRefusal(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "the message could not be stored")
NOT_STORED = PublishRefusal(
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "the message that this one repeats could not be stored"
)
HELD_UP = PublishRefusal(
    ReasonCode.QUOTA_EXCEEDED, "readers of the message log, or its disk, are too far behind", passes=True
)
REPEATS_UNSTORED = PublishRefusal(
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "the message that this one repeats is being stored", passes=True
)
NO_QUEUE = PublishRefusal(ReasonCode.TOPIC_NAME_INVALID, "the topic is no word that is replayed")
PART_BYTES = 1024 * 1024
"""Records that are handed on before links are written."""


class Publishing:
    """The way in. `accept` is the hottest function of the broker: one call a PUBLISH."""

    def __init__(self, state: BrokerState, holding: Holding) -> None:
        self.refusing = Refusing(state)
        self._state = state
        self._other_slots = OtherSlots(state, self.refusing, self._record)
        self._holding = holding
        self._tick = state.tick
        self._counters = state.counters
        self._router, self._known = state.router, state.router.known
        settings = state.settings
        self._receive_maximum = settings.receive_maximum
        self._limits_rate = self.refusing.limits_rate
        self._takes_all = (
            settings.max_qos == 2
            and "retain" not in settings.unavailable
            and not settings.validate_payload_format
            and not settings.payload_bytes_max
        )

    def accept(self, link: Link, packet: Publish) -> None:
        """Take a PUBLISH from a connected client."""
        session = link.session
        if session is None:
            return
        topic, properties = packet.topic, packet.properties
        if properties is not None or not topic:
            resolved = resolve_alias(link, topic, properties, self._state.settings.topic_alias_maximum)
            if resolved is None:
                return
            topic = resolved
            properties = kept_properties(properties) if properties is not None else None
        qos = packet.qos
        receiving = session.receiving
        if qos:
            if receiving and qos == 2 and packet.packet_id in receiving:
                if packet.dup or not self._is_used_anew(session, packet.packet_id):
                    self._repeat(link, packet, receiving)
                    return
                receiving.discard(packet.packet_id)
            unanswered = link.unanswered = link.unanswered + 1
            if unanswered > self._receive_maximum and self.refusing.is_past_receive_maximum(link):
                return
            if receiving and qos == 1 and self.refusing.is_in_use(link, session, packet):
                return
        if (link.terms is not None or not self._takes_all) and self.refusing.is_unwanted(link, packet):
            return
        match = self._known(topic)
        if match is None or match.is_special or session.permissions is not None or self._limits_rate:
            match = self._match(link, session, packet, topic, match)
            if match is None:
                return
        queue, tick = match.queue, self._tick
        payload, counters = packet.payload, self._counters
        counters.messages_received += 1
        counters.payload_bytes_received += len(payload)
        due_ms = deadline_of(properties, tick.now_ms) if properties is not None else 0
        retain = packet.retain and queue is None
        publisher = session.client_id if link.member_version is None else client_of(session.client_id)
        message = Message(
            topic, payload, qos, retain, publisher, link.version, tick.date_ms, due_ms, properties
        )
        if queue is not None and queue.aim is not QueueAim.ENQUEUE:
            self._ask_queue(link, session, packet, message, queue)
            return
        if qos == 0 and not retain and queue is None:
            self._state.share.relay(message)
            if not match.is_empty:
                self.deliver_now(Accepted(message, b"", match, None, 0))
            return
        state = self._state
        if (
            state.refuse_all or state.refused_generations or state.session_store_full or state.log_full
        ) and self.refusing.is_pinned(link, packet, match):
            return
        if retain and not self.refusing.has_room(message):
            self.refusing.refuse(link, qos, packet.packet_id, RETAINED_FULL)
            return
        origin = None
        if qos == 2:
            if receiving is None:
                receiving = session.receiving = set()
            if session.persistent:
                origin = Origin(session.generation, packet.packet_id)
        else:
            receiving = None
        accepted = Accepted(message, b"", match, link, packet.packet_id, receiving=receiving)
        if queue is not None and packet.retain:
            accepted.verdict = RETAIN_IGNORED
        self._record(accepted, origin, session.permissions)

    def accept_own(self, message: Message, own: Own) -> bool:
        """Take a message that no client waits for: a will. False when it is refused."""
        state, principal = self._state, own.principal
        permissions = state.permissions(principal)
        if self.refusing.is_will_denied(message.topic, principal, permissions):
            return False
        match = self._match_of_own(message)
        if isinstance(match, PublishRefusal):  # it was left when other settings held
            self.refusing.refuse(None, message.qos, 0, match)
            return False
        if not own.is_repeated:
            self._counters.deliveries_denied += match.denied
        queue = match.queue
        if queue is not None and queue.elsewhere:
            left = Accepted(replace(message, retain=False), b"", OTHER_SLOT, None, 0, own=own)
            return self._record(left, own.origin, permissions)
        if message.retain and (queue is not None or not self.refusing.has_room(message)):
            message = replace(message, retain=False)
        accepted = Accepted(message, b"", match, None, 0, own=own)
        if queue is None and message.qos == 0 and not message.retain:
            state.share.relay(message)
            self._deliver_live(accepted)
            return True
        if queue is not None and queue.aim is QueueAim.RESPOND and state.queues is not None:
            return self._answer(accepted, state.queues.respond(queue, message))
        return self._record(accepted, own.origin, permissions)

    def accept_operators(
        self,
        message: Message,
        own: Replayed | Asked | Copied,
        receivers: Match | None = None,
        *,
        permissions: Permissions | None = None,
    ) -> PublishRefusal | None:
        """Take a message that an operator sends, so no rules are asked, or one of another slot: for `receivers`, None
        for whoever its topic leads to. `permissions` are asked whether its queue may be made. Returns why it is
        refused, or what a queue says of one that it takes and does not enqueue."""
        state = self._state
        match = self._match_of_own(message) if receivers is None else receivers
        if isinstance(match, PublishRefusal):
            return match
        if match.queue is not None and match.queue.aim is not QueueAim.ENQUEUE:
            return NO_QUEUE
        if match.queue is not None and match.queue.elsewhere:
            if not isinstance(own, Replayed):
                return ELSEWHERE
            match = OTHER_SLOT  # that takes it over from the log of this one
        refused = state.refused_generations
        if (
            (state.refuse_all and not isinstance(own, Copied))
            or state.log_full
            or (match.queue is not None and state.must_queue_wait(match.queue.name))
            or any(one.session.generation in refused for one in match.applications)
        ):
            return HELD_UP
        accepted = Accepted(message, b"", match, None, 0, own=own)
        self._record(accepted, None, permissions)
        return accepted.refusal

    def publish_unstored(self, message: Message) -> None:
        """Deliver a message of QoS 0 that is nobody's and stays nowhere, to clients of this node."""
        match = self._state.router.match_for(message.topic, message.publisher)
        if not match.is_empty:
            self.deliver_now(Accepted(message, b"", match, None, 0))

    def _repeat(self, link: Link, packet: Publish, receiving: set[int]) -> None:
        """A QoS 2 message that is held already: it is acknowledged in its place, and nothing else is asked."""
        again = Message("", b"", 2, False, "", link.version, 0)  # its payload would wait in vain
        self._tick.batch.accepted.append(
            Accepted(again, b"", NO_MATCH, link, packet.packet_id, receiving=receiving)
        )

    def _is_used_anew(self, session: Session, packet_id: int) -> bool:
        """Whether a PUBLISH without DUP is another message than the one that is held. It is when that one came before
        the broker was started: a client that sends it again sets DUP [MQTT-3.3.1-1], so this one has had its PUBCOMP,
        which the store may have lost since. On the same connection DUP says nothing [MQTT-4.3.3-10]."""
        restored, key = self._state.restored_ids, (session.generation, packet_id)
        if key not in restored:
            return False
        restored.remove(key)
        return True

    def _match(
        self, link: Link, session: Session, packet: Publish, topic: str, match: Match | None
    ) -> Match | None:
        """Who gets it; None when it was refused, or goes elsewhere. `match` is what is remembered of the topic."""
        if match is None:
            match = self._look_up(link, packet, topic)
            if match is None:
                return None
        if self._limits_rate and self.refusing.is_too_fast(link, packet):
            return None
        if (
            session.permissions is not None
            and (match.queue is None or match.queue.aim in PUBLISHED)
            and self.refusing.is_denied(link, session, packet, topic)
        ):
            return None
        if match.is_special:
            if match.no_local:
                match = self._router.match_for(topic, session.client_id)
            self._counters.deliveries_denied += match.denied
            if match.queue is not None and match.queue.elsewhere:
                self._other_slots.send(link, packet, topic, match.queue)
                return None
        return match

    def _look_up(self, link: Link, packet: Publish, topic: str) -> Match | None:
        """Where a topic leads that is not remembered; None when it was refused."""
        if self.refusing.is_refused(link, packet, topic):
            return None
        queues = self._state.queues
        if queues is None or not topic.startswith(PUBLISHED_PREFIXES):
            return self._router.match(topic)
        target = queues.look_up(topic)
        if isinstance(target, PublishRefusal):
            self.refusing.refuse(link, packet.qos, packet.packet_id, target)
            return None
        match = _leads_to(target)
        if target.aim is not QueueAim.RESPOND:  # those are seldom used twice
            self._router.remember(topic, match)
        return match

    def _match_of_own(self, message: Message) -> Match | PublishRefusal:
        topic, queues = message.topic, self._state.queues
        if queues is not None and topic.startswith(PUBLISHED_PREFIXES):
            target = self.refusing.target_of_will(queues, topic)
            return target if isinstance(target, PublishRefusal) else _leads_to(target)
        return self._router.match_for(topic, message.publisher)

    def _ask_queue(
        self, link: Link, session: Session, packet: Publish, message: Message, target: QueueTarget
    ) -> None:
        """What asks something of durable queues and leaves no record: decided at once, answered with the tick."""
        queues = self._state.queues
        assert queues is not None, "it has named the target"
        if target.aim is QueueAim.RESPOND:
            outcome = queues.respond(target, message)
        else:
            outcome = queues.control(link, session, packet, target)
        receiving = session.receiving
        if message.qos == 2 and receiving is None:
            receiving = session.receiving = set()
        self._answer(Accepted(message, b"", NO_MATCH, link, packet.packet_id, receiving=receiving), outcome)

    def _answer(self, accepted: Accepted, outcome: Verdict | PublishRefusal) -> bool:
        """Nothing of the message is stored: acknowledge it, or refuse it, in its place; False when it is refused. Its
        packet id is kept in memory alone: after a crash the repeat is judged anew."""
        message, link, own = accepted.message, accepted.link, accepted.own
        qos, packet_id = message.qos, accepted.packet_id
        if isinstance(outcome, PublishRefusal):
            if link is not None and outcome.code is ReasonCode.NOT_AUTHORIZED:
                self.refusing.note_denied(link, outcome, message.topic)
            self.refusing.refuse(link, qos, packet_id, outcome)
            return False
        receiving = None
        if link is None:
            if outcome.repeats is None:
                return True
        elif not qos:
            return True
        # PUBREC with an error is the end of a message [MQTT-4.3.3-4]; MQTT 3 has no such thing.
        elif qos == 2 and (outcome.code < FIRST_ERROR or link.version is not ProtocolVersion.V5):
            receiving = accepted.receiving
            assert receiving is not None, "that of a QoS 2 message"
            receiving.add(packet_id)
        if link is not None:
            message = Message("", b"", qos, False, "", link.version, 0)  # its payload would wait in vain
        waiting = Accepted(
            message, b"", NO_MATCH, link, packet_id, receiving=receiving, verdict=outcome, own=own
        )
        self._tick.batch.accepted.append(waiting)
        return True

    def _record(self, accepted: Accepted, origin: Origin | None, permissions: Permissions | None) -> bool:
        """Make the record of an admitted message and put it into the batch. `permissions` are the publisher's. False
        when it is refused after all."""
        state, tick, message = self._state, self._tick, accepted.message
        match, link, qos = accepted.match, accepted.link, message.qos
        if message.retain and (order := state.share.retain_order) and not isinstance(accepted.own, Copied):
            message = accepted.message = order.own(message)
        # What is QoS 0 has reached applications already, so its record names none.
        fields = publisher_of(permissions) if message.retain or match is OTHER_SLOT else ()
        if accepted.own is not None:
            fields += accepted.own.fields
        record = encode_record(message, match.stamps if qos else b"", origin, fields)
        if len(record) > state.record_bytes_sure:
            refusal = self.refusing.objection_to_record(record)
            if refusal is not None:
                accepted.refusal = refusal
                self.refusing.refuse(link, qos, accepted.packet_id, refusal)
                return False
        accepted.record = record
        batch = tick.batch
        writes = batch.writes
        if match.queue is not None:
            assert state.queues is not None, "it has named the target"
            outcome = state.queues.put(match.queue, accepted, permissions)
            if not isinstance(outcome, Enqueued):
                if accepted.own is not None and not isinstance(accepted.own, Own):
                    accepted.refusal = _refusal_of(outcome)
                    return False
                return self._answer(accepted, outcome)
            batch.enqueued.append(outcome)
            if accepted.verdict is not None:
                accepted.match = NO_MATCH  # there is something to say in its acknowledgement
        if accepted.receiving is not None:
            accepted.receiving.add(accepted.packet_id)
            if origin is not None:
                row = (origin.generation, accepted.packet_id, len(writes.records))
                tick.session_writes.receiving.append(row)
        if message.retain:
            kept = record if message.payload or state.retained.remembers_ends else b""
            writes.session.retained.append(RetainedWrite(message.topic, len(writes.records), kept))
            state.retained.announce(message.topic)
        writes.records.append(record)
        batch.record_bytes += len(record)
        batch.accepted.append(accepted)
        if qos == 0 or (qos == 1 and match.direct):
            self._deliver_live(accepted)
        return True

    def _deliver_live(self, accepted: Accepted) -> None:
        """What does not wait for its record, once: also when that is made again after a failed commit."""
        if accepted.own is None or not accepted.own.is_repeated:
            self.deliver_now(accepted)

    def deliver_now(self, accepted: Accepted) -> None:
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
                chosen = self._state.groups.present(group, accepted.message.topic)
                if chosen is not None:
                    direct.deliver(chosen.session, chosen, accepted)

    def committed(self, batch: Batch, receipt: Receipt) -> None:
        """The batch is durable: acknowledge in publish order, then hand on to those who keep. A large batch is written
        in parts: a link that takes no more is known as such before it has got all of it. What a queue says that is not
        stored yet is told when it is."""
        later = None if receipt.whole else batch.after_commit
        if batch.record_bytes <= PART_BYTES:
            offset = self._hand_on(batch.accepted, receipt.base_offset, later)
            self._state.durable.delivered(offset)
            return
        part: list[Accepted] = []
        part_bytes, offset = 0, receipt.base_offset
        for accepted in batch.accepted:
            part.append(accepted)
            part_bytes += len(accepted.record)
            if part_bytes >= PART_BYTES:
                offset = self._hand_on(part, offset, later)
                self._tick.flush()
                part, part_bytes = [], 0
        self._state.durable.delivered(self._hand_on(part, offset, later))

    def _hand_on(self, part: list[Accepted], base_offset: int, later: list[WaitingCall] | None) -> int:
        """Returns the offset behind the part. `later` gets what waits for an owner's data; None: that is stored."""
        offset = base_offset
        durable, direct, groups = self._state.durable, self._state.direct, self._state.groups
        for accepted in part:
            message = accepted.message
            link = accepted.link
            if accepted.record:
                accepted.offset = offset
                offset += 1
            elif not self._answers_without_record(accepted):
                continue
            elif later is not None and accepted.verdict is not None and accepted.verdict.owner:
                later.append((accepted.verdict.owner, partial(self._tell, accepted)))
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
                    # Other nodes, where there are any, may have subscribers [MQTT 5.0, 3.4.2.1].
                    and (
                        (accepted.record and self._state.share.members is None)
                        or accepted.verdict is not None
                    )
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
                if receiver.qos:
                    durable.deliver_stamped(receiver, accepted)
                else:
                    direct.deliver(receiver.session, receiver, accepted)
            for group in match.groups:
                if not (group.stamped or durable.holds_back(group, accepted)):
                    chosen = groups.receiver(group, message.topic)
                    if chosen is not None:
                        path = self._state.path(chosen.session) if chosen.qos else direct
                        path.deliver(chosen.session, chosen, accepted)
        return offset

    def _tell(self, accepted: Accepted) -> None:
        """What a queue says of it is stored now."""
        self._hand_on([accepted], -1, None)

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
                row = RetainedRow(message.topic, offset, accepted.record)
                if message.payload:
                    retained.put(row, message.expires_ms)
                else:
                    retained.end(row)
            offset += 1

    def _answers_without_record(self, accepted: Accepted) -> bool:
        """For what was not to be stored: False when the answer is given here. A repeated QoS 2 PUBLISH is only
        acknowledged while what it repeats is held; else that was refused, and the client has to send it anew."""
        link = accepted.link
        if link is None:
            return False
        if accepted.refusal is not None:
            self.refusing.answer(link, accepted.message.qos, accepted.packet_id, accepted.refusal)
            return False
        if accepted.verdict is not None:
            return True
        if accepted.receiving is None or accepted.packet_id not in accepted.receiving:
            link.close("a PUBLISH that it repeats was refused")
            return False
        return True

    def refused(self, batch: Batch, error: StoreError, lost: Set[tuple[str, str]]) -> None:
        """The batch could not be stored, and the tick is given back already: tell the publishers. Nothing of its
        records has taken effect; `lost` is what repeats in the present tick must not count on."""
        refusal = NO_ROOM if isinstance(error, StoreFull) else NOT_COMMITTED
        waiting = self._tick.batch.accepted[:]
        for accepted in batch.accepted:
            message, link = accepted.message, accepted.link
            if not accepted.record and accepted.verdict is None:
                if self._answers_without_record(accepted) and link is not None and not link.closing:
                    link.send(pubrec(accepted.packet_id))
                continue
            if message.retain:
                self._state.retained.settle(message.topic)
            own = accepted.own
            if isinstance(own, Replayed | Asked | Copied):
                own.refused((self._state.replays, self._tick.writes.replays), refusal)
                continue
            if own is not None:
                self.accept_own(message, replace(own, is_repeated=True))
                continue
            assert link is not None, "a message is a client's or the broker's own"
            if accepted.receiving is not None:
                accepted.receiving.discard(accepted.packet_id)
            self.refusing.answer(link, message.qos, accepted.packet_id, refusal)
        for accepted in waiting:
            if accepted.verdict is not None and accepted.verdict.repeats in lost:
                self._refuse_repeat(accepted)

    def _refuse_repeat(self, accepted: Accepted) -> None:
        """What it counted on is not stored; it waits for the present tick."""
        accepted.verdict = None
        own, receiving = accepted.own, accepted.receiving
        if isinstance(own, Own):  # nobody sends it again
            self.accept_own(accepted.message, replace(own, is_repeated=True))
            return
        accepted.refusal = NOT_STORED
        if receiving is not None:
            receiving.discard(accepted.packet_id)


def _refusal_of(outcome: Verdict | PublishRefusal) -> PublishRefusal:
    """Why a queue has not enqueued a message."""
    if isinstance(outcome, PublishRefusal):
        return outcome
    return REPEATS_UNSTORED if outcome.repeats is not None else PublishRefusal(outcome.code, outcome.text)


def _leads_to(target: QueueTarget) -> Match:
    """Nobody in particular gets it now, and somebody may later: no 0x10."""
    return Match([], [], [], [], b"", False, False, is_special=bool(target.elsewhere), queue=target)
